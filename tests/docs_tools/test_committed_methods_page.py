"""The committed page of the methods."""

from pathlib import Path

from gallery import write_methods_page
from meanteacher.experiment.describe import fingerprint
from meanteacher.recipes import RECIPES
from methods_page import load_gathered

DOCS = Path(__file__).parents[2] / "docs"


def test_committed_page_follows_from_its_records_and_todays_recipes(tmp_path: Path):
    """If it fails: python docs/tools/gallery.py, or with --page-only if only words have changed."""
    records = load_gathered(DOCS / "methods" / "records.json")
    assert {run.recipe: run.recipe_fingerprint for run in records} == {
        name: fingerprint(recipe) for name, recipe in RECIPES.items() if name.startswith("moons/")
    }
    (tmp_path / "methods").symlink_to(DOCS / "methods", target_is_directory=True)
    assert write_methods_page(tmp_path).read_text() == (DOCS / "methods.md").read_text()


def test_every_semi_supervised_method_beats_supervised_only_on_average_over_ten_draws():
    """On the committed records; a method that does not would be named on the page, and here."""
    errors: dict[str, list[float]] = {}
    for run in load_gathered(DOCS / "methods" / "records.json"):
        assert run.last is not None
        error = run.last["test"].teacher
        assert error is not None
        errors.setdefault(run.recipe, []).append(error)
    assert all(len(values) == 10 for values in errors.values())
    means = {recipe: sum(values) / len(values) for recipe, values in errors.items()}
    worse = [recipe for recipe, mean in means.items() if mean > means["moons/supervised"]]
    assert worse == []
