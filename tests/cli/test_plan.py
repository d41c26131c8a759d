"""`meanteacher plan` prints what `mt.plan` computes, and docs/scale.md what it prints."""

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meanteacher import api
from meanteacher.cli import plan as command
from meanteacher.cli.app import app
from meanteacher.devices import GPUS
from meanteacher.recipes import find

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
SMALL = "digits/mean-teacher"


def printed(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["plan", *words])
    assert done.exit_code == code, done.output
    return done.output


def _shown() -> list[tuple[str, str]]:
    """The commands of the page and what stands below them."""
    section = PAGE.read_text(encoding="utf-8").partition("## What a run needs\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^    meanteacher plan (.*)\n\n((?:    .*\n|\n)+)", section, flags=re.M)
    return [(words, re.sub(r"^    ", "", text, flags=re.M).strip("\n")) for words, text in blocks]


def test_the_page_shows_the_paper_s_run_and_a_thousand_times_its_data():
    commands = [shlex.split(words) for words, _ in _shown()]
    assert [words[:3] for words in commands] == [["table4/imagenet-10/mean-teacher-resnet", "--gpus", "10"]] * 2
    assert commands[1][3:] == ["--data-factor", "1000"]


@pytest.mark.parametrize("k", [0, 1])
def test_the_page_shows_what_the_command_prints(k: int):
    words, text = _shown()[k]
    lines = [line.rstrip() for line in printed(*shlex.split(words)).splitlines()]
    assert "\n".join(lines) == text


def test_json_has_every_number_of_the_plan():
    found = json.loads(printed(SMALL, "--gpus", "4", "--json"))
    expected = api.plan(find(SMALL), gpus=4)
    assert found["needs"]["bfloat16"]["total"] == expected.needs["bfloat16"].total
    assert found["communicated"] == expected.communicated
    assert found["counted"]["n_parameters"] == expected.counted.n_parameters


def test_every_figure_of_the_device_can_be_replaced():
    given = {"device-memory": 7, "tflops": 10, "tflops-bfloat16": 40, "efficiency": 0.5, "bandwidth": 25}
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    found = json.loads(printed(SMALL, "--gpus", "4", "--json", *words))
    gpu, counted = found["gpu"], found["counted"]
    assert (gpu["memory"], gpu["bandwidth"]) == (7, 25)
    assert gpu["tflops"] == {"float32": 10, "bfloat16": 40}
    need = found["needs"]["bfloat16"]
    assert need["compute_seconds"] == pytest.approx(found["rows"] * counted["flops"] / (40e12 * 0.5))
    assert need["communication_seconds"] == pytest.approx(sum(found["communicated"].values()) / 25e9)


def test_a_device_without_bfloat16_has_one_column():
    assert "bfloat16" not in printed(SMALL, "--gpu", "v100-16gb")
    assert "bfloat16" in printed(SMALL, "--gpu", "v100-16gb", "--tflops-bfloat16", "10")


def test_too_little_memory_is_said_with_a_way_out():
    text = printed(SMALL, "--device-memory", "1")
    assert "does not fit" in text
    assert "more memory" in text


@pytest.mark.parametrize(
    "words",
    [["no/recipe"], [SMALL, "--gpu", "abacus"], [SMALL, "--tflops", "0"], [SMALL, "--gpus", "1000"]],
)
def test_what_cannot_be_planned_is_refused(words: list[str]):
    assert "Error: " in CliRunner().invoke(app, ["plan", *words]).output
    printed(*words, code=2)


def test_the_names_of_the_help_are_those_of_the_table():
    assert tuple(GPUS) == command._GPU_NAMES
