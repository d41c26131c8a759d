"""Folders of fits and runs -> their pages."""

import json
import re
from pathlib import Path

import pytest

from fit_example import NO_PLOTS, fit_example
from meanteacher.cli.report import write_report
from meanteacher.records import WORK_FILE
from meanteacher.report import RecordError, load_record, render_page

CLAIM = {"error": 4.35, "spread": 0.5, "where": "Table 1"}


@pytest.fixture
def place(content, tmp_path):
    """Write a run into a folder below the test's own."""

    def place(folder, method="mean-teacher", seed=0, claim=None, **changes):
        record = content(method, seed, **changes)
        record["recipe"]["claim"] = claim
        path = tmp_path / folder / "record.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(record))
        return path

    return place


@pytest.fixture
def fit(tmp_path):
    """The folder of a fit, with runs of its own."""

    def fit(name, finished=True):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / WORK_FILE).write_text("{}")
        if finished:
            (folder / "fit.json").write_text(json.dumps(fit_example(folder="/gone", **NO_PLOTS)))
        return folder

    return fit


def words(path):
    """Of the page, without its style."""
    html = re.sub(r"<style>.*?</style>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", html).replace("&nbsp;", " ").split())


def write_both_methods(place, folder, n_seeds=3, **changes):
    for method, error in (("supervised", 0.12), ("mean-teacher", 0.06)):
        for seed in range(n_seeds):
            errors = {"student": error + 0.01 * seed, "teacher": error + 0.01 * seed}
            place(f"{folder}/{method}/seed-{seed}", method, seed, **errors, **changes)


def test_the_runs_below_a_folder_make_one_page_in_it(place, tmp_path: Path):
    write_both_methods(place, "runs")
    assert write_report([tmp_path / "runs"]) == [tmp_path / "runs" / "report.html"]
    text = words(tmp_path / "runs" / "report.html")
    assert text.startswith("runs runs With 40 labels, the test error is 7.0 % with Mean Teacher")
    assert "Supervised-only 13.0 ± 1.0 13.0 ± 1.0 – 3 " in text
    assert "Mean Teacher 7.0 ± 1.0 7.0 ± 1.0 −6.0 ± 0.0 3 " in text


def test_a_single_run_makes_a_page(place, tmp_path: Path):
    place("run")
    assert "the test error is 8.0 % with Mean Teacher" in words(*write_report([tmp_path / "run"]))


def test_the_paper_s_error_stands_beside_the_recipe_s_own(place, tmp_path: Path):
    place("runs/a", "supervised", claim=CLAIM | {"error": 27.77, "spread": None}, recipe="table1/svhn/supervised")
    place("runs/b", "mean-teacher", claim=CLAIM, recipe="table1/svhn/mean-teacher")
    place("runs/c", "pi-model", recipe="table1/svhn/pi-model+steps=3")
    text = words(*write_report([tmp_path / "runs"]))
    assert "Method Student Teacher Paper Difference Runs" in text
    assert "Supervised-only 12.0 8.0 27.77 – 1 " in text
    assert "Mean Teacher 12.0 8.0 4.35 ± 0.50 0.0 1 " in text
    assert "Pi model 12.0 8.0 – 0.0 1 " in text
    assert "“Paper” is what Table 1 of the paper reports." in text
    assert "the dotted bar is the paper’s error" in text


def test_without_a_claim_the_paper_is_not_mentioned(place, tmp_path: Path):
    place("runs/a")
    text = words(*write_report([tmp_path / "runs"]))
    assert "Paper" not in text
    assert "the paper" not in text


def test_each_data_set_has_the_claims_of_its_own_recipes(place, tmp_path: Path):
    place("runs/a", n_labelled=40, recipe="table1/a", claim=CLAIM)
    place("runs/b", n_labelled=100, recipe="table2/b", claim=CLAIM | {"error": 6.28, "where": "Table 2"})
    few, many = words(*write_report([tmp_path / "runs"])).split("table2/b · 100 labels")[:2]
    assert "4.35 ± 0.50" in few.split("table1/a · 40 labels")[1]
    assert "6.28" not in few
    assert "6.28 ± 0.50" in many.split("Health checks")[0]
    assert "4.35" not in many.split("Health checks")[0]


def test_the_paper_s_error_is_drawn_where_the_axis_says(run, content, write):
    def dotted(claim):
        record = content()
        record["recipe"]["claim"] = claim
        return re.findall(
            r'<path d="M ([\d.]+)[^"]*"[^>]*stroke-dasharray: 1\.5', render_page([load_record(write(record))], "x")
        )

    assert dotted(None) == []
    (near,), (far,) = dotted(CLAIM), dotted(CLAIM | {"error": 7.5})
    assert float(near) < float(far)


def test_a_claim_about_the_top_5_error_stands_beside_the_top_5_errors_and_not_on_the_axis(content, write):
    def page(claim, **top5):
        record = content()
        record["recipe"]["claim"] = claim
        for model, error in top5.items():
            record["errors"]["last"][model]["test_top5"] = error
        return render_page([load_record(write(record))], "x")

    html = page(CLAIM | {"metric": "top-5 error"}, student=0.031, teacher=0.022)
    table = html[html.index('<table class="errors">') : html.index("</table>")]
    cells = [re.sub(r"<[^>]*>|&nbsp;", " ", cell).split() for cell in re.findall(r"<t[hd].*?</t[hd]>", table)]
    rows = [" ".join(cell) for cell in cells]
    heads, line = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    shown = dict(zip(heads, line, strict=True))
    assert (shown["Student, top-5"], shown["Teacher, top-5"]) == ("3.1", "2.2")
    assert (shown["Teacher"], shown["Paper"]) == ("8.0", "4.35 ± 0.50 (top-5)")
    assert "five most probable" in html
    assert "stroke-dasharray: 1.5" not in html
    assert "dotted bar" not in html
    plain = page(CLAIM)
    assert "top-5" not in plain.lower()
    assert "dotted bar" in plain


def test_how_a_recipe_deviates_from_the_paper_is_told_beside_its_claim(content, write):
    record = content()
    record["recipe"] |= {"claim": CLAIM, "deviations": ["A smaller <network>."]}
    html = render_page([load_record(write(record))], "x")
    section = html[html.index("How these recipes deviate from the paper") :]
    assert section.index("A smaller &lt;network&gt;.") < section.index("Every label draw")
    record["recipe"]["claim"] = None
    assert "How these recipes deviate" not in render_page([load_record(write(record | {"seed": 1}))], "x")


@pytest.mark.parametrize(
    ("claim", "wrong"),
    [
        ({"error": "4.35"}, r"Expected `float`, got `str` - at `\$.recipe.claim.error`"),
        ({"spread": -1}, r"Expected `float` >= 0.0 - at `\$.recipe.claim.spread`"),
        ({"where": ""}, r"Expected `str` of length >= 1 - at `\$.recipe.claim.where`"),
        ({"metric": "top-1"}, r"Invalid enum value 'top-1' - at `\$.recipe.claim.metric`"),
    ],
)
def test_a_claim_that_is_wrong_is_refused_by_name(place, claim, wrong):
    with pytest.raises(RecordError, match=wrong):
        load_record(place("runs/a", claim=CLAIM | claim))


def test_runs_of_several_folders_make_one_page_in_the_current_one(place, tmp_path: Path, monkeypatch):
    write_both_methods(place, "one")
    place("two/deep/er", "pi-model", 1)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert write_report([tmp_path / "one", "../two"]) == [Path("report.html")]
    text = words(tmp_path / "here" / "report.html")
    assert text.startswith("one and two ")
    assert "3 recipes · 7 runs" in text


def test_a_run_below_two_of_the_folders_counts_once(place, tmp_path: Path):
    write_both_methods(place, "runs")
    out = tmp_path / "page.html"
    assert write_report([tmp_path / "runs", tmp_path / "runs" / "supervised"], out) == [out]
    assert "2 recipes · 6 runs" in words(out)


def test_the_page_goes_where_it_is_wanted(place, tmp_path: Path):
    place("runs/a")
    assert write_report([tmp_path / "runs"], tmp_path / "new" / "x.html") == [tmp_path / "new" / "x.html"]
    assert write_report([tmp_path / "runs"], tmp_path / "new") == [tmp_path / "new" / "report.html"]
    assert not (tmp_path / "runs" / "report.html").exists()


def test_fits_and_runs_together_each_get_their_page(place, fit, tmp_path: Path):
    write_both_methods(place, "runs")
    fits = [fit("a fit"), fit("another")]
    written = write_report([fits[0], tmp_path / "runs", fits[1]])
    assert {path.relative_to(tmp_path).as_posix() for path in written} == {
        *("a fit/report.html", "a fit/MODEL_CARD.md", "another/report.html", "another/MODEL_CARD.md"),
        "runs/report.html",
    }
    assert "A classifier for forest-finds" in words(fits[0] / "report.html")
    assert f"meanteacher predict {fits[1]} OTHER" in words(fits[1] / "report.html")
    assert "2 recipes · 6 runs" in words(tmp_path / "runs" / "report.html")


def test_the_runs_inside_a_fit_are_not_an_experiment(place, fit, tmp_path: Path):
    place("work/fit/runs/fold-0", seed=5)
    place("work/half/runs/fold-0", seed=6)
    place("work/run", seed=7)
    (tmp_path / "work" / "fit" / "fit.json").write_text(json.dumps(fit_example()))
    (tmp_path / "work" / "half" / WORK_FILE).write_text("{}")
    assert "1 recipe · 1 run ·" in words(*write_report([tmp_path / "work"]))


def test_a_folder_that_holds_only_a_fit_deeper_down_says_where(place, fit, tmp_path: Path):
    place("work/fit/runs/fold-0")
    (tmp_path / "work" / "fit" / "fit.json").write_text("{}")
    with pytest.raises(RecordError, match=rf"There is a fit in {tmp_path / 'work' / 'fit'}: give that folder"):
        write_report([tmp_path / "work"])


@pytest.mark.parametrize("started", [True, False])
def test_a_folder_without_a_complete_run_says_what_to_do(tmp_path: Path, started: bool):
    (tmp_path / "runs" / "seed-0").mkdir(parents=True)
    if started:
        (tmp_path / "runs" / "seed-0" / "run.json").write_text("{}")
    with pytest.raises(RecordError, match="--resume" if started else "Run a recipe into this folder first"):
        write_report([tmp_path / "runs"])
    assert list((tmp_path / "runs").rglob("*.html")) == []


def test_a_fit_that_is_not_complete_is_not_reported(fit):
    with pytest.raises(RecordError, match=r"a fit that is not complete. Finish it with: meanteacher fit"):
        write_report([fit("half", finished=False)])


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": 99}'])
def test_a_fit_that_cannot_be_read_is_refused(fit, content):
    folder = fit("a fit")
    (folder / "fit.json").write_text(content)
    with pytest.raises(
        RecordError, match=r"holds no finished fit \(.*fit.json: .*\). Give the folder of one, or fit again"
    ):
        write_report([folder])
    assert not (folder / "report.html").exists()


def test_nothing_is_written_where_one_of_the_folders_is_wrong(place, fit, tmp_path: Path):
    place("runs/a")
    folder = fit("a fit")
    with pytest.raises(RecordError, match="missing: is not a folder"):
        write_report([folder, tmp_path / "runs", tmp_path / "missing"])
    assert not (folder / "report.html").exists()
    assert not (tmp_path / "runs" / "report.html").exists()


def test_a_page_for_runs_is_not_promised_where_there_are_only_fits(fit, tmp_path: Path):
    with pytest.raises(RecordError, match=r"x.html: the report of a fit is written into its own folder"):
        write_report([fit("a fit")], tmp_path / "x.html")


def test_the_committed_records_make_pages(tmp_path: Path):
    records = Path(__file__).parents[2] / "docs" / "records"
    text = words(*write_report([records / "demo", records / "fast"], tmp_path / "x.html"))
    assert "moons · 6 labels" in text
    assert "fast/svhn-500 · 500 labels" in text
