import re
import xml.etree.ElementTree as ET

import matplotlib as mpl
import pytest

from meanteacher.report import dot_plot, learning_curves
from meanteacher.report.figures import curve

BOTH = pytest.mark.parametrize("draw", [learning_curves, dot_plot])


def point(step, student, teacher, part="test"):
    return {"step": step, "part": part, "student": student, "teacher": teacher}


def texts(svg):
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter() if element.tag.endswith("}text")]


@pytest.fixture
def records(run):
    return [
        run(method, seed, student=error, teacher=error - 0.001 * seed)
        for method, error in (("supervised", 0.1), ("pi-model", 0.07), ("mean-teacher", 0.05))
        for seed in range(3)
    ]


@BOTH
def test_a_figure_is_one_well_formed_svg_element(draw, records):
    root = ET.fromstring(draw(records))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.get("role") == "img"
    assert "Supervised-only, Pi model, Mean Teacher" in root.get("aria-label")


@BOTH
def test_a_figure_takes_the_width_of_its_place(draw, records):
    root = ET.fromstring(draw(records))
    assert root.get("width") is None
    assert root.get("height") is None
    assert root.get("viewBox")


@BOTH
def test_the_same_records_draw_the_same_figure(draw, records):
    assert draw(records) == draw(records)


@BOTH
def test_a_figure_holds_no_date(draw, records):
    svg = draw(records)
    assert "<metadata" not in svg
    assert not re.search(r"20\d\d-\d\d-\d\d", svg)


@BOTH
def test_names_stay_text_in_the_colour_of_the_page(draw, records):
    svg = draw(records)
    assert {"Supervised-only", "Pi model", "Mean Teacher"} <= set(texts(svg))
    assert "currentColor" in svg
    assert not re.search(r"#000000|#010203|#ffffff", svg)


@BOTH
def test_every_method_keeps_its_colour_in_every_figure(draw, records):
    svg = draw(records)
    for property_ in ("var(--series-1, #6b7280)", "var(--series-2, #d55e00)", "var(--series-3, #0072b2)"):
        assert property_ in svg
    alone = draw([record for record in records if record.method == "mean-teacher"])
    assert "--series-3" in alone
    assert "--series-1" not in alone


@BOTH
def test_a_hostile_name_is_drawn_as_it_is(draw, run):
    svg = draw([run("<script>$x_{$</script>", seed) for seed in range(2)])
    assert "<script" not in svg
    # A long name may be broken into lines.
    assert "<script>$x_{$</script>" in "".join(texts(svg))


@BOTH
def test_drawing_leaves_the_settings_of_matplotlib_alone(draw, records):
    with mpl.rc_context({"font.size": 33.0, "axes.grid": True}):
        before = dict(mpl.rcParams)
        svg = draw(records)
        assert dict(mpl.rcParams) == before
    assert svg == draw(records)


def test_a_curve_holds_only_the_steps_that_all_runs_evaluated(run):
    runs = [
        run(seed=0, curve=[point(0, 0.9, 0.8), point(100, 0.5, 0.4), point(200, 0.3, 0.2)]),
        run(seed=1, curve=[point(0, 0.7, 0.6), point(200, 0.1, 0.1), point(200, 0.5, 0.5, "validation")]),
    ]
    found = curve(runs, "test", "teacher")
    assert list(found) == [0, 200]
    assert found[0] == pytest.approx([80, 60])
    assert found[200] == pytest.approx([20, 10])


@pytest.mark.parametrize("other", [(0.12, 0.18, 0.30), (0.10, 0.22, 0.28)])
def test_the_band_reaches_from_the_lowest_run_to_the_highest(run, other):
    def drawn(*errors):
        return learning_curves(
            [run(seed=i, curve=[point(0, 0.4, 0.4), point(600, e, e)]) for i, e in enumerate(errors)]
        )

    # The mean is the same, and either the lowest or the highest is.
    assert drawn(0.10, 0.20, 0.30) != drawn(*other)
    assert drawn(0.10, 0.20, 0.20, 0.30) == drawn(0.10, 0.15, 0.25, 0.30)


def n_dashed(svg):
    return len(re.findall(r"stroke-dasharray: \d", svg))


def test_the_student_is_dashed_where_it_is_another_network(run):
    curve = [point(0, 0.9, 0.8), point(600, 0.12, 0.08)]
    same = [point(0, 0.9, 0.9), point(600, 0.12, 0.12)]
    both = learning_curves([run(curve=curve)])
    # One curve and one entry of the legend.
    assert n_dashed(both) == 2
    assert {"student", "teacher"} <= set(texts(both))
    assert n_dashed(learning_curves([run(curve=same)])) == 0


def test_errors_that_fall_by_a_factor_of_five_are_drawn_on_a_logarithmic_axis(run):
    assert "50" in texts(learning_curves([run(curve=[point(0, 0.9, 0.9), point(600, 0.05, 0.05)])]))
    linear = texts(learning_curves([run(curve=[point(0, 0.09, 0.09), point(600, 0.05, 0.05)])]))
    assert {"0", "2", "4", "6", "8"} <= set(linear)


def test_an_error_of_zero_can_be_drawn(run):
    svg = learning_curves([run(student=0.0, teacher=0.0, curve=[point(0, 0.9, 0.9), point(600, 0.0, 0.0)])])
    assert "80" in texts(svg)


def n_joining_lines(svg):
    return len(re.findall(r'<path d="M [\d. ]+\nL [\d. ]+\n" clip-path[^>]*stroke-opacity: 0\.25', svg))


def test_a_line_joins_the_runs_on_the_same_labelled_set(run):
    records = [run("supervised", 0), run("supervised", 1), run("mean-teacher", 1), run("mean-teacher", 2)]
    assert n_joining_lines(dot_plot(records)) == 1
    assert n_joining_lines(dot_plot([*records, run("mean-teacher", 0)])) == 2


def test_every_run_is_a_dot(records):
    assert dot_plot(records).count("<use ") - dot_plot(records[:-1]).count("<use ") == 1


def test_the_dot_plot_writes_the_means(records):
    # Mean Teacher's errors are 5.0, 4.9 and 4.8 percent.
    assert {"9.9", "6.9", "4.9"} <= set(texts(dot_plot(records)))
