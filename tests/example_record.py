"""Measures the dense examples over their five seeds, for docs/records/examples.json and docs/own-module.md.

python tests/example_record.py segmentation tokens
"""

import inspect
import json
import math
import platform
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "docs" / "records" / "examples.json"
PAGE = ROOT / "docs" / "own-module.md"


def measure(name: str) -> dict[str, object]:
    main = __import__(name).main
    defaults = {key: value.default for key, value in inspect.signature(main).parameters.items()}
    began = time.perf_counter()
    errors = main()
    n_runs = sum(len(of_seeds) for of_seeds in errors.values())
    return {**defaults, "errors": errors, "seconds_per_run": (time.perf_counter() - began) / n_runs}


def gain(runs: dict[str, Any]) -> tuple[float, float]:
    """Mean Teacher's error less that of supervised-only training, paired by seed: its mean and its standard error."""
    pairs = zip(runs["errors"]["Mean Teacher"], runs["errors"]["supervised-only"], strict=True)
    differences = [ours - theirs for ours, theirs in pairs]
    return statistics.mean(differences), statistics.stdev(differences) / math.sqrt(len(differences))


def row(name: str, runs: dict[str, Any]) -> str:
    """Of the table in docs/own-module.md."""
    supervised, ours = runs["errors"]["supervised-only"], runs["errors"]["Mean Teacher"]
    cells = [f"{100 * statistics.mean(e):.1f} ± {100 * statistics.stdev(e):.1f}" for e in (supervised, ours)]
    mean, error = gain(runs)
    difference = f"{100 * mean:+.1f} ± {100 * error:.1f}".replace("-", "−")
    wins = sum(our < their for our, their in zip(ours, supervised, strict=True))
    return f"| `{name}` | {cells[0]} | {cells[1]} | {difference} | {wins} of {len(ours)} |"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "examples"))
    torch.set_num_threads(1)
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    record["environment"] = {"python": platform.python_version(), "torch": torch.__version__, "threads": 1}
    for name in sys.argv[1:]:
        record["examples"][name] = measure(name)
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    for name, runs in record["examples"].items():
        page = re.sub(rf"^\| `{name}` \|.*$", row(name, runs), page, flags=re.M)
    PAGE.write_text(page, encoding="utf-8")
