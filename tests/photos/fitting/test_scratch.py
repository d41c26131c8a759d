"""How the time of a fit from scratch is divided among the networks that test and the one that ships."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meanteacher.photos.fitting import scratch

SECONDS = {1.0: 0.4, 0.5: 0.1, 0.25: 0.04}
"""width -> seconds of a step."""


@pytest.mark.parametrize(
    ("seconds", "width", "n_tested", "steps"),
    [
        (4000, 1.0, 4, 1700),  # 8,500 steps for five networks
        (2000, 0.5, 5, 2833),
        (600, 0.5, 2, 1700),
        (280, 0.25, 2, 1983),
        (130, 0.25, 1, 1381),  # two networks, neither of which gets the steps that are wanted
        (1, 0.25, 1, 60),
    ],
)
def test_as_many_folds_are_tested_as_leave_each_network_enough_steps(
    seconds: float, width: float, n_tested: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(training: Any, **options: Any) -> list[float]:
        return [9.0, SECONDS[training.model.width], SECONDS[training.model.width]]

    monkeypatch.setattr(scratch, "step_seconds", timed)
    monkeypatch.setattr(scratch, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    work: Any = SimpleNamespace(record=SimpleNamespace(flip=False), ends=seconds, device="cpu")
    images, labels = np.zeros((4, 3, 8, 8), np.uint8), np.array([0, 1, -1, -1])
    assert scratch._length(images, labels, 2, work) == (width, steps, n_tested)
