"""Complete runs without training: the record that a run of a table would have written."""

import json
from pathlib import Path
from typing import Any

from meanteacher.experiment.describe import describe, fingerprint
from meanteacher.experiment.runs import Run

_METHODS = {"Supervised": "supervised", "PiModel": "pi-model", "MeanTeacher": "mean-teacher"}


def write_record(run: Run, error: float, **changes: Any) -> Path:
    """As if the run had ended with this error of the teacher, on test and validation images alike."""
    kind = type(run.recipe.training.method).__name__
    part = {"test": error, "validation": error}
    record = {
        "schema": 1,
        "recipe": {
            "name": run.recipe.name,
            "fingerprint": fingerprint(run.recipe),
            "fields": describe(run.recipe),
        },
        "method": _METHODS.get(kind, kind),
        "seed": run.seed,
        "data": {
            "fingerprint": "data",
            "n_train": 1000,
            "n_labelled": 10,
            "n_validation": 100,
            "n_test": 20_000,
            "class_names": ["a", "b"],
        },
        "split_fingerprint": f"split-{run.seed}",
        "environment": {"threads": 1},
        "n_parameters": 5,
        "memory_bytes": 340_008,
        "processes": [{"from_step": 0, "n": 1}],
        "steps": run.recipe.training.steps,
        "skipped_steps": 0,
        "seconds": 75.0,
        "cpu_seconds": 74.0,
        "images_per_second": 3.0,
        "curve": [
            {"step": 10, "part": "test", "student": 0.5, "teacher": 0.4, "student_cost": 1.0, "teacher_cost": 0.5}
        ],
        "errors": {
            "last": {"step": run.recipe.training.steps, "student": part, "teacher": part},
            "best_validation": None,
        },
        "vitals": [],
        "alarms": [],
    }
    run.folder.mkdir(parents=True, exist_ok=True)
    run.record.write_text(json.dumps(record | changes), encoding="utf-8")
    return run.record
