"""Everything that docs/scikit-learn.md says can be run is run, top to bottom."""

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "scikit-learn.md").read_text(encoding="utf-8")


def test_python_of_the_page_runs_as_it_stands(capsys: pytest.CaptureFixture[str]):
    names: dict[str, Any] = {}
    said = []
    for snippet in re.findall(r"```python\n(.*?)```", PAGE, flags=re.S):
        exec(snippet, names)
        said.append(capsys.readouterr().out.split())
    first, chosen, shape, own, best, others, online = said
    assert float(first[0]) > 0.9
    assert chosen[0] in ("network", "logistic", "kernel")
    assert float(own[0]) > 0.8
    assert shape == ["(450,", "10)"]
    assert "meanteacherclassifier__noise" in best[0]
    assert all(float(score) > 0.7 for score in others[1::2])
    assert others[::2] == ["supervised", "pi-model", "vat"]
    assert float(online[0]) > 0.7
