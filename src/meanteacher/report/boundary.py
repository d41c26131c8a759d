"""A network's decision on a part of the plane, drawn from plain arrays as one small SVG: once, or as it grows."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from numpy.typing import NDArray

from meanteacher.report.figures import styled, to_svg

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.integer[Any]]

WIDTH = 4.2
"""Inches."""

POINTS = ("#a03c00", "#004c8a")
"""Colours of the two classes: orange and blue, which every kind of colour blindness keeps apart."""

CERTAINTY = LinearSegmentedColormap.from_list("certainty", ["#f7bd8b", "#fbdfc4", "#faf8f5", "#cfe5f5", "#93c5ea"])
"""From certainly the first class to certainly the second, pale if the network is uncertain. It fills the picture,
so that the page around it may be light or dark."""

MARKERS = ("o", "s")
"""Shapes of the labelled points, which show the class without colour too."""

DARK = "#1c1c1c"


@dataclass(frozen=True, slots=True)
class Window:
    """The part of the plane that is drawn, the same for all pictures that are to be compared."""

    left: float
    right: float
    bottom: float
    top: float

    @classmethod
    def around(cls, points: Floats, margin: float = 0.35) -> "Window":
        """All of the points [N, 2], with a margin, in which methods differ as well."""
        (left, bottom), (right, top) = points.min(0) - margin, points.max(0) + margin
        return cls(float(left), float(right), float(bottom), float(top))

    @property
    def shape(self) -> tuple[float, float]:
        """Width and height."""
        return self.right - self.left, self.top - self.bottom

    def grid(self, columns: int = 150) -> Floats:
        """[rows, columns, 2]: places in even distances, from bottom left, edge to edge."""
        width, height = self.shape
        x = np.linspace(self.left, self.right, columns)
        y = np.linspace(self.bottom, self.top, round(columns * height / width))
        return np.stack(np.meshgrid(x, y), axis=-1)


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Places and their true classes, 0 or 1."""

    places: Floats
    """[N, 2]."""
    classes: Integers
    """[N]."""

    def of(self, label: int) -> Floats:
        chosen: Floats = self.places[self.classes == label]
        return chosen


def draw_boundary(window: Window, probability: Floats, points: Points, labelled: Points, description: str) -> str:
    """The picture as SVG: the same arrays always give the same text.

    Args:
        window: what `probability` covers
        probability: of class 1, at the places of `window.grid()`: [rows, columns]
        points: small, in the colour of their true class: one on the background of the other colour is an error
        labelled: large, with one shape per class
        description: for readers who do not see it
    """
    width, height = window.shape
    with styled():
        figure = Figure(figsize=(WIDTH, WIDTH * height / width))
        _picture(figure.add_axes((0, 0, 1, 1)), window, probability, points, labelled)
        return _compact(to_svg(figure, description))


def draw_growth(
    window: Window,
    rows: Mapping[str, Mapping[str, Floats]],
    points: Points,
    labelled: Points,
    description: str,
) -> str:
    """Small pictures side by side as one SVG: a row per network, and a column per moment of its training.

    Args:
        window: what every probability covers
        rows: title of the network -> title of the moment -> probability of class 1, as for `draw_boundary`
        points: as for `draw_boundary`
        labelled: as for `draw_boundary`
        description: for readers who do not see it
    """
    moments = list(next(iter(rows.values())))
    width, height = window.shape
    with styled():
        figure = Figure(figsize=(2 * WIDTH, 2 * WIDTH * height / width * len(rows) / len(moments) + 0.3))
        grid = figure.subplots(len(rows), len(moments), squeeze=False, gridspec_kw={"wspace": 0.04, "hspace": 0.06})
        figure.subplots_adjust(left=0.13, right=1, bottom=0, top=0.92)
        for axes, moment in zip(grid[0], moments, strict=True):
            axes.set_title(moment, fontsize=9)
        for line, (title, pictures) in zip(grid, rows.items(), strict=True):
            for axes, moment in zip(line, moments, strict=True):
                _picture(axes, window, pictures[moment], points, labelled, scale=0.4)
            line[0].text(-0.06, 0.5, title, transform=line[0].transAxes, ha="right", va="center")
        return _compact(to_svg(figure, description))


def _picture(
    axes: Axes, window: Window, probability: Floats, points: Points, labelled: Points, *, scale: float = 1.0
) -> None:
    grid = window.grid(probability.shape[1])
    if probability.shape != grid.shape[:2]:
        raise ValueError(
            f"probability has the shape {probability.shape}, the window's grid {grid.shape[:2]}: "
            "give one probability per place of window.grid()."
        )
    axes.set_axis_off()
    _background(axes, grid, probability, 1.6 * scale**0.5)
    axes.set(xlim=(window.left, window.right), ylim=(window.bottom, window.top), aspect="auto")
    for label, colour in enumerate(POINTS):
        axes.add_patch(_dots(points.of(label), colour, 2.2 * scale))
    for label, (colour, marker) in enumerate(zip(POINTS, MARKERS, strict=True)):
        x, y = labelled.of(label).T
        for size, edge in ((12.5, DARK), (10.5, "white"), (8.0, colour)):
            axes.plot(x, y, marker, color=edge, markersize=scale * size, markeredgewidth=0, zorder=4)


def _background(axes: Axes, grid: Floats, probability: Floats, line: float) -> None:
    """Fill the plane with the probability, and draw the line on which both classes are equally probable, if any."""
    (left, bottom), (right, top) = grid[0, 0], grid[-1, -1]
    # A pixel lies around its place, so that the outermost reach half a pixel over the edge.
    dx, dy = (grid[1, 1] - grid[0, 0]) / 2
    extent = (left - dx, right + dx, bottom - dy, top + dy)
    axes.imshow(probability, CERTAINTY, vmin=0, vmax=1, origin="lower", extent=extent, interpolation="none")
    if probability.min() < 0.5 < probability.max():
        axes.contour(*np.moveaxis(grid, -1, 0), probability, levels=[0.5], colors=DARK, linewidths=line, zorder=3)


def _dots(places: Floats, colour: str, width: float) -> PathPatch:
    """One line of no length per dot, with round ends: a tenth of the text that as many circles take."""
    path = Path(places.repeat(2, axis=0), [Path.MOVETO, Path.LINETO] * len(places))
    path.should_simplify = False
    return PathPatch(path, facecolor="none", edgecolor=colour, linewidth=width, capstyle="round", alpha=0.85, zorder=2)


def _compact(svg: str) -> str:
    """A tenth of a point is finer than a screen shows, and the background is a smooth one, not a mosaic."""
    svg = re.sub(r' style="image-rendering[^"]*"', "", svg)
    return re.sub(r'(?<= d=")[^"]*', _short_path, svg)


def _short_path(match: re.Match[str]) -> str:
    path = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), match[0])
    return re.sub(r"M (\S+) (\S+) ?\nL \1 \2 ?\n", r"M\1 \2h0", path)
