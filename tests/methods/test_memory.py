"""The memory of a method that keeps more than a teacher."""

import pytest
import torch
from safetensors.torch import load_model, save_model

from meanteacher.teacher import Memory
from support import METHODS, PROBLEM, SmallNet, train_steps

COMPOSED = ["gamma-model", "improved-gan", "temporal-ensembling", "freematch"]


def test_these_are_all_of_them():
    composed = {name for name, method in METHODS.items() if isinstance(method.init(SmallNet(), PROBLEM), Memory)}
    assert composed == set(COMPOSED)


@pytest.mark.parametrize("name", COMPOSED)
def test_a_memory_is_saved_and_read_again(name: str, tmp_path):
    method = METHODS[name]
    student = SmallNet()
    memory = method.init(student, PROBLEM)
    train_steps(method, student, memory, steps=3)
    save_model(memory, str(tmp_path / "memory.safetensors"))
    fresh = method.init(SmallNet(), PROBLEM)
    load_model(fresh, tmp_path / "memory.safetensors")
    saved = memory.state_dict()
    assert all(torch.equal(value, saved[key]) for key, value in fresh.state_dict().items())
