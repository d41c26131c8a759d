"""A matplotlib figure as SVG that lives inside a page: its text colour, its palette, its width."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib as mpl
from markupsafe import escape
from matplotlib.figure import Figure

INK = "#010203"
"""Drawn in this colour, a line or a text takes the colour of the text around the figure."""

PALETTE = {
    "supervised": "#6b7280",
    "pi-model": "#d55e00",
    "mean-teacher": "#0072b2",
}
"""Colours that stay apart for colour-blind readers (Okabe and Ito's, with grey for the baseline)."""

OTHERS = ("#009e73", "#cc79a7", "#b8860b", "#56b4e9")

COLOURS = (*PALETTE.values(), *OTHERS)


def page_colour(colour: str) -> str:
    """The custom property a page sets for a colour, with the colour itself where it sets none.

    >>> page_colour("#0072b2")
    'var(--series-3, #0072b2)'
    """
    return f"var(--series-{1 + COLOURS.index(colour)}, {colour})"


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the style of the pages, whatever the reader's own matplotlib settings are."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(
            {
                "svg.fonttype": "none",
                # A dollar sign in a name is a dollar sign.
                "text.parse_math": False,
                "font.family": "sans-serif",
                "font.sans-serif": ["DejaVu Sans"],
                "font.size": 9.0,
                "text.color": INK,
                "axes.edgecolor": INK,
                "axes.labelcolor": INK,
                "xtick.color": INK,
                "ytick.color": INK,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.linewidth": 0.6,
                "xtick.major.width": 0.6,
                "ytick.major.width": 0.6,
            }
        )
        yield


def to_svg(figure: Figure, description: str) -> str:
    """The figure as one `<svg>` element: the same figure always gives the same text.

    Colours become custom properties, so that a page can lighten them in dark mode and the element still
    stands alone.
    """
    out = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    # Salted by the description: the ids of two figures in one page must differ.
    with mpl.rc_context({"svg.hashsalt": description}):
        figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    # Names of groups repeat from figure to figure, and nothing refers to them.
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(description)}"', 1)
    svg = svg.replace(INK, "currentColor")
    for colour in COLOURS:
        svg = svg.replace(colour, page_colour(colour))
    return svg.strip() + "\n"
