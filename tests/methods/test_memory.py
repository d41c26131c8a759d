"""The memory of a method that keeps more than a teacher."""

import re

import pytest
import torch
from safetensors.torch import load_model, save_file

from meanteacher.teacher import Memory
from support import METHODS, PROBLEM, SmallNet, train_steps

COMPOSED = {"gamma-model": "denoise.", "improved-gan": "generator.", "temporal-ensembling": "", "freematch": ""}
"""method -> what came before the names of its own part in checkpoints of version 0.1."""


def test_these_are_all_of_them():
    composed = {name for name, method in METHODS.items() if isinstance(method.init(SmallNet(), PROBLEM), Memory)}
    assert composed == set(COMPOSED)


@pytest.mark.parametrize("name", COMPOSED)
def test_a_checkpoint_with_the_names_of_version_0_1_is_read(name: str, tmp_path):
    method = METHODS[name]
    student = SmallNet()
    memory = method.init(student, PROBLEM)
    train_steps(method, student, memory, steps=3)
    saved = memory.state_dict()
    old = {re.sub(r"^own\.", COMPOSED[name], key.removeprefix("teacher.")): value for key, value in saved.items()}
    assert not set(old) & set(saved)
    save_file(old, tmp_path / "memory.safetensors")
    fresh = method.init(SmallNet(), PROBLEM)
    load_model(fresh, tmp_path / "memory.safetensors")
    for key, value in fresh.state_dict().items():
        assert torch.equal(value, saved[key]), key


def test_a_name_that_no_version_wrote_is_refused():
    memory = METHODS["gamma-model"].init(SmallNet(), PROBLEM)
    with pytest.raises(RuntimeError, match="Unexpected"):
        memory.load_state_dict({**memory.state_dict(), "average": torch.zeros(1)})
