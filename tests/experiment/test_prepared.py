"""A run prepares its data once, and runs on the same data share what was computed from them."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from meanteacher.experiment import DataSpec, run
from meanteacher.experiment import prepared as prepared_module
from meanteacher.experiment.describe import fingerprint
from meanteacher.experiment.run import identity_of
from meanteacher.report import load_record
from meanteacher.views import PerChannel
from support import HashPasses, MadeUp, parameters_of, prepared_of, recipe


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> HashPasses:
    passes = HashPasses(MadeUp().load(tmp_path).train.images.numpy().nbytes)
    monkeypatch.setattr(hashlib, "sha256", passes.sha256)
    return passes


def test_runs_that_share_their_data_hash_the_pixels_once(tmp_path: Path, passes: HashPasses):
    data = MadeUp().load(tmp_path)
    for method in ("supervised", "mean-teacher"):
        for seed in range(2):
            run(recipe(method, steps=2), seed=seed, out=tmp_path / method / str(seed), data=data).restored()
    run(recipe(steps=2), seed=0, out=tmp_path / "mean-teacher" / "0", data=data, resume=True).restored()
    assert passes.n == 1
    anew = MadeUp().load(tmp_path)
    # Loaded anew: the files may be others by now.
    identity_of(fingerprint(recipe()), 0, anew, recipe().data.split(anew.train, 0))
    assert passes.n == 2


def test_a_run_and_its_restored_state_fit_the_normaliser_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fitted: list[int] = []
    real = PerChannel.fit

    def counted(self: PerChannel, images: torch.Tensor, index: torch.Tensor | None = None) -> torch.nn.Module:
        fitted.append(len(images))
        return real(self, images, index)

    monkeypatch.setattr(PerChannel, "fit", counted)
    outcome = run(recipe(steps=10), seed=0, out=tmp_path / "run", data=MadeUp().load(tmp_path))
    assert outcome.complete
    assert outcome.restored().step == outcome.step == 10
    assert len(fitted) == 1


@pytest.mark.parametrize("name", ["last", "best"])
def test_an_outcome_restores_what_another_process_would(name: str, tmp_path: Path):
    whole, data = recipe(), MadeUp().load(tmp_path)
    outcome = run(whole, seed=1, out=tmp_path / "run", data=data)
    again = run(whole, seed=1, out=tmp_path / "run", data=data, resume=True)
    ours, theirs = outcome.restored(name), again.restored(name)
    assert ours.step == theirs.step
    assert torch.equal(parameters_of(ours.student), parameters_of(theirs.student))
    assert torch.equal(parameters_of(ours.memory), parameters_of(theirs.memory))
    assert again.complete
    assert again.record == outcome.record


def test_the_same_on_the_same_device_is_the_same_value(tmp_path: Path):
    prepared = prepared_of(recipe(), seed=0, data=MadeUp().load(tmp_path))
    assert prepared.on(torch.device("cpu")) is prepared
    other = prepared.on(torch.device("meta"))
    assert other.split is prepared.split


def test_identity_tells_recipe_seed_data_and_split_apart(tmp_path: Path):
    data = MadeUp().load(tmp_path)
    splits = [recipe().data.split(data.train, seed) for seed in (0, 5)]
    first = identity_of(fingerprint(recipe()), 0, data, splits[0])
    changed = {
        "recipe": identity_of(fingerprint(recipe(steps=21)), 0, data, splits[0]),
        "seed": identity_of(fingerprint(recipe()), 1, data, splits[0]),
        "data": identity_of(fingerprint(recipe()), 0, replace(data, train=data.test), splits[0]),
        "split": identity_of(fingerprint(recipe()), 0, data, splits[1]),
    }
    for part, identity in changed.items():
        assert {key for key in first if first[key] != identity[key]} == {part}


def test_curve_has_the_classification_costs_of_both_models_where_they_are_wanted(tmp_path: Path):
    """By hand: the mean of minus the log probability of the label, on the labelled images, without noise."""
    whole = recipe(evaluate_costs=True, steps=10)
    data = MadeUp().load(tmp_path)
    outcome = run(whole, seed=0, out=tmp_path / "run", data=data)
    assert outcome.record is not None
    state, labelled = outcome.restored(), outcome.prepared.split.labelled
    images, labels = data.train.images[labelled], data.train.labels[labelled]
    expected = {}
    for name, network in (("student_cost", state.student), ("teacher_cost", state.predictor(whole.training.method))):
        with torch.inference_mode():
            logits = network.eval()(outcome.prepared.normalise(images))
        probabilities = torch.softmax(logits.double(), dim=1)[torch.arange(len(labels)), labels]
        expected[name] = float(-probabilities.log().mean())
    last = outcome.record.curve[-1]
    assert {name: getattr(last, name) for name in expected} == pytest.approx(expected, rel=1e-4)
    assert expected["student_cost"] != pytest.approx(expected["teacher_cost"], rel=1e-3)
    assert state.curve[-1].teacher_cost == last.teacher_cost
    points = load_record(tmp_path / "run" / "record.json").curve
    assert points[-1] == last


def test_costs_are_left_out_where_they_are_not_wanted_and_change_no_weight(tmp_path: Path):
    data = MadeUp().load(tmp_path)
    ends = []
    for costs in (False, True):
        outcome = run(recipe(evaluate_costs=costs, steps=10), seed=0, out=tmp_path / str(costs), data=data)
        assert outcome.record is not None
        for point in outcome.record.curve:
            assert (point.student_cost is None, point.teacher_cost is None) == (not costs, not costs)
        ends.append(parameters_of(outcome.restored().student))
    assert torch.equal(*ends)


def test_costs_are_measured_on_a_thousand_labelled_images_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[int] = []

    def note(networks: object, dataset: object, index: torch.Tensor, **_: object) -> dict[str, float]:
        seen.append(len(index))
        return {}

    monkeypatch.setattr(prepared_module, "classification_costs", note)
    whole = recipe("supervised", evaluate_costs=True, data=DataSpec(source=MadeUp(n_train=1500), n_labelled=None))
    prepared = prepared_of(whole, seed=0, data=whole.data.source.load(tmp_path))
    prepared.evaluate(prepared.start())
    assert seen == [1000]
