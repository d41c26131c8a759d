"""Every silent mistake of the catalogue is caught, and the sound code is not accused."""

import re
from pathlib import Path

import pytest
from catalogue import Mutant
from detectors import AREAS, caught_by, prepare
from mutants import MUTANTS

ROOT = Path(__file__).parents[2]
LISTED: list[tuple[str, str]] = re.findall(
    r"^\| (?!mutant )(.+?) \| (.+) \|$", (ROOT / "docs/mutants.md").read_text("utf-8"), re.MULTILINE
)
"""The mutants of docs/mutants.md, and what has caught each."""


@pytest.mark.parametrize("area", AREAS)
def test_sound_code_is_not_accused(area: str):
    assert list(caught_by(area)) == []


def test_catalogue_is_large_and_names_each_mutant_once():
    assert len(MUTANTS) >= 80
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_documents_know_the_whole_catalogue():
    """Write docs/mutants.md anew with: make mutants"""
    assert sorted(name for name, _ in LISTED) == sorted(mutant.name for mutant in MUTANTS)
    assert "**nothing**" not in [found for _, found in LISTED]
    assert f"**{len(MUTANTS)} silent mistakes**" in (ROOT / "README.md").read_text("utf-8")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.area}: {mutant.name}")
def test_mutant_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch, record_property):
    prepare(mutant.area)
    mutant.apply(monkeypatch)
    # The first that notices suffices here. docs/mutants.md names them all, so those are asked before the others.
    listed = re.sub(r" \(\w+\)", "", dict(LISTED).get(mutant.name, "")).split("; ")
    found = next(caught_by(mutant.area, first=listed), None)
    record_property("caught by", found)
    assert found, f"nobody noticed: {mutant.name}"
