"""Made-up records: one call, one run."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meanteacher.report import Record, load_record

Content = dict[str, Any]


def content_of(
    method: str = "mean-teacher",
    seed: int = 0,
    *,
    student: float | None = 0.12,
    teacher: float | None = 0.08,
    n_labelled: int = 40,
    n_test: int = 597,
    recipe: str | None = None,
    **changes: Any,
) -> Content:
    """What a run of `method` writes; the labelled set is a function of seed and number of labels."""
    record = {
        "schema": 1,
        "recipe": {
            "name": recipe or f"digits/{method}",
            "fingerprint": f"recipe-of-{recipe or method}",
            "fields": {"steps": 600, "optim": {"name": "Adam", "learning_rate": 0.003}},
        },
        "method": method,
        "seed": seed,
        "status": "complete",
        "data": {
            "fingerprint": "data-of-digits",
            "n_train": 1200,
            "n_labelled": n_labelled,
            "n_validation": 0,
            "n_test": n_test,
            "class_names": ["zero", "one", "two"],
        },
        "split": {"fingerprint": f"split-{n_labelled}-{seed}"},
        "environment": {
            "meanteacher": "0.1.0",
            "python": "3.11.7",
            "torch": "2.13.0",
            "numpy": "2.4.6",
            "commit": "abc1234",
            "platform": "Linux",
            "device": "cpu",
            "threads": 2,
        },
        "n_parameters": 12345,
        "steps": 600,
        "seconds": 4.2,
        "images_per_second": 12345.0,
        "curve": [
            {"step": 300, "part": "test", "student": 0.5, "teacher": 0.6},
            {"step": 600, "part": "test", "student": student, "teacher": teacher},
        ],
        "errors": {
            "last": {
                "step": 600,
                "student": {"test": student, "validation": None},
                "teacher": {"test": teacher, "validation": None},
            },
            "best_validation": None,
        },
        "vitals": [
            {
                "step": 0,
                "gradients": {"classification": 1.2, "consistency": 0.01},
                "distance": 0.0,
                "labelled_share": 0.1,
                "largest_class_share": 0.3,
            }
        ],
        "alarms": [],
    }
    return copy.deepcopy(record | changes)


@pytest.fixture
def content() -> Callable[..., Content]:
    return content_of


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Content], Path]:
    """Write a record into a folder of its own and return its path."""

    def write(record: Content) -> Path:
        path = tmp_path / "runs" / f"{len(list(tmp_path.rglob('record.json'))):03d}" / "record.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(record), encoding="utf-8")
        return path

    return write


@pytest.fixture
def run(write: Callable[[Content], Path]) -> Callable[..., Record]:
    """A run that has been written and read back."""
    return lambda *args, **kwargs: load_record(write(content_of(*args, **kwargs)))
