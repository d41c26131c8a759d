"""What every test and doctest finds: the CPU, and the names that doctests use."""

import os

import pytest
import torch

from meanteacher.devices import VARIABLE

# Bytes are promised on a CPU alone: with a GPU in the machine the tests, and the processes they start, still take it.
os.environ[VARIABLE] = "cpu"


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace["torch"] = torch
