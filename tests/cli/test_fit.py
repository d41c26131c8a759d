"""What a person sees of a fit in the terminal, and of its pages written again."""

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fit_example import NO_PLOTS, as_fit, fit_example
from meanteacher.cli.app import app
from meanteacher.photos.fitting.answer import answer, estimate
from meanteacher.records import Fit


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


def test_the_terminal_and_the_page_say_the_same_numbers_in_the_same_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows = np.arange(1523)
    judged, gain = estimate("held-out", rows < 292, (rows >= 60) & (rows < 360))
    said = answer(judged, gain, shipped="mean-teacher", n_unlabelled=20_400)
    fitted = replace(as_fit(fit_example(**NO_PLOTS)), estimate=judged, answer=said)

    def run_fit(*given: Any, **options: Any) -> Fit:
        return fitted

    monkeypatch.setattr("meanteacher.photos.fitting.fit.run_fit", run_fit)
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["fit", "photos", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    shown = " ".join(done.output.split())
    for part in ("wrong on about 19.2 %", "95 % interval 17.3 to 21.2 %", "1,523 labelled images"):
        assert part in shown
    assert said.sentence in shown
    shares = re.findall(r"(\S+) ?%", shown.replace("95 % interval", ""))
    assert shares
    assert all(re.fullmatch(r"\d+\.\d", share) for share in shares), shares
