"""A spool folder: each file once, in order, whatever else lies there and whenever the reader is killed."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from meanteacher.core import UNLABELLED, InputError
from meanteacher.files.images import decode
from meanteacher.models import MlpSpec
from meanteacher.online import Arrived, OnlineStep, OnlineTrainer, SpoolFolder
from meanteacher.schedules import Constant
from meanteacher.train import AdamSpec
from photo_support import save
from support import METHODS, VIEWS

SHAPE = (3, 4, 4)
CLASSES = ("cat", "dog")


def spool(folder: Path, batch_size: int = 4, **changes: Any) -> SpoolFolder:
    folder.mkdir(exist_ok=True)
    return SpoolFolder(folder, shape=SHAPE, class_names=CLASSES, batch_size=batch_size, **changes)


def images(start: int, n: int) -> np.ndarray:
    """Each has its own number as all of its values."""
    return np.broadcast_to(np.arange(start, start + n, dtype=np.uint8)[:, None, None, None], (n, *SHAPE))


def numbers(arrived: Arrived) -> list[int]:
    return [int(number) for number in arrived.images[:, 0, 0, 0]]


def filled(folder: Path, **changes: Any) -> SpoolFolder:
    """Eleven examples in files of 1, 6, 1 and 3."""
    there = spool(folder, **changes)
    for name, start, n in [("a", 0, 1), ("b", 1, 6), ("c", 7, 1), ("d", 8, 3)]:
        there.put(images(start, n), [(start + k) % 3 - 1 for k in range(n)], name=name)
    return there


def test_examples_come_in_the_order_of_the_names_and_batches_go_across_files(tmp_path: Path):
    batches = list(filled(tmp_path).read())
    assert [numbers(batch) for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert torch.cat([batch.labels for batch in batches]).tolist() == [k % 3 - 1 for k in range(11)]


@pytest.mark.parametrize("batch_size", [1, 3, 4, 20])
def test_reading_goes_on_after_any_batch_and_positions_survive_json(batch_size: int, tmp_path: Path):
    whole = list(filled(tmp_path, batch_size=batch_size).read())
    for k, batch in enumerate(whole):
        for position in (batch.position, json.loads(json.dumps(batch.position))):
            rest = spool(tmp_path, batch_size=batch_size).read(position)
            assert [numbers(later) for later in rest] == [numbers(later) for later in whole[k + 1 :]]


def test_image_files_are_labelled_by_their_folder_and_mixed_by_their_name(tmp_path: Path):
    there = spool(tmp_path, batch_size=9)
    for k, folder in enumerate(["dog", "unlabelled", "cat"]):
        save(tmp_path / folder / f"{k}.png", seed=k, width=9, height=7)
    there.put(images(0, 1), name="1b")
    (batch,) = there.read()
    assert batch.labels.tolist() == [1, UNLABELLED, UNLABELLED, 0]
    assert batch.images.dtype == torch.uint8
    expected = decode(tmp_path / "dog" / "0.png", 4)
    assert np.array_equal(batch.images[0].numpy().transpose(1, 2, 0), expected)
    assert numbers(batch)[2] == 0


def test_bytes_and_floating_point_in_one_batch_mean_the_same(tmp_path: Path):
    there = spool(tmp_path, batch_size=2)
    there.put(np.full((1, *SHAPE), 255, np.uint8), name="a")
    there.put(np.ones((1, *SHAPE)), name="b")
    (batch,) = there.read()
    assert torch.equal(batch.images, torch.ones(2, *SHAPE))


def test_a_file_that_is_being_written_is_not_read(tmp_path: Path):
    there = spool(tmp_path)
    data = there.put(images(0, 4), name="a").read_bytes()
    (tmp_path / "a.npz").unlink()
    for name in (".b.npz", "c.npz.part", "d.npz.tmp"):
        (tmp_path / name).write_bytes(data[:40])
    assert there.backlog() == 0
    assert list(there.read()) == []
    assert there.skipped == []
    (tmp_path / "c.npz.part").write_bytes(data)
    (tmp_path / "c.npz.part").rename(tmp_path / "c.npz")
    assert [numbers(batch) for batch in there.read()] == [[0, 1, 2, 3]]


BAD: dict[str, Callable[[Path], object]] = {
    "damaged": lambda path: path.write_bytes(b"PK\x03\x04 no archive"),
    "empty": lambda path: path.write_bytes(b""),
    "damaged or": lambda path: np.savez(path, labels=np.zeros(1, np.int64)),
    "expected": lambda path: np.savez(path, images=np.zeros((2, 3, 5, 5), np.uint8)),
    "labels from": lambda path: np.savez(path, images=images(0, 2), labels=np.array([0, 2])),
    "one whole number per image": lambda path: np.savez(path, images=images(0, 2), labels=np.array([0.5, 1])),
    "NaN": lambda path: np.savez(path, images=np.full((1, *SHAPE), np.nan)),
    "damaged or incomplete (ValueError)": lambda path: np.savez(path, images=np.array([{}, {}], dtype=object)),
    "larger than": lambda path: path.write_bytes(bytes(3000)),
    "arrays are larger": lambda path: np.savez_compressed(path, images=np.zeros((99, *SHAPE), np.uint8)),
    "a link": lambda path: path.symlink_to(path.with_name("z.npz")),
    "not a regular file": os.mkfifo,
}


@pytest.mark.parametrize("reason", BAD)
def test_what_cannot_be_read_is_named_and_skipped(reason: str, tmp_path: Path):
    said: list[str] = []
    there = spool(tmp_path, announce=said.append, max_bytes=2500)
    there.put(images(0, 4), name="z")
    BAD[reason](tmp_path / "bad.npz")
    batches = list(there.read())
    assert [numbers(batch) for batch in batches] == [[0, 1, 2, 3]]
    ((name, why),) = there.skipped
    assert name == "bad.npz"
    assert reason in why
    assert len(said) == 1
    assert "bad.npz" in said[0]
    assert list(spool(tmp_path).read(batches[-1].position)) == []


def test_other_files_and_folders_are_named_once(tmp_path: Path):
    there = spool(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    save(tmp_path / "bird" / "1.png", seed=1, width=4, height=4)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "cat" / "link.png").symlink_to(tmp_path / "bird" / "1.png")
    assert list(there.read()) == list(there.read()) == []
    assert sorted(name for name, _ in there.skipped) == ["bird/", "cat/broken.png", "cat/link.png", "notes.txt"]


def test_a_broken_file_is_read_when_it_has_changed(tmp_path: Path):
    there = spool(tmp_path)
    (tmp_path / "a.npz").write_bytes(b"half")
    there.put(images(8, 4), name="b")
    (first,) = there.read()
    assert numbers(first) == [8, 9, 10, 11]
    there.put(images(0, 4), name="a")
    assert [numbers(batch) for batch in there.read(first.position)] == [[0, 1, 2, 3]]


def test_a_file_that_was_begun_goes_on_before_one_that_came_late(tmp_path: Path):
    there = spool(tmp_path)
    there.put(images(0, 6), name="m")
    first = next(there.read())
    there.put(images(20, 2), name="a")
    assert [numbers(batch) for batch in there.read(first.position)] == [[4, 5, 20, 21]]


@pytest.mark.parametrize("after", ["keep", "delete", "move"])
def test_files_are_deleted_or_moved_only_once_a_checkpoint_holds_their_position(after: str, tmp_path: Path):
    there = filled(tmp_path, after=after)
    (tmp_path / "bad.npz").write_bytes(b"bad")
    reading = there.read()
    position = next(reading).position
    next(reading)
    there.release(position)
    names = {path.name for path in tmp_path.glob("*.npz")}
    # Of the first batch's files a is complete, b is not.
    assert names == {"bad.npz", "b.npz", "c.npz", "d.npz"} | ({"a.npz"} if after == "keep" else set())
    assert (tmp_path / "done" / "a.npz").exists() == (after == "move")
    assert [numbers(batch) for batch in there.read(position)] == [[4, 5, 6, 7], [8, 9, 10]]
    if after != "keep":
        there.put(images(40, 4), name="a")  # another file of that name
        there.release(position)
        assert (tmp_path / "a.npz").exists()


def test_the_stream_ends_after_waiting_and_not_before(tmp_path: Path):
    """The last file comes while the reader waits; it waits for as long as any test may take."""
    got: list[int] = []
    there = spool(tmp_path, wait=600, poll=0.01, should_stop=lambda: len(got) == 8)
    there.put(images(0, 4), name="a")

    def write() -> None:
        there.put(images(4, 4), name="b")

    late = threading.Timer(0.2, write)
    late.start()
    for batch in there.read():
        got += numbers(batch)
    late.join()
    assert got == list(range(8))


def test_a_stop_leaves_the_rest_for_the_next_time(tmp_path: Path):
    stopped: list[bool] = []
    there = filled(tmp_path, should_stop=lambda: bool(stopped))
    reading = there.read()
    first = next(reading)
    stopped.append(True)
    assert list(reading) == []
    stopped.clear()
    assert [numbers(batch) for batch in there.read(first.position)] == [[4, 5, 6, 7], [8, 9, 10]]


def test_the_backlog_is_counted_and_a_limit_says_so_once(tmp_path: Path):
    said: list[str] = []
    there = spool(tmp_path, batch_size=1, limit=2, announce=said.append)
    for k in range(5):
        there.put(images(k, 1), name=str(k))
    assert there.backlog() == 5
    left = []
    for batch in there.read():
        left.append(there.backlog())
        assert len(batch.labels) == 1
    assert left == [4, 3, 2, 1, 0]
    (sentence,) = said
    assert "5 files wait" in sentence
    assert there.dropped == []


def test_dropping_leaves_out_the_oldest_files_without_a_label_and_no_other(tmp_path: Path):
    said: list[str] = []
    there = spool(tmp_path, batch_size=1, limit=3, when_full="drop", announce=said.append)
    for k in range(6):
        there.put(images(k, 1), [0] if k in (0, 3) else [-1], name=str(k))
    save(tmp_path / "unlabelled" / "1b.png", seed=1, width=4, height=4)
    save(tmp_path / "cat" / "1a.png", seed=1, width=4, height=4)
    labels = [batch.labels.item() for batch in there.read()]
    assert there.dropped == ["1.npz", "unlabelled/1b.png", "2.npz", "4.npz", "5.npz"]
    assert labels == [0, 0, 0]
    assert "5 without a label" in said[0]
    with pytest.raises(InputError, match="when_full"):
        spool(tmp_path, when_full="lose")


def test_what_cannot_be_a_spool_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="not a folder"):
        SpoolFolder(tmp_path / "none", shape=SHAPE, class_names=CLASSES, batch_size=4)
    for names in ((), ("cat", "cat"), ("unlabelled",), ("done",)):
        with pytest.raises(InputError, match="name of its own"):
            SpoolFolder(tmp_path, shape=SHAPE, class_names=names, batch_size=4)
    with pytest.raises(InputError, match="after"):
        spool(tmp_path, after="burn")
    with pytest.raises(InputError, match="at least one row"):
        spool(tmp_path, batch_size=0)


def trainer() -> OnlineTrainer:
    return OnlineTrainer(
        MlpSpec(hidden=(8,)),
        METHODS["mean-teacher"],
        AdamSpec(learning_rate=Constant(0.01), beta1=Constant(0.9), beta2=Constant(0.99)),
        n_classes=len(CLASSES),
        input_shape=SHAPE,
        views=VIEWS,
        device="cpu",
    )


class KilledError(Exception):
    """Stands for whatever ends a process."""


def test_a_trainer_that_is_killed_goes_on_with_the_next_example_of_the_folder(tmp_path: Path):
    """Files are deleted as they are used, and the resumed run ends with the weights of an undisturbed one."""
    for name in ("whole", "killed"):
        filled(tmp_path / name)
    whole = trainer()
    whole.follow(spool(tmp_path / "whole", batch_size=2), folder=tmp_path / "one")

    def die(done: OnlineStep) -> None:
        if done.step == 4:
            raise KilledError

    source = spool(tmp_path / "killed", batch_size=2, after="delete")
    with pytest.raises(KilledError):
        trainer().follow(source, folder=tmp_path / "other", save_every=1, on_step=die)
    assert sorted(path.name for path in (tmp_path / "killed").iterdir()) == ["b.npz", "c.npz", "d.npz"]
    resumed = trainer().load(tmp_path / "other")
    assert resumed.n_steps == 3
    assert resumed.follow(spool(tmp_path / "killed", batch_size=2, after="delete"), folder=tmp_path / "other") == 3
    assert list((tmp_path / "killed").iterdir()) == []
    for part in ("student", "memory"):
        files = [tmp_path / run / "step_00000006" / f"{part}.safetensors" for run in ("one", "other")]
        assert files[0].read_bytes() == files[1].read_bytes()
