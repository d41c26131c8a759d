"""What every test and doctest finds: the CPU, and the names that doctests use."""

import os

import pytest
import torch

from meanteacher.devices import VARIABLE

# Bytes are promised on a CPU alone: with a GPU in the machine the tests, and the processes they start, still take it.
os.environ[VARIABLE] = "cpu"
# No test can see whether bytes have reached the disk, and to wait for it takes longer than a short run. Tests of what
# happens where it fails have a stand-in of their own.
os.fsync = lambda descriptor: None


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace["torch"] = torch
