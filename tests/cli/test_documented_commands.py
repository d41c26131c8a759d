"""Every command in the documentation is one that the command line accepts."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from meanteacher.cli.app import app
from meanteacher.cli.run import recipe_names

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GROUP: Any = typer.main.get_command(app)


def _in_blocks(text: str) -> list[list[str]]:
    """Words of the lines of code blocks, without `meanteacher`, comments and the file that the output goes to."""
    lines = re.findall(r"^(?:    )?meanteacher (.+?)(?: > \S+(?: .*)?)?$", text, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def _in_sentences(text: str) -> list[list[str]]:
    """Words between backticks; arguments may be left out."""
    return [words.split() for words in re.findall(r"`meanteacher\s+([^`]+)`", text)]


def _check_names(words: list[str]) -> Any:
    """The command, once its name and the names of its options are known."""
    if words[0].startswith("--"):
        assert words[0] in {name for option in GROUP.params for name in option.opts}, words
        return None
    assert words[0] in GROUP.commands, words
    command = GROUP.commands[words[0]]
    options = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= options, words
    return command


def _check_all(words: list[str]) -> None:
    """Arguments and values too."""
    command = _check_names(words)
    context = command.make_context(words[0], words[1:])
    if words[0] == "run":
        assert ".py:" in context.params["recipe"] or context.params["recipe"] in recipe_names(), words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_on_a_page_exists_with_its_options(page: Path):
    text = page.read_text(encoding="utf-8")
    for words in _in_sentences(text):
        _check_names(words)
    for words in _in_blocks(text):
        _check_all(words)


def test_the_commands_of_the_pages_are_found():
    blocks, sentences = (
        [words[0] for page in PAGES for words in find(page.read_text(encoding="utf-8"))]
        for find in (_in_blocks, _in_sentences)
    )
    assert {"fit", "predict", "label", "run", "list"} <= set(blocks)
    assert {"fit", "run", "predict"} <= set(sentences)


@pytest.mark.parametrize(
    "line", ["bench", "fit PHOTOS --minuts 3", "run fast/svhn-499", "run", "fit PHOTOS --minutes many"]
)
def test_a_command_that_does_not_exist_is_noticed(line: str):
    (words,) = _in_blocks(f"Text.\n\n    meanteacher {line}  # comment\n")
    with pytest.raises((AssertionError, typer.BadParameter)):
        _check_all(words)
