"""A run prepares its data once, and runs on the same data share what was computed from them."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from meanteacher.experiment import restored, run
from meanteacher.experiment.prepared import Prepared
from meanteacher.views import PerChannel
from support import HashPasses, MadeUp, parameters_of, recipe


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
    restored(recipe(steps=2), seed=0, out=tmp_path / "mean-teacher" / "0", data=data)
    assert passes.n == 1
    Prepared(recipe(), seed=0, data=MadeUp().load(tmp_path))  # loaded anew: the files may be others by now
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
    ours, theirs = outcome.restored(name), restored(whole, seed=1, out=tmp_path / "run", data=data, name=name)
    assert ours.step == theirs.step
    assert torch.equal(parameters_of(ours.student), parameters_of(theirs.student))
    assert torch.equal(parameters_of(ours.memory), parameters_of(theirs.memory))
    again = run(whole, seed=1, out=tmp_path / "run", data=data, resume=True)
    assert again.complete
    assert again.record == outcome.record
    assert torch.equal(parameters_of(again.restored(name).student), parameters_of(ours.student))


def test_the_same_on_the_same_device_is_the_same_value(tmp_path: Path):
    prepared = Prepared(recipe(), seed=0, data=MadeUp().load(tmp_path))
    assert prepared.on(torch.device("cpu")) is prepared
    other = prepared.on(torch.device("meta"))
    assert other.identity == prepared.identity
    assert other.split is prepared.split


def test_identity_tells_recipe_seed_data_and_split_apart(tmp_path: Path):
    data = MadeUp().load(tmp_path)
    first = Prepared(recipe(), seed=0, data=data)
    changed = {
        "recipe": Prepared(recipe(steps=21), seed=0, data=data, split=first.split),
        "seed": Prepared(recipe(), seed=1, data=data, split=first.split),
        "data": Prepared(recipe(), seed=0, data=replace(data, train=data.test), split=first.split),
        "split": Prepared(recipe(), seed=0, data=data, split=Prepared(recipe(), seed=5, data=data).split),
    }
    for part, prepared in changed.items():
        assert {key for key in first.identity if first.identity[key] != prepared.identity[key]} == {part}
