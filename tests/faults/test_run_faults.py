"""A wrong folder, a diverging run, a second process: one clear error, nothing lost."""

import re
import time
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from meanteacher.core import DivergedError, InputError
from meanteacher.data import Dataset, Fixed
from meanteacher.experiment import DataSpec, override, run
from meanteacher.records import load_record
from meanteacher.schedules import Constant, StepChange
from meanteacher.train import AdamSpec, StopWhen
from support import MadeUp, held_by_another_process, made_up, recipe


def _run(out: Path, *, resume: bool | None = False, **changes: object) -> None:
    whole = recipe(**changes)
    run(whole, seed=0, out=out, data=whole.data.source.load(out), resume=resume)


def test_folder_with_a_run_is_not_overwritten(tmp_path: Path):
    _run(tmp_path / "run", steps=2)
    before = (tmp_path / "run" / "record.json").read_bytes()
    with pytest.raises(InputError, match=r"holds a run already. Continue it with --resume"):
        _run(tmp_path / "run", steps=2)
    assert (tmp_path / "run" / "record.json").read_bytes() == before


def test_folder_with_other_files_is_not_touched(tmp_path: Path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"precious")
    with pytest.raises(InputError, match="is not empty and holds no run"):
        _run(tmp_path / "photos")
    assert [p.name for p in (tmp_path / "photos").iterdir()] == ["cat.jpg"]


def test_file_in_place_of_the_folder_is_named(tmp_path: Path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(InputError, match="is a file"):
        _run(tmp_path / "run")


def test_nothing_to_resume_is_said(tmp_path: Path):
    with pytest.raises(InputError, match=r"holds no run to resume. Start it without --resume"):
        _run(tmp_path / "run", resume=True)


def test_second_process_in_one_folder_is_refused_until_the_first_has_ended(tmp_path: Path):
    (tmp_path / "run").mkdir()
    with held_by_another_process(tmp_path / "run" / ".lock"):
        with pytest.raises(InputError, match=r"Another process is training in .*run\. Wait for it, or give another"):
            _run(tmp_path / "run")
        assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]
    _run(tmp_path / "run", steps=1)


def test_process_that_looks_at_the_lock_for_an_instant_does_not_refuse_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Two tables in one folder look at each other's runs all the time; the lock is free again at the second try."""
    (tmp_path / "run").mkdir()
    looking = FileLock(tmp_path / "run" / ".lock", thread_local=False)
    looking.acquire()
    monkeypatch.setattr(time, "sleep", lambda seconds: looking.release())
    _run(tmp_path / "run", steps=1)
    assert (tmp_path / "run" / "record.json").exists()


@pytest.mark.parametrize("stop_at", [0, 1, 7])
def test_same_call_starts_a_run_or_continues_it(stop_at: int, tmp_path: Path):
    whole = recipe()
    data = whole.data.source.load(tmp_path)

    def start_or_resume(n_steps: int) -> bool:
        asked = iter(range(n_steps))
        stop = lambda: next(asked, None) is None  # noqa: E731
        return run(whole, seed=0, out=tmp_path / "run", data=data, resume="auto", callbacks=[StopWhen(stop)]).complete

    assert not start_or_resume(stop_at)
    assert start_or_resume(100)
    record = (tmp_path / "run" / "record.json").read_bytes()
    assert start_or_resume(0)  # it is complete, and trains nothing
    assert (tmp_path / "run" / "record.json").read_bytes() == record
    straight = run(whole, seed=0, out=tmp_path / "straight", data=data).record
    assert straight is not None
    for field in ("curve", "errors", "vitals"):
        assert getattr(load_record(tmp_path / "run" / "record.json"), field) == getattr(straight, field), field


@pytest.mark.parametrize("resume", [False, None])
def test_run_that_was_killed_before_it_had_a_name_is_started_again(tmp_path: Path, resume: bool | None):
    """While run.json is written, it has another name."""
    left = tmp_path / "run" / ".run.json.0123abcd.part"
    left.parent.mkdir()
    left.write_text("{")
    _run(tmp_path / "run", resume=resume, steps=1)
    assert (tmp_path / "run" / "record.json").exists()
    assert not left.exists()


def test_start_or_resume_refuses_what_resume_refuses(tmp_path: Path):
    _run(tmp_path / "run", resume="auto", steps=2)
    with pytest.raises(InputError, match="holds another run"):
        _run(tmp_path / "run", resume="auto", steps=3)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"precious")
    with pytest.raises(InputError, match="is not empty and holds no run"):
        _run(tmp_path / "photos", resume="auto")
    (tmp_path / "started").mkdir()
    with (
        held_by_another_process(tmp_path / "started" / ".lock"),
        pytest.raises(InputError, match="Another process is training"),
    ):
        _run(tmp_path / "started", resume="auto")


@pytest.mark.parametrize("at", [3, 4, 7, 9, 12])
def test_divergence_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path: Path, at: int):
    """The learning rate becomes infinite at one step: the weights are gone from there on.

    At 4 and 9 it is the very step before a checkpoint, whose costs were still finite.
    """
    infinite = AdamSpec(
        learning_rate=StepChange(first=0.01, then=float("inf"), at=at), beta1=Constant(0.9), beta2=Constant(0.99)
    )
    with pytest.raises(DivergedError, match="Likely cause: the learning rate"):
        _run(tmp_path / "run", optim=infinite)
    saved = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("step_*"))
    assert saved == [f"step_{step:08d}" for step in (5, 10) if step <= at]
    assert not (tmp_path / "run" / "record.json").exists()


def test_labelled_share_larger_than_the_batch_is_refused():
    with pytest.raises(InputError, match=re.escape("labelled=20 rows do not fit a batch of size=10")):
        Fixed(size=10, labelled=20, unlabelled_pool="all")


@pytest.mark.parametrize(("n_labelled", "words"), [(10, "multiple of 3"), (600, "Take at most"), (0, "multiple of 3")])
def test_impossible_label_count_is_refused_before_anything_is_written(tmp_path: Path, n_labelled: int, words: str):
    with pytest.raises(InputError, match=words):
        _run(tmp_path / "run", data=DataSpec(source=MadeUp(), n_labelled=n_labelled))
    assert not (tmp_path / "run").exists()


def test_labelled_share_that_the_batches_do_not_have_is_refused_before_anything_is_written(tmp_path: Path):
    """--set data.n_labelled leaves the method's divisor as it was: 9 of 54 images are labelled, then 18."""
    whole = override(recipe(batch="mixed", steps=1), f"method.labelled_share={9 / 54}")
    data = whole.data.source.load(tmp_path)
    run(whole, seed=0, out=tmp_path / "right", data=data)
    with pytest.raises(InputError, match=re.escape("Set method.labelled_share=0.3333")):
        run(override(whole, "data.n_labelled=18"), seed=0, out=tmp_path / "wrong", data=data)
    assert not (tmp_path / "wrong").exists()


def test_nan_in_images_is_named_by_position():
    images = made_up(9, seed=0).images.float()
    images[4, 0, 2, 2] = torch.nan
    with pytest.raises(InputError, match="1 of 9 images hold NaN or infinite values, the first at index 4"):
        Dataset(images, torch.zeros(9, dtype=torch.int64), ("one",))


def test_missing_view_proposes_the_fix():
    with pytest.raises(InputError, match=re.escape("views['teacher'] = views['student']")):
        recipe().varied(views={"student": recipe().training.views["student"]})
