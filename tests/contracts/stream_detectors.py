"""What must hold of several processes, of tar shards, and of a stream that is seen once."""

import dataclasses
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from cases import PlainSpec, trained
from catalogue import refused
from torch import Tensor, nn

from meanteacher import distributed
from meanteacher.core import UNLABELLED, Batch, StepOutput
from meanteacher.data import EncodedDataset, Fixed, ImageStream, make_split
from meanteacher.data.shards import Shards
from meanteacher.distributed import ALONE, Ranks
from meanteacher.evaluate import predict_logits
from meanteacher.files.images import DecodedImage
from meanteacher.methods import MeanTeacher
from meanteacher.online import Examples, OnlineTrainer, Replay
from meanteacher.online.arrivals import Store
from meanteacher.photos.folder.packing import pack
from meanteacher.schedules import Constant
from meanteacher.seeding import isolated_global_randomness
from meanteacher.teacher import Teacher, teacher_of
from meanteacher.train import AdamSpec, SgdSpec, parallel
from meanteacher.views import Chain
from photo_support import save
from shard_support import CLASSES, picture, write_tar
from support import (
    DECAY,
    N_CLASSES,
    PATIENCE,
    SHAPE,
    VIEWS,
    Small,
    in_double,
    made_up,
    parameters_of,
    prepared_of,
    recipe,
)

T = TypeVar("T")


# --- several processes ------------------------------------------------------------------------------------------------


class _Exchange:
    """What `torch.distributed` does between processes, between two threads."""

    def __init__(self) -> None:
        self.meeting, self.given, self.me = threading.Barrier(2), [None, None], threading.local()

    def run(self, rank: int, compute: Callable[[Ranks], T]) -> T:
        self.me.rank = rank
        try:
            return compute(Ranks(rank, 2))
        except BaseException:
            self.meeting.abort()
            raise

    def _of_all(self, value: Any) -> list[Any]:
        self.given[self.me.rank] = value
        self.meeting.wait(PATIENCE)
        found = list(self.given)
        self.meeting.wait(PATIENCE)
        return found

    def all_reduce(self, x: Tensor, group: Any = None) -> None:
        x.copy_(sum(self._of_all(x.clone())))

    def all_gather(self, out: list[Tensor], x: Tensor, group: Any = None) -> None:
        for ours, theirs in zip(out, self._of_all(x.clone()), strict=True):
            ours.copy_(theirs)

    def broadcast(self, x: Tensor, source: int, group: Any = None) -> None:
        x.copy_(self._of_all(x.clone())[source])

    def averaging(self, module: nn.Module, **options: Any) -> nn.Module:
        """What `DistributedDataParallel` does to gradients."""

        def average(parameter: Tensor) -> None:
            assert parameter.grad is not None
            self.all_reduce(parameter.grad)
            parameter.grad /= 2

        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(average)
        return module


def _together(compute: Callable[[Ranks], T]) -> list[T]:
    """What each of two ranks computes, without a second process."""
    exchange = _Exchange()
    with pytest.MonkeyPatch.context() as patch, isolated_global_randomness(), ThreadPoolExecutor(2) as pool:
        patch.setattr(distributed, "dist", exchange)
        patch.setattr(parallel, "DistributedDataParallel", exchange.averaging)
        return list(pool.map(lambda rank: exchange.run(rank, compute), range(2)))


_WHOLE = recipe(model=PlainSpec(), optim=SgdSpec(learning_rate=Constant(0.1)), steps=3, evaluate_every=3).varied(
    batch=Fixed(size=7, labelled=3, unlabelled_pool="all")
)
"""Three labelled rows, of which one rank has two. Without noise, which two threads would draw from one generator."""


def two_ranks_train_what_one_process_does() -> None:
    with in_double():
        start = prepared_of(_WHOLE, seed=3, data=_WHOLE.data.source.load(Path())).start()
        states = [trained(_WHOLE, ALONE)[0], *_together(lambda ranks: trained(_WHOLE, ranks)[0])]
    first, alone, *both = (parameters_of(state.student) for state in (start, *states))
    moved = (alone - first).abs().max()
    assert moved > 1e-3, "nothing was trained, so this tells nothing"
    for weights in both:
        assert (alone - weights).abs().max() < 1e-6 * moved, "several processes train something else"


def batch_statistics_are_the_mean_of_the_ranks() -> None:
    (first, own), (second, other) = _together(_statistics)
    assert (own - other).abs().max() > 1e-3, "the ranks saw the same rows"
    assert torch.equal(first, second), "the ranks have statistics of their own"
    assert torch.allclose(first, (own + other) / 2, atol=1e-5), "the statistics are not the mean of the ranks"


def _statistics(ranks: Ranks) -> tuple[Tensor, Tensor]:
    """The running mean after three steps, and what this rank's rows alone make of it."""
    whole, own = _WHOLE.varied(model=PlainSpec(extra="batch norm")), torch.zeros(8)
    prepared = prepared_of(whole, seed=3, data=whole.data.source.load(Path()), ranks=ranks)
    state = prepared.start()
    layer: Any = state.student.get_submodule("features.2")

    def note(layer: nn.Module, given: tuple[Tensor]) -> None:
        if layer.training:
            own.lerp_(given[0].detach().mean(0), 0.1)

    layer.register_forward_pre_hook(note)
    prepared.train(state)
    return layer.running_mean, own


def ranks_draw_noise_of_their_own() -> None:
    drawn = []
    with isolated_global_randomness():
        for rank in range(2):
            parallel.seed_networks(5, 7, Ranks(rank, 2))
            drawn.append(torch.rand(8))
    assert not torch.equal(*drawn), "all ranks drop the same units"


PROCESSES = (
    two_ranks_train_what_one_process_does,
    batch_statistics_are_the_mean_of_the_ranks,
    ranks_draw_noise_of_their_own,
)


# --- shards -----------------------------------------------------------------------------------------------------------


@contextmanager
def _shards() -> Iterator[tuple[EncodedDataset, dict[int, str]]]:
    """Two shards of which the second begins with the other class, one whose labels are to be hidden; and the labels."""
    with tempfile.TemporaryDirectory() as name:
        folder, known = Path(name), {}
        for number, (start, kind) in enumerate(((0, "train"), (5, "train"), (10, "hidden"), (1000, "test"))):
            members = []
            for k in range(start, start + 5):
                known[k] = CLASSES[k % 2]
                members += [(f"{k:04}.png", picture(k)), (f"{k:04}.cls", known[k].encode())]
            write_tar(folder / f"{kind}-{number}.tar", members)
        source = Shards(train="train-*.tar", unlabelled="hidden-*.tar", test="test-*.tar", resize=12, size=12)
        dataset = source.load(folder).train
        assert isinstance(dataset, EncodedDataset)
        yield dataset, known


def every_image_of_a_shard_is_under_its_name() -> None:
    with _shards() as (dataset, _):
        for position in range(15):
            assert dataset.files.read(position) == picture(position), "an image is read from elsewhere"


def an_image_of_a_shard_has_the_class_that_it_names() -> None:
    with _shards() as (dataset, known):
        labels = dataset.labels.tolist()
        assert [dataset.class_names[label] for label in labels[:10]] == [known[k] for k in range(10)], "other classes"
        assert labels[10:] == [UNLABELLED] * 5, "a label that is to be hidden is shown"


def a_batch_of_crops_is_the_same_wherever_the_run_began() -> None:
    def batches(dataset: EncodedDataset) -> ImageStream:
        split = make_split(dataset.labels, n_classes=2, n_labelled=6, seed=0)
        sampler = Fixed(size=4, labelled=2, unlabelled_pool="unlabelled").sampler(split, 0)
        return ImageStream(dataset, sampler, views={"student": Chain()}, normalise=Tensor.float, seed=0)

    with _shards() as (dataset, _):
        through, resumed = batches(dataset), batches(dataset)
        last = [through[step] for step in range(4)][-1]
        assert torch.equal(resumed[3].index, last.index), "a resumed run has another order"
        assert torch.equal(resumed[3].views["student"], last.views["student"]), "a resumed run has other crops"


def what_has_changed_is_read_again() -> None:
    """A shard whose labels were corrected has the same size; one that `pack` wrote is compared with its index."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data").mkdir()
        shard = folder / "train.tar"
        source = Shards(train=str(shard), test=str(shard), resize=12, size=12)
        for first in (0, 1):
            members = [(f"{k}.png", picture(k)) for k in range(2)] + [("1.cls", b"dog")]
            write_tar(shard, [members[0], ("0.cls", (b"cat", b"dog")[first]), *members[1:]])
            os.utime(shard, ns=(first + 1, first + 1))
            found = source.load(folder / "data").train
            assert [found.class_names[k] for k in found.labels] == [("cat", "dog")[first], "dog"], "labels are old ones"
        photos = folder / "photos"
        for kind in ("cat", "dog"):
            save(photos / kind / "1.png", len(kind), 16, 16)
        (packed,) = pack(photos, folder / "shards").shards
        content = bytearray(packed.read_bytes())
        content[content.index(b"IDAT") + 9] ^= 1
        packed.write_bytes(content)
        refused(
            lambda: Shards(train=str(packed), test=str(packed)).load(folder / "data"), "a shard with a flipped byte"
        )


def packing_that_is_resumed_ends_with_what_there_is_now() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, file = Path(name), Path(name) / "labels.csv"
        for k in range(4):
            save(folder / "photos" / f"{k}.png", k, 16, 16)
        for change in ("none", "label", "photo", "damage"):
            file.write_text(f"path,label\n0.png,cat\n1.png,dog\n2.png,{'dog' if change == 'none' else 'cat'}\n")
            if change == "photo":
                pictures = sorted((folder / "photos").iterdir())
                one, other = (path.read_bytes().ljust(2000, b"\0") for path in pictures[:2])
                for path, content in zip(pictures[:2], (other, one), strict=True):
                    path.write_bytes(content)
                    os.utime(path, ns=(1, 1))
                pack(folder / "photos", folder / "shards", labels=file, resume=True)
                for path, content in zip(pictures[:2], (one, other), strict=True):
                    path.write_bytes(content)
                    os.utime(path, ns=(2, 2))
            if change == "damage":
                shard = folder / "shards" / "shards-000000.tar"
                shard.write_bytes(shard.read_bytes().replace(b"IDAT", b"IDAX", 1))
            pack(folder / "photos", folder / "shards", labels=file, resume=True)
            pack(folder / "photos", folder / change / "shards", labels=file)
            now, anew = (path / "shards-000000.tar" for path in (folder / "shards", folder / change / "shards"))
            assert now.read_bytes() == anew.read_bytes(), f"{change}: what has changed is not packed again"


def no_image_is_decoded_smaller_than_it_is_shown() -> None:
    """A JPEG can be decoded at a half, a quarter or an eighth; to enlarge that again would blur it."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        members = [(f"{k}.jpg", picture(k, 32 * k + 70, "JPEG")) for k in range(1, 9)]
        write_tar(folder / "a.tar", [*members[:1], ("1.cls", b"cat"), *members[1:2], ("2.cls", b"dog"), *members[2:]])
        dataset = Shards(train="a.tar", test="a.tar", resize=24, size=20).load(folder).train
        assert isinstance(dataset, EncodedDataset)
        shown: list[float] = []
        real = DecodedImage.resized

        def noted(self: DecodedImage, size: tuple[int, int], box: Any = None) -> Any:
            left, top, right, bottom = box
            shown.append(min(right - left, bottom - top) / self.reduced / min(size))
            return real(self, size, box)

        patch.setattr(DecodedImage, "resized", noted)
        for seed in range(8):
            dataset.begin_crops(torch.arange(8), {"student": torch.Generator().manual_seed(seed)})()
        dataset.centres(torch.arange(8))
    assert len(shown) == 72, "images were not shown"
    assert min(shown) > 0.9, f"an image is enlarged by {1 / min(shown):.1f}"


SHARDS = (
    what_has_changed_is_read_again,
    packing_that_is_resumed_ends_with_what_there_is_now,
    no_image_is_decoded_smaller_than_it_is_shown,
    every_image_of_a_shard_is_under_its_name,
    an_image_of_a_shard_has_the_class_that_it_names,
    a_batch_of_crops_is_the_same_wherever_the_run_began,
)


# --- on-line learning -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Spy(MeanTeacher):
    """Notes every row that it is given."""

    seen: list[tuple[int, int]]

    def forward(self, student: nn.Module, memory: Teacher, batch: Batch, step: int) -> StepOutput:
        self.seen.extend(zip(batch.index.tolist(), batch.labels.tolist(), strict=True))
        return super().forward(student, memory, batch, step)


def _online() -> tuple[OnlineTrainer, list[tuple[int, int]]]:
    seen: list[tuple[int, int]] = []
    method = _Spy(decay=Constant(DECAY), buffers="own", weight=Constant(2.0), seen=seen)
    optim = AdamSpec(learning_rate=Constant(0.01), beta1=Constant(0.9), beta2=Constant(0.99))
    given = {"n_classes": N_CLASSES, "input_shape": SHAPE, "views": VIEWS, "device": "cpu"}
    return OnlineTrainer(Small(), method, optim, replay=Replay(size=4, rows=2), **given), seen


def an_unlabelled_example_is_seen_once_however_often_training_stops() -> None:
    data, came, shown = made_up(24, seed=3), [], []

    def arrive(start: int) -> Iterator[tuple[Tensor, int]]:
        for row in range(start, len(data)):
            came.append(row)
            yield data.images[row], int(data.labels[row]) if row % 4 == 0 else UNLABELLED

    with tempfile.TemporaryDirectory() as folder:
        for n_steps in (2, 4, 6):
            trainer, seen = _online()
            if OnlineTrainer.is_saved(folder):
                trainer.load(folder)
            stops = partial(_has_taken, trainer, n_steps)
            trainer.follow(Examples(arrive, batch_size=4), folder=folder, should_stop=stops)
            shown += [index for index, label in seen if label == UNLABELLED]
    assert came == list(range(len(data))), "examples come again, or never"
    assert shown == [row for row in came if row % 4], "an example is shown twice, or never"


def _has_taken(trainer: OnlineTrainer, n_steps: int) -> bool:
    return trainer.n_steps == n_steps


def an_answer_is_that_of_the_teacher() -> None:
    data, (trainer, _) = made_up(12, seed=3), _online()
    for start in (0, 4, 8):
        trainer.step(data.images[start : start + 4], [2, UNLABELLED, 0, 1])
    state = trainer._state
    assert state is not None
    teacher = teacher_of(state.memory).predictor()
    expected = predict_logits(teacher, data.images, normalise=trainer._normalise).softmax(1)
    assert torch.allclose(trainer.predict_proba(data.images), expected), "another network answers"
    student = predict_logits(state.student, data.images, normalise=trainer._normalise).softmax(1)
    assert not torch.allclose(expected, student), "the two networks cannot be told apart"


def kept_examples_are_drawn_anew_with_their_labels() -> None:
    data, (trainer, seen) = made_up(40, seed=3), _online()
    for start in range(0, 40, 4):
        trainer.step(data.images[start : start + 4], [UNLABELLED, int(data.labels[start + 1]), 2, UNLABELLED])
    again = [step[4:] for step in _steps(seen) if len(step) == 6]
    assert all(label == (int(data.labels[index]) if index % 4 == 1 else 2) for kept in again for index, label in kept)
    assert {index // 4 for index, _ in again[-1]} <= {7, 8}, "the examples that are kept are not the last four"


def _steps(seen: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """The rows of each step: four new ones, and up to two that were kept."""
    steps: list[list[tuple[int, int]]] = []
    for row in seen:
        if not steps or (row[0] % 4 == 0 and row[0] == 4 * len(steps)):
            steps.append([])
        steps[-1].append(row)
    return steps


def a_uniform_sample_is_of_all_that_came() -> None:
    store = Store(Replay(size=8, rows=2, keep="uniform"), seed=1)
    for number in range(80):
        store.add(torch.zeros(1, *SHAPE), torch.tensor([0]), torch.tensor([number]))
    kept = sorted(int(index) for _, _, index in store.state()["kept"])
    assert len(kept) == 8, "another number is kept"
    assert 2 <= sum(number < 40 for number in kept) <= 6, f"the sample is of one end: {kept}"
    shown = {tuple(store.draw(step)[2].tolist()) for step in range(12)}
    assert len(shown) > 6, "the same examples are shown in every step"


def a_loaded_trainer_goes_on_where_it_was_saved() -> None:
    data, (trainer, _) = made_up(24, seed=3), _online()
    with tempfile.TemporaryDirectory() as folder:
        for start in (0, 4, 8):
            trainer.step(data.images[start : start + 4], [2, UNLABELLED, 0, UNLABELLED], position=start + 4)
        trainer.save(folder)
        again, seen = _online()
        again.load(folder)
    assert (again.n_seen, again.position, again.n_steps) == (12, 12, 3), "it begins somewhere else"
    done = again.step(data.images[12:16])
    assert done.n_replayed == 2, "kept examples are lost"
    assert [index for index, _ in seen][:4] == [12, 13, 14, 15], "new examples have the numbers of old ones"


ONLINE = (
    an_unlabelled_example_is_seen_once_however_often_training_stops,
    an_answer_is_that_of_the_teacher,
    kept_examples_are_drawn_anew_with_their_labels,
    a_uniform_sample_is_of_all_that_came,
    a_loaded_trainer_goes_on_where_it_was_saved,
)
