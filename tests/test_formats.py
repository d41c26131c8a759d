"""Numbers are written in one way, by one module."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import meanteacher
from meanteacher.formats import certainty, count, percent, percent_range, percentage, points, whole_percent

SRC = Path(meanteacher.__file__).parent
FILES = sorted(path for path in SRC.rglob("*.py") if path.name != "formats.py")


def _percentages(path: Path) -> Iterator[str]:
    """Every f-string that writes a percentage by itself: `{x:.0%}`, or `{x:.1f} %`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, after in zip(node.values, [*node.values[1:], None], strict=True):
            if not isinstance(value, ast.FormattedValue) or value.format_spec is None:
                continue
            spec = ast.unparse(value.format_spec)
            text = after.value if isinstance(after, ast.Constant) else ""
            if "%" in spec or (re.search(r"\.\d?f", spec) and re.match(r"\s?%", str(text))):
                yield f"{path.name}:{node.lineno}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SRC).as_posix())
def test_no_other_module_writes_a_percentage(path: Path):
    assert list(_percentages(path)) == []


def test_the_scan_sees_what_it_looks_for(tmp_path: Path):
    file = tmp_path / "a.py"
    file.write_text('a = f"{x:.0%}"\nb = f"{100 * x:.1f} % wrong"\nc = f"{x:.1f} points, {percent(x)} %"\n')
    assert list(_percentages(file)) == ["a.py:1", "a.py:2"]


TEMPLATES = sorted((SRC / "report" / "templates").glob("*.jinja"))


def test_there_are_templates():
    assert [path.name for path in TEMPLATES] == [
        "card.md.jinja",
        "classifier.html.jinja",
        "contact-sheet.html.jinja",
        "fit.html.jinja",
        "page.html.jinja",
        "paper.html.jinja",
        "predictions.html.jinja",
        "runs.html.jinja",
    ]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_templates_write_no_percentage_by_themselves(path: Path):
    template = path.read_text(encoding="utf-8")
    assert not re.search(r"round\(|\| round|%\.\d?f", template)


def test_percentages_have_one_digit_and_a_space():
    assert [percent(share) for share in (0.19194, 0.0, 1.0, -0.0001)] == ["19.2 %", "0.0 %", "100.0 %", "0.0 %"]
    assert percent(0.0418, 26_032) == "4.18 %"
    assert percentage(0.0418, 9_999) == "4.2"
    assert percent_range(0.193, 0.364) == "19.3 to 36.4 %"
    assert [whole_percent(0.8), whole_percent(0.636, 0.807), whole_percent(-0.001)] == ["80 %", "64 to 81 %", "0 %"]


def test_no_model_is_a_hundred_percent_sure():
    assert [certainty(p) for p in (0.5, 0.9994, 0.9996, 1.0)] == ["50.0 %", "99.9 %", "over 99.9 %", "over 99.9 %"]


def test_counts_have_their_thousands_and_their_plural():
    assert count(2094) == "2,094 images"
    assert count(1, "class", "classes") == "1 class"
    assert points(-0.84) == "−0.8"
