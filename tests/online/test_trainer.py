"""On-line learning: the step of a run on a data set, one batch at a time, that can stop and predict at any moment."""

import dataclasses
import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import meanteacher as mt
from meanteacher.core import Batch, Cost, DivergedError, InputError, StepOutput
from meanteacher.methods import MeanTeacher
from meanteacher.models import MlpSpec
from meanteacher.online import Arrived, Examples, OnlineStep, OnlineTrainer, Replay
from meanteacher.schedules import Constant
from meanteacher.train import AdamSpec, Evaluation, Intervals, Vitals, train, vitals
from meanteacher.views import Noise
from support import DECAY, METHODS, N_CLASSES, SHAPE, VIEWS, MadeUp, Small, SmallNet, made_up, prepared_of, recipe

OPTIM = AdamSpec(learning_rate=Constant(0.01), beta1=Constant(0.9), beta2=Constant(0.99))
SPEC = Small()
DATA = made_up(96, seed=3)
ROWS = 8


def trainer(model: Any = SPEC, method: Any = METHODS["mean-teacher"], **changes: Any) -> OnlineTrainer:
    given = {"n_classes": N_CLASSES, "input_shape": SHAPE, "views": VIEWS, "device": "cpu", "seed": 1, **changes}
    return OnlineTrainer(model, method, OPTIM, **given)


def shown(start: int = 0) -> Iterator[tuple[Tensor, int]]:
    """The examples of a stream from one on; every fifth shows its label."""
    for row in range(start, len(DATA)):
        yield DATA.images[row], int(DATA.labels[row]) if row % 5 == 0 else mt.UNLABELLED


def weights(model: OnlineTrainer) -> dict[str, Tensor]:
    state = model._state
    assert state is not None
    return {f"{part}.{name}": t.clone() for part, m in state.modules().items() for name, t in m.state_dict().items()}


def assert_same(one: OnlineTrainer, other: OnlineTrainer) -> None:
    ours, theirs = weights(one), weights(other)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spy(MeanTeacher):
    """Notes every row that it is given."""

    seen: list[tuple[int, int]]

    def forward(self, student: nn.Module, memory: mt.Teacher, batch: Batch, step: int) -> StepOutput:
        self.seen.extend(zip(batch.index.tolist(), batch.labels.tolist(), strict=True))
        return super().forward(student, memory, batch, step)


def spy() -> Spy:
    return Spy(decay=Constant(DECAY), buffers="own", weight=Constant(2.0), seen=[])


@pytest.mark.parametrize("replay", [None, Replay(size=6, rows=3)])
def test_an_unlabelled_example_is_seen_once_and_a_labelled_one_again_only_from_the_store(replay: Replay | None):
    method = spy()
    model = trainer(method=method, replay=replay)
    assert model.follow(Examples(shown, batch_size=ROWS)) == len(DATA) // ROWS
    times = Counter(index for index, _ in method.seen)
    labelled = set(range(0, len(DATA), 5))
    assert set(times) == set(range(len(DATA)))
    assert {times[row] for row in set(times) - labelled} == {1}
    assert all(label == (DATA.labels[index] if index in labelled else mt.UNLABELLED) for index, label in method.seen)
    assert (max(times[row] for row in labelled) > 1) == (replay is not None)


def test_a_step_says_what_it_did():
    model = trainer(replay=Replay(size=6, rows=3))
    first = model.step(DATA.images[:4], [0, -1, -1, 1])
    second = model.step(DATA.images[4:8].numpy())
    assert (first.step, first.n_labelled, first.n_replayed) == (1, 2, 0)
    assert (second.step, second.n_labelled, second.n_replayed) == (2, 0, 2)
    assert set(first.costs) == {"classification", "consistency"}
    assert second.weights == {"consistency": 2.0}
    assert (model.n_steps, model.n_seen) == (2, 8)


@pytest.mark.parametrize("method", ["mean-teacher", "supervised", "improved-gan", "fixmatch"])
def test_the_step_is_that_of_a_run_on_a_data_set(method: str, tmp_path: Path):
    """The same batches give the same weights, to the bit."""
    source = MadeUp()
    prepared = prepared_of(recipe(method), seed=1, data=source.load(tmp_path))
    state = prepared.start()
    train(
        state,
        prepared.training.method,
        OPTIM,
        prepared.stream,
        steps=5,
        seed=1,
        vitals=Vitals(prepared.declared),
        evaluate=lambda state: Evaluation(state.step, "test", 1.0, 1.0),
        every=Intervals(evaluate=5),
    )
    model = trainer(
        prepared.training.model,
        prepared.training.method,
        views=prepared.training.views,
        normalise=prepared.normalise,
        replay=None,
    )
    for step in range(5):
        batch = prepared.stream[step]
        model.step(prepared.data.train.images[batch.index], batch.labels)
    online = weights(model)
    for part, module in state.modules().items():
        for name, value in module.state_dict().items():
            assert torch.equal(online[f"{part}.{name}"], value), name


class KilledError(Exception):
    """Stands for whatever ends a process."""


@pytest.mark.parametrize("replay", [None, Replay(size=5, rows=3), Replay(size=5, rows=3, keep="uniform")])
def test_a_killed_and_resumed_run_ends_with_the_same_bytes(replay: Replay | None, tmp_path: Path):
    whole = trainer(replay=replay)
    whole.follow(Examples(shown, batch_size=ROWS), folder=tmp_path / "whole")

    def die(done: OnlineStep) -> None:
        if done.step == 8:
            raise KilledError

    with pytest.raises(KilledError):
        trainer(replay=replay).follow(
            Examples(shown, batch_size=ROWS), folder=tmp_path / "killed", save_every=3, on_step=die
        )
    resumed = trainer(replay=replay).load(tmp_path / "killed")
    assert (resumed.n_steps, resumed.n_seen, resumed.position) == (6, 6 * ROWS, 6 * ROWS)
    resumed.follow(Examples(shown, batch_size=ROWS), folder=tmp_path / "killed")
    assert_same(resumed, whole)
    last = [sorted((tmp_path / name).glob("step_*"))[-1] for name in ("whole", "killed")]
    for name in ("student", "memory"):
        assert len({(folder / f"{name}.safetensors").read_bytes() for folder in last}) == 1
    states = [torch.load(folder / "state.pt", weights_only=True) for folder in last]
    assert str(states[0]["vitals"]) == str(states[1]["vitals"])
    assert str(states[0]["stream"]) == str(states[1]["stream"])


def test_uniform_replay_keeps_old_labels_and_recent_replay_the_last_ones():
    kept = {}
    for keep in ("recent", "uniform"):
        model = trainer(replay=Replay(size=6, rows=1, keep=keep))
        for start in range(0, len(DATA), ROWS):
            model.step(DATA.images[start : start + ROWS], DATA.labels[start : start + ROWS])
        assert model._store is not None
        kept[keep] = sorted(int(index) for _, _, index in model._store.state()["kept"])
    assert kept["recent"] == list(range(len(DATA) - 6, len(DATA)))
    assert len(set(kept["uniform"])) == 6
    assert min(kept["uniform"]) < len(DATA) // 2


class Detached(MeanTeacher):
    """Compares what no gradient reaches: the mistake that the value of the cost does not show."""

    def forward(self, student: nn.Module, memory: mt.Teacher, batch: Batch, step: int) -> StepOutput:
        output = super().forward(student, memory, batch, step)
        dead = output.costs["consistency"]
        return StepOutput({**output.costs, "consistency": Cost(dead.value.detach(), dead.weight)}, output.logits)


def test_a_cost_that_trains_nothing_raises_an_alarm_even_where_labels_are_rare():
    """The only label arrives in a step in which the vitals would not read the gradients of a run on a data set."""
    model = trainer(method=Detached(decay=Constant(DECAY), buffers="own", weight=Constant(2.0)), replay=None)
    raised = []
    for step in range(8):
        labels = torch.full((ROWS,), mt.UNLABELLED)
        if step == 6:
            labels[0] = 1
        raised.append([alarm.kind for alarm in model.step(DATA.images[:ROWS], labels).alarms])
    assert raised == [[]] * 6 + [["dead-cost/consistency"], []]
    assert [alarm.kind for alarm in model.alarms] == ["dead-cost/consistency"]


def test_a_stream_whose_first_label_comes_late_raises_no_alarm():
    """Supervised-only trains nothing until then, and its teacher is the student."""
    model = trainer(method=METHODS["supervised"])
    for _ in range(12):
        model.step(DATA.images[:ROWS])
    for _ in range(12):
        model.step(DATA.images[:ROWS], DATA.labels[:ROWS])
    assert model.alarms == ()


def test_a_stream_without_labels_raises_an_alarm(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vitals, "_ENDLESS_STEPS", 10)
    model = trainer()
    kinds = [alarm.kind for _ in range(8) for alarm in model.step(DATA.images[:ROWS]).alarms]
    assert kinds == ["no-labels"]


def test_a_sound_run_raises_no_alarm():
    model = trainer()
    for _ in range(4):
        model.follow(Examples(list(shown()), batch_size=ROWS, live=True))
    assert model.n_steps == 48
    assert model.alarms == ()


def test_it_learns_and_predicts_before_the_first_step_too():
    model = trainer()
    test = made_up(60, seed=9)
    assert model.predict(test.images).shape == (60,)
    for _ in range(6):
        model.follow(Examples(list(shown()), batch_size=ROWS, live=True))
    assert float((model.predict(test.images) != test.labels).float().mean()) < 0.2
    probabilities = model.predict_proba(test.images)
    assert probabilities.shape == (60, N_CLASSES)
    assert torch.equal(probabilities.argmax(1), model.predict(test.images))


def test_predicting_at_any_moment_from_any_thread_changes_no_bit():
    alone, asked = trainer(), trainer()
    alone.follow(Examples(shown, batch_size=ROWS))
    stop, n_predicted = threading.Event(), []

    def ask() -> None:
        while not stop.is_set():
            n_predicted.append(len(asked.predict(DATA.images[:4])))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        asked.follow(
            Examples(shown, batch_size=ROWS), on_arrival=lambda arrived: n_predicted.append(len(arrived.labels))
        )
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert n_predicted
    assert_same(alone, asked)


def test_every_batch_can_be_predicted_before_it_is_trained_on():
    model = trainer()
    steps: list[tuple[int, int]] = []

    def note(arrived: Arrived) -> None:
        steps.append((model.n_steps, arrived.position))

    model.follow(Examples(shown, batch_size=32), on_arrival=note)
    assert steps == [(0, 32), (1, 64), (2, 96)]


class FromData(SmallNet):
    """Its first weights depend on a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def initialise_from(self, images: Tensor) -> None:
        self.mean.fill_(float(images.mean()))


def test_a_network_that_is_initialised_from_data_waits_for_the_first_batch(tmp_path: Path):
    model = trainer(FromData())
    with pytest.raises(InputError, match="first step"):
        model.predict(DATA.images[:4])
    with pytest.raises(InputError, match="nothing to save"):
        model.save(tmp_path)
    model.follow(Examples(shown, batch_size=ROWS), folder=tmp_path)
    assert float(weights(model)["student.mean"]) != 0
    assert OnlineTrainer.is_saved(tmp_path)
    assert not OnlineTrainer.is_saved(tmp_path / "elsewhere")
    assert_same(trainer(FromData()).load(tmp_path), model)


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="teacher is missing"):
        trainer(views={"student": VIEWS["student"]})
    with pytest.raises(InputError, match="every example"):
        trainer(method=METHODS["temporal-ensembling"])
    with pytest.raises(InputError, match="rows=9"):
        Replay(size=8, rows=9)


FOUR = DATA.images[:4]
BAD_BATCHES: dict[str, tuple[Any, Any]] = {
    "other shape": (FOUR[:, :, :3], None),
    "no image": (FOUR[:0], None),
    "whole numbers": (FOUR.long(), None),
    "not finite": (FOUR.float() / 0.0, None),
    "too few labels": (FOUR, [0, 1]),
    "unknown class": (FOUR, [0, 1, 2, N_CLASSES]),
    "fractions as labels": (FOUR, [0.0, 1.0, 2.0, 0.5]),
}


@pytest.mark.parametrize("case", BAD_BATCHES)
def test_a_batch_that_does_not_fit_is_refused_and_changes_nothing(case: str):
    model = trainer()
    before = weights(model)
    with pytest.raises(InputError):
        model.step(*BAD_BATCHES[case])
    after = weights(model)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (model.n_steps, model.n_seen) == (0, 0)


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path: Path):
    model = trainer()
    model.step(DATA.images[:4], [0, 1, 2, -1])
    model.save(tmp_path)
    for changes in ({"seed": 2}, {"replay": None}, {"method": METHODS["supervised"]}):
        with pytest.raises(InputError, match="another run"):
            trainer(**changes).load(tmp_path)
    with pytest.raises(InputError, match="no checkpoint"):
        trainer().load(tmp_path / "empty")


def _kept(state: dict[str, Any]) -> list[tuple[Tensor, Tensor, Tensor]]:
    return state["stream"]["replay"]["kept"]


def _replace_part(state: dict[str, Any], part: int, value: Any) -> None:
    row = list(_kept(state)[1])
    row[part] = value
    _kept(state)[1] = tuple(row)


DAMAGE: dict[str, Callable[[dict[str, Any]], object]] = {
    "no stream": lambda state: state.update(stream=None),
    "stream is a list": lambda state: state.update(stream=[1, 2]),
    "no position": lambda state: state["stream"].pop("position"),
    "seen is negative": lambda state: state["stream"].update(n_seen=-3),
    "seen is too large": lambda state: state["stream"].update(n_seen=10**30),
    "seen is text": lambda state: state["stream"].update(n_seen="many"),
    "no replay": lambda state: state["stream"].update(replay=None),
    "replay without its number": lambda state: state["stream"]["replay"].pop("n_offered"),
    "fewer offered than kept": lambda state: state["stream"]["replay"].update(n_offered=1),
    "a row of two parts": lambda state: _kept(state).append(_kept(state)[0][:2]),
    "image is text": lambda state: _replace_part(state, 0, "x"),
    "image of another shape": lambda state: _replace_part(state, 0, torch.zeros(1, 2)),
    "two images": lambda state: _replace_part(state, 0, _kept(state)[1][0].repeat(2, 1, 1, 1)),
    "unknown class": lambda state: _replace_part(state, 1, torch.tensor([N_CLASSES])),
    "no label": lambda state: _replace_part(state, 1, torch.tensor([-1])),
    "label is a fraction": lambda state: _replace_part(state, 1, torch.tensor([0.5])),
    "index is a fraction": lambda state: _replace_part(state, 2, torch.tensor([0.5])),
    "index is a number": lambda state: _replace_part(state, 2, 3),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_checkpoint_whose_stream_is_damaged_is_refused_in_one_sentence(
    damage: Callable[[dict[str, Any]], object], tmp_path: Path
):
    """Also if whoever damaged it has corrected the digest in the manifest."""
    model = trainer()
    model.step(DATA.images[:4], [2, 0, 1, -1])
    file = model.save(tmp_path) / "state.pt"
    state = torch.load(file, weights_only=True)
    damage(state)
    torch.save(state, file)
    manifest = json.loads((file.parent / "manifest.json").read_text())
    manifest["sha256"]["state.pt"] = hashlib.sha256(file.read_bytes()).hexdigest()
    (file.parent / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=re.escape(str(tmp_path))):
        trainer().load(tmp_path)


def test_what_is_read_of_a_stream_are_tensors_whatever_was_saved(tmp_path: Path):
    """Lists of numbers have the right shape, and would end the next step."""
    model = trainer()
    model.step(DATA.images[:4], [2, 0, 1, -1])
    assert model._store is not None
    state = model._store.state()
    state["kept"] = [(image.float(), label.tolist(), index) for image, label, index in state["kept"]]
    model._store.load(state, model._problem)
    assert model.step(DATA.images[4:8]).n_replayed == 3


@pytest.mark.parametrize("position", ["three", -1, 2.5, [1]])
def test_a_position_that_is_no_number_of_examples_is_refused(position: object):
    with pytest.raises(InputError, match="number of examples"):
        next(Examples(shown, batch_size=ROWS).read(position))


class Exploding(MeanTeacher):
    def forward(self, student: nn.Module, memory: mt.Teacher, batch: Batch, step: int) -> StepOutput:
        output = super().forward(student, memory, batch, step)
        cost = output.costs["classification"]
        factor = float("inf") if step == 1 else 1.0
        return StepOutput({**output.costs, "classification": Cost(cost.value * factor)}, output.logits)


def test_a_cost_that_is_not_finite_stops_the_run_and_nothing_is_saved(tmp_path: Path):
    model = trainer(method=Exploding(decay=Constant(DECAY), buffers="own", weight=Constant(2.0)))
    with pytest.raises(DivergedError, match="classification"):
        model.follow(Examples(shown, batch_size=ROWS), folder=tmp_path)
    with pytest.raises(DivergedError):
        model.save(tmp_path)
    assert not OnlineTrainer.is_saved(tmp_path)


def test_an_iterator_is_read_in_batches_of_its_own_or_of_a_size():
    sizes = [len(arrived.labels) for arrived in Examples(shown, batch_size=40).read()]
    assert sizes == [40, 40, 16]
    batches = [(DATA.images[:3], None), (DATA.images[3:8], DATA.labels[3:8])]
    first, second = Examples(batches).read()
    assert first.labels.tolist() == [mt.UNLABELLED] * 3
    assert torch.equal(second.images, DATA.images[3:8])
    assert (first.position, second.position) == (1, 2)
    rest = list(Examples(shown, batch_size=40).read(40))
    assert torch.equal(rest[0].images, DATA.images[40:80])


def test_an_iterator_that_cannot_be_moved_is_refused_unless_it_goes_on_by_itself():
    with pytest.raises(InputError, match="live=True"):
        next(Examples(list(shown()), batch_size=8).read(16))
    assert next(Examples(shown(16), batch_size=8, live=True).read(16)).position == 24
    with pytest.raises(InputError, match="batch_size=0"):
        Examples([], batch_size=0)


def _batches() -> Iterator[tuple[Tensor, Tensor | None]]:
    for start in range(0, 40, ROWS):
        shows = torch.arange(start, start + ROWS) % 5 == 0
        yield DATA.images[start : start + ROWS], DATA.labels[start : start + ROWS].where(shows, mt.UNLABELLED)


def test_any_iterable_of_batches_is_followed_as_it_comes(tmp_path: Path):
    """A generator, a list, and the mappings and lists that loaders of other libraries give."""
    batches = list(_batches())
    as_mappings = [{"idx": 3, "pixel_values": images, "labels": labels} for images, labels in batches]
    models = []
    for source in (_batches(), batches, as_mappings, [list(pair) for pair in batches]):
        models.append(trainer())
        assert models[-1].follow(source, folder=tmp_path / str(len(models))) == 5
        assert_same(models[0], models[-1])
    assert models[0].follow(_batches()) == 5  # the next ones
    unlabelled = trainer()
    unlabelled.follow(images for images, _ in _batches())
    assert (unlabelled.n_steps, unlabelled.n_seen) == (5, 40)


def test_rows_of_a_data_set_are_examples():
    """As torchvision and Hugging Face have them: PIL images, with the label beside or by name."""
    pictures = [Image.fromarray(image.squeeze(0).numpy()) for image in DATA.images[:10]]
    labels = DATA.labels[:10].tolist()
    for rows in (
        list(zip(pictures, labels, strict=True)),
        [{"img": picture, "label": label} for picture, label in zip(pictures, labels, strict=True)],
    ):
        first, second = Examples(rows, batch_size=7).read()
        assert torch.equal(torch.cat([first.images, second.images]), DATA.images[:10])
        assert torch.cat([first.labels, second.labels]).tolist() == labels


def _factory(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01, betas=(0.9, 0.99), fused=True)


def test_functions_of_torch_optim_are_optimisers(tmp_path: Path):
    given = {"n_classes": N_CLASSES, "input_shape": SHAPE, "views": VIEWS, "device": "cpu", "seed": 1}

    def made(optim: Any) -> OnlineTrainer:
        return OnlineTrainer(SPEC, METHODS["mean-teacher"], optim, **given)

    ours, theirs = trainer(), made(_factory)
    for model in (ours, theirs):
        model.follow(_batches())
    assert_same(ours, theirs)
    slow = partial(torch.optim.AdamW, lr=0.001)
    model = made(slow)
    model.follow(_batches(), folder=tmp_path)
    assert made(partial(torch.optim.AdamW, lr=0.001)).load(tmp_path).n_steps == 5
    for other in (partial(torch.optim.AdamW, lr=0.002), partial(torch.optim.SGD, lr=0.001), torch.optim.AdamW):
        with pytest.raises(InputError, match="another run"):
            made(other).load(tmp_path)


@pytest.mark.parametrize("ignore_index", [mt.UNLABELLED, 255])
def test_labels_per_place_are_learnt_and_replayed(ignore_index: int, tmp_path: Path):
    """Two classes of pixels: bright and dark. A third of the images have labels, some of them in a few places only."""
    draws = torch.Generator().manual_seed(0)
    images = torch.rand(24, 1, 6, 6, generator=draws)
    labels = (images[:, 0] > 0.5).long()
    labels[:, 2:] = ignore_index
    labels[8:] = ignore_index
    method = MeanTeacher(decay=0.9, buffers="own", weight=2.0, ignore_index=ignore_index)
    given = {"n_classes": 2, "input_shape": (1, 6, 6), "label_shape": (6, 6), "device": "cpu", "seed": 1}

    def made() -> OnlineTrainer:
        torch.manual_seed(0)
        network = nn.Conv2d(1, 2, 1)
        views = {role: Noise(0.01) for role in ("student", "teacher")}
        return OnlineTrainer(network, method, partial(torch.optim.SGD, lr=1.0), **given, views=views)

    model = made()
    steps = [model.step(images[rows], labels[rows]) for rows in torch.arange(24).split(6)]
    assert [step.n_labelled for step in steps] == [6, 2, 0, 0]
    assert [step.n_replayed for step in steps] == [0, 6, 8, 8]
    assert model.step(images[:6]).n_labelled == 0
    for _ in range(40):
        model.step(images[:6], labels[:6])
    assert (model.predict(images) == (images[:, 0] > 0.5)).float().mean() > 0.9
    assert model.alarms == ()
    model.save(tmp_path)
    again = made().load(tmp_path)
    assert torch.equal(again.predict_proba(images), model.predict_proba(images))
    for wrong, words in (
        (labels[:6, 0, 0].clamp(0, 1), r"Expected labels of shape \[6, 6, 6\] for 6 images, got \[6\]"),
        (labels[:6].where(labels[:6] != 1, 2), "Labels run from -1 to 2, but there are 2 classes"),
    ):
        with pytest.raises(InputError, match=words):
            model.step(images[:6], wrong)


def test_the_python_of_the_page_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
    section = page.partition("## On-line learning\n")[2].partition("\n## ")[0]
    first, second = re.findall(r"```python\n(.*?)```", section, flags=re.S)
    monkeypatch.chdir(tmp_path)
    images = torch.randint(256, (40, 3, 32, 32), dtype=torch.uint8)
    names: dict[str, Any] = {"network": MlpSpec(hidden=(8,)), "method": METHODS["mean-teacher"], "optim": OPTIM}
    names |= {"views": VIEWS, "images": images[:8], "more_images": images[:2], "labels": [0, 9, *[-1] * 6]}
    exec(first, names)
    assert set(names["done"].costs) == {"classification", "consistency"}
    names["examples"] = [(image, None) for image in images]
    exec(second, names)
    assert names["trainer"].n_steps == 3
    exec(second, names)
    assert names["trainer"].n_steps == 3  # nothing is left to read
