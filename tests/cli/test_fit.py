"""What a person sees of a fit in the terminal, and of its pages written again."""

import json
from html import unescape
from pathlib import Path

from typer.testing import CliRunner

from fit_example import NO_PLOTS, fit_example
from meanteacher.cli.app import app


def _written(folder: Path) -> Path:
    """A folder with the fit.json of a fit that was made elsewhere."""
    folder.mkdir()
    fit = fit_example(folder="/gone/fit", **NO_PLOTS)
    (folder / "fit.json").write_text(json.dumps(fit))
    return folder


def test_pages_written_again_name_the_folder_where_it_is_now(tmp_path: Path):
    folder = _written(tmp_path / "a fit")
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["report", str(folder)])
    assert done.exit_code == 0, done.output
    page = unescape((folder / "report.html").read_text())
    assert f"meanteacher export '{folder.resolve()}' --onnx" in page
    assert "/gone/fit" not in page
    assert json.loads((folder / "fit.json").read_text())["folder"] == "/gone/fit"


def test_report_of_runs_is_one_page_and_a_folder_without_any_is_refused(tmp_path: Path):
    records = Path(__file__).parents[2] / "docs" / "records"
    out = tmp_path / "page.html"
    runner = CliRunner(env={"COLUMNS": "200"})
    done = runner.invoke(app, ["report", str(records / "demo"), str(records / "fast"), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert f"Written: {out}" in done.output
    assert "demo and fast" in out.read_text()
    failed = runner.invoke(app, ["report", str(tmp_path)])
    assert failed.exit_code == 2
    assert "no record.json below it" in failed.output
