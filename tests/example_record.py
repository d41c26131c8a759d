"""Measures the dense examples over their five seeds, for docs/records/examples.json.

python tests/example_record.py segmentation tokens
"""

import inspect
import json
import platform
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "docs" / "records" / "examples.json"


def measure(name: str) -> dict[str, object]:
    main = __import__(name).main
    defaults = {key: value.default for key, value in inspect.signature(main).parameters.items()}
    began = time.perf_counter()
    errors = main()
    n_runs = sum(len(of_seeds) for of_seeds in errors.values())
    return {**defaults, "errors": errors, "seconds_per_run": (time.perf_counter() - began) / n_runs}


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "examples"))
    torch.set_num_threads(1)
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    record["environment"] = {"python": platform.python_version(), "torch": torch.__version__, "threads": 1}
    for name in sys.argv[1:]:
        record["examples"][name] = measure(name)
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
