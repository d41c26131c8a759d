"""The time of a fit: what fits into it, what is noted of it, and when reading alone would take too much of it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from meanteacher.core import InputError
from meanteacher.photos.fitting import work as module
from meanteacher.photos.fitting.work import Work, read_work
from meanteacher.records import WorkRecord
from meanteacher.train import Callback


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def make(folder: Path, *, callback: Callback | None = None, began: float = 1000.0, **record: Any) -> Work:
    record = {"minutes": 10, **record}
    known = WorkRecord(fingerprint="f", device="cpu", flip=True, backbones=("lite0",), **record)
    return Work(folder, known, began=began, callback=callback or Callback(), device=torch.device("cpu"))


def test_the_minutes_begin_with_the_call_and_include_those_spent_before(tmp_path: Path, clock: Clock):
    work = make(tmp_path, began=990.0, spent=100.0)
    assert (work.ends, work.spent()) == (990 + 600 - 100, 110)
    assert work.cache == tmp_path / "cache"


def test_a_piece_fits_if_a_quarter_more_than_its_expected_seconds_are_left(tmp_path: Path, clock: Clock):
    work = make(tmp_path)
    clock.now += 500
    assert work.fits()
    assert work.fits(60, 19.9)
    assert not work.fits(60, 20)
    assert not work.fits(81)
    clock.now += 100
    assert not work.fits()


def test_a_piece_is_noted_with_the_longest_of_its_times(tmp_path: Path, clock: Clock):
    work = make(tmp_path, pieces={"reading": 7.0})
    assert read_work(tmp_path) is None
    for seconds in (3.126, 9.5, 1.0):
        with work.piece("head"):
            clock.now += seconds
    assert (work.took("reading"), work.took("head"), work.took("tests")) == (7.0, 9.5, 0.0)
    saved = read_work(tmp_path)
    assert saved is not None
    assert (saved.pieces, saved.spent, saved.finished) == ({"reading": 7.0, "head": 9.5}, 13.63, False)
    work.note({}, finished=True)
    saved = read_work(tmp_path)
    assert saved is not None
    assert (saved.finished, saved.pieces) == (True, {"reading": 7.0, "head": 9.5})


def test_a_piece_that_ends_with_an_error_is_not_done_but_its_time_is_spent(tmp_path: Path, clock: Clock):
    work = make(tmp_path)

    def fail() -> None:
        with work.piece("head"):
            clock.now += 3.25
            raise InputError("no")

    with pytest.raises(InputError):
        fail()
    saved = read_work(tmp_path)
    assert saved is not None
    assert (saved.pieces, saved.spent) == ({}, 3.25)


class Told(Callback):
    def __init__(self) -> None:
        self.told: list[tuple[str, int, int]] = []

    def on_progress(self, task: str, done: int, total: int) -> None:
        self.told.append((task, done, total))


def test_reading_reports_its_progress_and_is_judged_after_three_seconds(tmp_path: Path, clock: Clock):
    callback = Told()
    progress = make(tmp_path, callback=callback, minutes=2).reading()
    clock.now += 3
    progress(1, 1200)  # an hour, but it is too early to say so
    clock.now += 1
    progress(80, 1200)  # exactly half of the two minutes
    assert callback.told == [("Reading images", 1, 1200), ("Reading images", 80, 1200)]
    clock.now += 2
    with pytest.raises(InputError) as error:
        progress(90, 1800)  # 6 seconds for 90 images
    message = str(error.value)
    assert "Reading the 1,800 images would take about 2 of the 2 minutes (15 images per second)" in message
    assert message.endswith("at least 4.")


def test_a_time_for_reading_that_rounds_to_no_minute_is_called_one(tmp_path: Path, clock: Clock):
    progress = make(tmp_path, minutes=0.1).reading()
    clock.now += 4
    with pytest.raises(InputError, match=r"would take about 1 of the 0\.1 minutes .* to at least 1\."):
        progress(40, 50)


@pytest.mark.parametrize(("began", "late"), [(988.0, 4.0), (995.0, 8.0)])
def test_twelve_seconds_after_the_start_reading_is_not_refused_any_more(
    began: float, late: float, tmp_path: Path, clock: Clock
):
    progress = make(tmp_path, began=began, minutes=1).reading()
    clock.now += late
    progress(1, 10_000)


def test_until_then_it_is_refused(tmp_path: Path, clock: Clock):
    progress = make(tmp_path, began=992.0, minutes=1).reading()
    clock.now += 4  # twelve seconds exactly
    with pytest.raises(InputError, match="10,000 images"):
        progress(1, 10_000)
