import struct
import xml.etree.ElementTree as ET

import pytest

from meanteacher.paper.figures import as_files, describe_curves, draw_curves, draw_settings

TITLE, CAPTION = "Figure 9 of the paper: a title", "Laptop version: 6,000 steps."
EVALUATION = ("decay", "0.99")


def point(step, student, teacher, costs=None, part="test"):
    found = {"step": step, "part": part, "student": student, "teacher": teacher}
    return found | (dict(zip(("student_cost", "teacher_cost"), costs, strict=True)) if costs else {})


@pytest.fixture
def curves(run):
    def with_costs(method, seed):
        shift = 0.1 * seed
        return run(
            method,
            seed,
            curve=[point(100, 0.5, 0.4, (2.0 + shift, 1.5)), point(200, 0.2, 0.1 + shift, (0.5 + shift, 0.3))],
        )

    runs = {"Pi model": "pi-model", "Mean Teacher": "mean-teacher"}
    setting = {label: [with_costs(method, seed) for seed in (0, 1)] for label, method in runs.items()}
    return {"all labels": setting, "500 labels": setting, "extra": setting}


@pytest.fixture
def settings(run):
    def validated(seed, error):
        last = {
            "step": 600,
            "student": {"test": 0.9, "validation": 0.8},
            "teacher": {"test": 0.7, "validation": error},
        }
        return run(seed=seed, errors={"last": last, "best_validation": None})

    return {
        "decay": {
            "0.9": [validated(seed, error) for seed, error in enumerate((0.3, 0.4))],
            "0.99": [validated(seed, error) for seed, error in enumerate((0.1, 0.2, 0.3))],
            "0.999": [],
        }
    }


def data(line):
    return [pytest.approx(list(values)) for values in line.get_data()]


def texts(svg):
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter() if element.tag.endswith("}text")]


def test_figure_3_has_costs_above_and_errors_below(curves):
    figure = draw_curves(curves, TITLE, "")
    assert len(figure.axes) == 6
    above, below = figure.axes[:3], figure.axes[3:]
    # Costs span a factor of seven, errors of three.
    assert [{axes.get_yscale() for axes in row} for row in (above, below)] == [{"log"}, {"linear"}]
    assert [axes.get_title(loc="left") for axes in above] == list(curves)
    assert "cost" in above[0].get_ylabel()
    assert "error" in below[0].get_ylabel()


def test_curves_are_the_means_over_the_runs_of_student_and_teacher(curves):
    figure = draw_curves(curves, TITLE, "")
    # Order: Pi model's teacher and student, Mean Teacher's teacher and student.
    costs, errors = ([data(line) for line in figure.axes[i].get_lines()] for i in (0, 3))
    assert costs == [[[100, 200], [1.5, 0.3]], [[100, 200], [2.05, 0.55]]] * 2
    assert errors == [[[100, 200], [40, 15]], [[100, 200], [50, 20]]] * 2


def test_methods_and_networks_can_be_told_apart(curves):
    lines = draw_curves(curves, TITLE, "").axes[0].get_lines()
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 4
    (legend,) = draw_curves(curves, TITLE, "").legends
    assert [text.get_text() for text in legend.get_texts()] == [
        f"{label}, {network}" for label in ("Pi model", "Mean Teacher") for network in ("average", "student")
    ]


def test_baseline_is_drawn_by_its_average_alone(curves, run):
    curves["all labels"]["Supervised-only"] = [run("supervised", 0, curve=[point(100, 0.5, 0.4, (2.0, 1.5))])]
    figure = draw_curves({"all labels": curves["all labels"]}, TITLE, "")
    assert [len(axes.get_lines()) for axes in figure.axes] == [5, 5]
    assert figure.legends[0].get_texts()[-1].get_text() == "Supervised-only, average"


def runs_with(run, method, curves):
    """One run per curve: the errors of the average after 100, 200, ... steps."""
    return [
        run(
            method,
            seed,
            n_test=1000,
            curve=[point(100 * (i + 1), 0.9, error) for i, error in enumerate(errors)],
            errors={
                "last": {
                    "step": 100 * len(errors),
                    "student": {"test": 0.9, "validation": None},
                    "teacher": {"test": errors[-1], "validation": None},
                },
                "best_validation": None,
            },
        )
        for seed, errors in enumerate(curves)
    ]


def test_curves_are_described_by_difference_crossing_and_the_others_best_step(run):
    # Means of the Pi model: 30, 20, 22, 24; of Mean Teacher: 40, 19, 23, 20. Differences at the end: -3, -4, -5.
    pi = runs_with(run, "pi-model", [(0.3, 0.2, 0.22, 0.23), (0.3, 0.2, 0.22, 0.24), (0.3, 0.2, 0.22, 0.25)])
    ours = runs_with(run, "mean-teacher", [(0.4, 0.19, 0.23, 0.20)] * 3)
    (found,) = describe_curves({"SVHN": {"Pi model": pi, "Mean Teacher": ours}, "empty": {"Pi model": pi}})
    assert found == (
        "SVHN: Mean Teacher minus Pi model is −4.0 (−6.5 to −1.5) points at the end (95 % interval, paired by 3 label "
        "draws). "
        "Mean Teacher is below from step 400 on. The Pi model is lowest after 200 of 400 steps, at 20.0 %, and ends at "
        "24.0 %."
    )


def test_curve_that_ends_above_crosses_nowhere_and_one_that_is_always_below_at_its_first_step(run):
    low, high = ([(0.1, 0.2)] * 3, [(0.2, 0.3)] * 3)
    for ours, pi, words in ((high, low, "is not below at the end."), (low, high, "is below from step 100 on.")):
        curves = {"Pi model": runs_with(run, "pi-model", pi), "Mean Teacher": runs_with(run, "mean-teacher", ours)}
        assert f"Mean Teacher {words}" in describe_curves({"SVHN": curves})[0]


def test_curves_of_label_draws_that_only_one_system_ran_are_left_out(run):
    pi = runs_with(run, "pi-model", [(0.3, 0.2), (0.3, 0.2)])
    ours = runs_with(run, "mean-teacher", [(0.4, 0.1), (0.4, 0.1), (0.0, 0.0)])
    (found,) = describe_curves({"SVHN": {"Pi model": pi, "Mean Teacher": ours}})
    assert "−10.0 (−10.0 to −10.0) points at the end (95 % interval, paired by 2 label draws)" in found
    assert "is below from step 200 on" in found


def test_step_that_not_all_runs_reached_and_costs_that_were_not_recorded_are_left_out(run):
    runs = [
        run("mean-teacher", 0, curve=[point(100, 0.5, 0.4, (2.0, 1.5)), point(200, 0.2, 0.1, (1.0, 0.5))]),
        run("mean-teacher", 1, curve=[point(100, 0.5, 0.4, (2.0, 1.5)), point(200, 0.2, 0.1)]),
    ]
    figure = draw_curves({"panel": {"Mean Teacher": runs}}, TITLE, "")
    above, below = figure.axes
    assert [list(line.get_xdata()) for line in above.get_lines()] == [[100], [100]]
    assert [list(line.get_xdata()) for line in below.get_lines()] == [[100, 200]] * 2


def test_figure_4_has_one_dot_per_run_and_a_line_through_the_means(settings):
    (axes,) = draw_settings(settings, TITLE, "", evaluation=("decay", "0.999")).axes
    dots, line = axes.get_lines()
    assert data(dots) == [[0, 0, 1, 1, 1], [30, 40, 10, 20, 30]]
    assert dots.get_linestyle() == "None"
    assert data(line) == [[0, 1], [35, 20]]
    assert axes.get_ylim()[0] == 0
    assert "alidation error" in axes.get_ylabel()
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.9", "0.99", "0.999"]


def test_setting_of_the_evaluation_runs_has_a_ring(settings):
    drawn = draw_settings(settings, TITLE, "", evaluation=EVALUATION)
    *_, ring = drawn.axes[0].get_lines()
    assert data(ring) == [[1], [20]]
    assert ring.get_markerfacecolor() == "none"
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["setting of table 1"]


def test_panels_of_figure_4_are_lines_over_the_same_settings(settings):
    more = {"0.99": settings["decay"]["0.9"], "0.5": settings["decay"]["0.99"]}
    drawn = draw_settings({**settings, "without": more}, TITLE, "", evaluation=("without", "0.99"))
    (axes,) = drawn.axes
    _, line, _, other, ring = axes.get_lines()
    assert [data(each) for each in (line, other, ring)] == [[[0, 1], [35, 20]], [[1, 3], [35, 20]], [[1], [35]]]
    assert line.get_color() != other.get_color()
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.9", "0.99", "0.999", "0.5"]
    legend = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert legend == ["decay", "without", "setting of table 1"]


@pytest.mark.parametrize("kind", ["curves", "settings"])
def test_both_files_are_images_with_title_and_caption(kind, curves, settings):
    drawn = (
        draw_curves(curves, TITLE, CAPTION)
        if kind == "curves"
        else draw_settings({**settings, "without": settings["decay"]}, TITLE, CAPTION, evaluation=EVALUATION)
    )
    files = as_files(drawn, TITLE)
    assert set(files) == {"svg", "png"}
    assert ET.fromstring(files["svg"]).tag == "{http://www.w3.org/2000/svg}svg"
    written = " ".join(" ".join(texts(files["svg"])).split())
    assert TITLE in written
    assert CAPTION in written
    assert files["png"].startswith(b"\x89PNG")
    width, height = struct.unpack(">II", files["png"][16:24])
    assert min(width, height) > 300


def test_figures_without_any_run_are_drawn_empty():
    nothing = {"a panel": {"Pi model": [], "Mean Teacher": []}}
    for drawn in (
        draw_curves(nothing, TITLE, ""),
        draw_settings(nothing, TITLE, "", evaluation=("a panel", "Pi model")),
    ):
        assert as_files(drawn, TITLE)["png"]
    for drawn in (draw_curves({}, TITLE, ""),):
        assert as_files(drawn, TITLE)["svg"]


def test_numbers_of_a_log_axis_are_plain(curves):
    svg = as_files(draw_curves(curves, TITLE, ""), TITLE)["svg"].decode()
    assert "mathdefault" not in svg
    assert {"0.5", "1", "2"} <= set(texts(svg))


def test_error_of_zero_does_not_break_the_log_axis(run):
    runs = [run(curve=[point(100, 0.5, 0.4, (1.0, 0.1)), point(200, 0.0, 0.0, (0.0, 0.0))])]
    assert as_files(draw_curves({"panel": {"Mean Teacher": runs}}, TITLE, ""), TITLE)["svg"]


def test_the_same_runs_give_the_same_bytes(settings):
    first, again = (as_files(draw_settings(settings, TITLE, CAPTION, evaluation=EVALUATION), TITLE) for _ in range(2))
    assert first["svg"] == again["svg"]


def test_hostile_title_is_text(settings):
    hostile = "<script>alert(1)</script>"
    svg = as_files(
        draw_settings({hostile: settings["decay"]}, hostile, hostile, evaluation=(hostile, "0.99")), hostile
    )["svg"]
    assert b"<script" not in svg
    ET.fromstring(svg)
