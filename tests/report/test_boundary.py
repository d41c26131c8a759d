import base64
import io
import re
import xml.etree.ElementTree as ET

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from meanteacher.report.boundary import POINTS, Points, Window, draw_boundary, draw_growth

SVG = "{http://www.w3.org/2000/svg}"
WINDOW = Window(left=0.0, right=4.0, bottom=0.0, top=2.0)
TESTED = Points(np.array([[1.0, 0.5], [3.0, 1.5], [2.0, 1.0]]), np.array([0, 1, 1]))
LABELLED = Points(np.array([[0.5, 0.5], [3.5, 0.5], [3.5, 1.5]]), np.array([0, 1, 1]))


def picture(probability=None, points=TESTED, labelled=LABELLED, description="a picture"):
    probability = to_the_right() if probability is None else probability
    return draw_boundary(WINDOW, probability, points, labelled, description)


def to_the_right():
    """The further to the right, the more probable is class 1."""
    return WINDOW.grid()[..., 0] / 4


def paths(svg, *, stroke):
    return [path for path in ET.fromstring(svg).iter(f"{SVG}path") if f"stroke: {stroke}" in path.get("style", "")]


def dots(svg, label):
    (path,) = paths(svg, stroke=POINTS[label])
    return [tuple(map(float, dot.split())) for dot in re.findall(r"M([^h]+)h0", path.get("d"))]


def background(svg):
    """Its pixels as they appear from the top of the page down, as numbers [rows, columns, rgb]."""
    (image,) = ET.fromstring(svg).iter(f"{SVG}image")
    content = image.get("{http://www.w3.org/1999/xlink}href").partition("base64,")[2]
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))).convert("RGB")).astype(int)
    return pixels[::-1] if placement(image)[3] < 0 else pixels


def placement(image):
    """The six numbers that take a column and a row of pixels to a place on the page."""
    (numbers,) = re.findall(r"matrix\((.*)\)", image.get("transform"))
    return [float(number) for number in numbers.split()]


def is_blue(rgb):
    return rgb[2] > rgb[0]


def test_a_picture_is_one_svg_element_that_says_what_it_shows():
    root = ET.fromstring(picture(description='Pi & "Gamma"'))
    assert root.tag == f"{SVG}svg"
    assert root.get("role") == "img"
    assert root.get("aria-label") == 'Pi & "Gamma"'


def test_the_same_arrays_draw_the_same_picture_whatever_the_readers_settings():
    with mpl.rc_context({"savefig.bbox": "tight", "lines.antialiased": False}):
        theirs = picture()
    assert theirs == picture()


def test_every_point_is_a_dot_at_its_place_in_the_colour_of_its_class():
    width, height = 302.4, 151.2
    assert dots(picture(), 0) == [(width / 4, 113.4)]  # a quarter of the height from the bottom
    assert dots(picture(), 1) == [(226.8, 37.8), (width / 2, height / 2)]


def test_the_background_is_the_probability_the_right_way_up():
    right = background(picture(to_the_right()))
    assert not is_blue(right[50, 5])
    assert is_blue(right[50, -5])
    upwards = background(picture(WINDOW.grid()[..., 1] / 2))
    assert is_blue(upwards[5, 50])
    assert not is_blue(upwards[-5, 50])


def test_the_outermost_pixels_lie_around_the_edges():
    (image,) = ET.fromstring(picture()).iter(f"{SVG}image")
    a, _, _, d, e, f = placement(image)
    assert [a * 0.5 + e, a * 149.5 + e] == pytest.approx([0, 302.4], abs=1e-3)
    assert [d * 0.5 + f, d * 74.5 + f] == pytest.approx([151.2, 0], abs=1e-3)


def test_the_background_is_paler_where_the_network_cannot_tell():
    pixels = background(picture(to_the_right()))
    assert min(pixels[50, 75]) > max(min(pixels[50, 5]), min(pixels[50, -5])) + 50


def test_the_background_is_scaled_smoothly():
    assert "image-rendering" not in picture()


def test_the_line_is_where_both_classes_are_equally_probable():
    (line,) = paths(picture(to_the_right()), stroke="#1c1c1c")
    x = [float(x) for x in re.findall(r"[ML] (\S+) ", line.get("d"))]
    assert x == pytest.approx([151.2] * len(x), abs=0.1)


@pytest.mark.parametrize("certain", [0.0, 1.0])
def test_there_is_no_line_where_the_whole_plane_is_one_class(certain):
    assert not paths(picture(np.full((75, 150), certain)), stroke="#1c1c1c")


def test_labelled_points_differ_by_shape_as_well_as_by_colour():
    root = ET.fromstring(picture())
    shapes = {path.get("id"): path.get("d") for path in root.iter(f"{SVG}path") if path.get("id")}
    drawn = [
        [
            ("C" in shapes[use.get("{http://www.w3.org/1999/xlink}href")[1:]], float(use.get("x")))
            for use in root.iter(f"{SVG}use")
            if use.get("style") == f"fill: {colour}"
        ]
        for colour in POINTS
    ]
    assert drawn == [[(True, pytest.approx(37.8))], [(False, pytest.approx(264.6))] * 2]


def test_a_picture_does_not_depend_on_the_page_around_it():
    svg = picture()
    assert "currentColor" not in svg
    assert "var(" not in svg


def test_a_picture_of_a_thousand_points_is_small():
    draws = np.random.default_rng(0)
    grid = WINDOW.grid()
    wavy = 1 / (1 + np.exp(-5 * np.sin(3 * grid[..., 0]) * np.cos(2 * grid[..., 1])))
    points = Points(draws.uniform((0, 0), (4, 2), (1000, 2)), np.arange(1000) % 2)
    svg = picture(wavy, points)
    assert len(dots(svg, 0)) == len(dots(svg, 1)) == 500
    assert len(svg) < 46_000


def test_the_grid_goes_from_edge_to_edge_from_bottom_left():
    grid = WINDOW.grid(columns=5)
    assert grid.shape == (2, 5, 2)
    assert grid[0, 0].tolist() == [0, 0]
    assert grid[0, -1].tolist() == [4, 0]
    assert grid[-1, 0].tolist() == [0, 2]


def test_a_window_holds_all_points_and_a_margin():
    around = Window.around(np.array([[1.0, 5.0], [3.0, -5.0]]), margin=0.5)
    assert around == Window(left=0.5, right=3.5, bottom=-5.5, top=5.5)


def test_probabilities_of_another_grid_are_refused():
    with pytest.raises(ValueError, match=r"shape \(150, 75\).*one probability per place of window.grid"):
        picture(to_the_right().T)


def test_growth_has_a_row_per_network_and_a_column_per_moment():
    late, early = to_the_right(), np.full((75, 150), 0.2)
    rows = {name: {"step 5": early, "step 10": late} for name in ("one", "two", "three")}
    svg = draw_growth(WINDOW, rows, TESTED, LABELLED, "growing")
    words = [text.text for text in ET.fromstring(svg).iter(f"{SVG}text")]
    assert sorted(words) == sorted(["step 5", "step 10", "one", "two", "three"])
    assert len(list(ET.fromstring(svg).iter(f"{SVG}image"))) == 6
    assert len(paths(svg, stroke="#1c1c1c")) == 3, "only the later ones have a boundary"
    with pytest.raises(ValueError, match="one probability per place"):
        draw_growth(WINDOW, {"one": {"step 5": early.T}}, TESTED, LABELLED, "growing")
