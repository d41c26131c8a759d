"""The bench measures what it says, on networks small enough for a test."""

import json
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks import images, shards, training
from benchmarks.__main__ import bench
from benchmarks.timing import interleaved
from meanteacher.core import InputError
from meanteacher.models import Conv13Spec

TINY = Conv13Spec(width=0.02)


def _announced(line: str) -> None:
    assert line


compare = partial(interleaved, rounds=2, announce=_announced)


def test_timed_step_is_the_one_every_run_makes():
    run = training.training(TINY, n_images=600)
    before = [p.clone() for p in run.state.memory.parameters()]
    step = run.state.step
    run.steps(3)
    assert run.state.step == step + 3
    assert any(not torch.equal(a, b) for a, b in zip(before, run.state.memory.parameters(), strict=True))
    assert run.vitals.alarms == []


def test_step_is_compared_with_its_limit():
    result = training.against_limit(compare, TINY, n_steps=1)
    assert result["step_by_limit"] > 0
    assert result["images_per_second"] == pytest.approx(100_000 / result["step_ms"], rel=0.01)


def test_plain_code_trains_too():
    result = training.against_plain(compare, TINY, n_steps=1)
    assert result["times_as_fast"] > 0
    assert set(result["plain_ms"]) == {"0 workers", "2 workers"}


def test_parts_have_rates():
    assert training.average(compare, TINY)["fused_ms"] > 0
    assert training.predict(compare, TINY, n_images=50)["images_per_second"] > 0
    assert all(view["times_as_fast"] > 0 for view in images.views(compare).values())


def test_files_are_decoded_cached_found_and_streamed():
    found = images.file_rates(compare, n_photos=120)
    rates = ("decoded", "decoded_by_pil", "cached", "found_in_cache", "streamed_from_memory", "streamed_from_disk")
    assert all(found[f"{rate}_per_second"] > 0 for rate in rates)


def test_shards_are_read_decoded_and_streamed():
    rates = shards.rates(compare, n_photos=20)
    assert all(value > 0 for value in rates.values())
    assert {"threads_per_second", "processes_per_second", "processes_by_threads"} < set(rates)
    streamed = shards.memory(n_images=400, n_shards=2)
    assert streamed is None or streamed["images_seen"] == 400


def test_peak_memory_is_that_of_the_child_however_much_its_parent_holds():
    held = b"x" * 2**30
    found = training.peak_memory({"tiny": TINY})
    assert 100 < found["import"] < found["tiny"] < len(held) / 2**20


def test_where_memory_cannot_be_measured_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(training, "_STATUS", tmp_path / "none")
    monkeypatch.setitem(sys.modules, "resource", None)
    bench(tmp_path / "bench.json", quick=True, only="memory/peak")
    assert "memory/peak-mb: cannot be measured on this system" in capsys.readouterr().out


def test_the_table_of_temporal_ensembling_grows_with_the_images():
    small, large = (training.table_memory(n_images=n, n_classes=10) for n in (1000, 3000))
    assert large["megabytes"] == pytest.approx(3 * small["megabytes"])
    assert small["bytes_per_image"] == 2 * 10 * 4 + 1 + 4


def test_results_are_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    bench(tmp_path / "new" / "bench.json", quick=True, only="ema")
    written = json.loads((tmp_path / "new" / "bench.json").read_text())
    assert written["ema/conv13"]["times_as_fast"] > 0
    assert written["environment"]["threads"] == torch.get_num_threads()
    assert "ema/conv13: fused ms" in capsys.readouterr().out
    assert "step/conv13" not in written


def test_unknown_measurement_is_refused_and_nothing_is_written(tmp_path: Path):
    with pytest.raises(InputError, match=r"No measurement has 'nothing'.*There are: start, views"):
        bench(tmp_path / "bench.json", quick=True, only="nothing")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "said"), [("folder", "is a folder"), ("file/bench.json", "Cannot write to")])
def test_a_place_that_cannot_be_written_to_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=said):
        bench(tmp_path / name, quick=True, only="memory/temp")
    assert capsys.readouterr().out == ""


def test_an_interruption_keeps_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def stopped(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "peak_memory", lambda *_, **__: {"import": 1.0})
    monkeypatch.setattr(training, "table_memory", stopped)
    with pytest.raises(KeyboardInterrupt):
        bench(tmp_path / "bench.json", quick=True, only="memory/")
    written = json.loads((tmp_path / "bench.json").read_text())
    assert written["memory/peak-mb"] == {"import": 1.0}
