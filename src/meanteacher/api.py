"""Running recipes from Python: by name, from a file of your own, or as a value."""

import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from meanteacher import experiment
from meanteacher.core import InputError, Interrupted, Resume
from meanteacher.data import TrainTest
from meanteacher.data.download import data_folder
from meanteacher.experiment import Recipe
from meanteacher.experiment.runs import Run
from meanteacher.recipes import find
from meanteacher.records import Record
from meanteacher.train import Callback
from meanteacher.train.execution import DEFAULT, RunOptions


def run(
    recipe: Recipe | str,
    *,
    seed: int = 0,
    out: Path | str | None = None,
    data: TrainTest | Path | str | None = None,
    resume: Resume = False,
    options: RunOptions = DEFAULT,
    callbacks: Sequence[Callback] = (),
) -> Record:
    """Train a recipe and write everything about the run to a folder, as `meanteacher run` does.

    Processes that were started together, for instance by `torchrun`, train one network: each calls this function with
    the same arguments, and rank 0 writes.

    Args:
        recipe: a recipe, its name ("fast/svhn-500"), or where it is defined ("my_file.py:recipe")
        seed: of the labelled set, the batches, the noise and the weights
        out: a folder for this run alone; runs/RECIPE/seed-N if not given
        data: the folder of the data files, to which missing ones are downloaded; ~/.cache/meanteacher or what
            MEANTEACHER_DATA says if not given. Several runs on the same data can share what `recipe.data.source`
            has loaded
        resume: continue the run in `out`; one that is complete only returns its record. "auto" starts the run,
            or continues it if it was started before
        options: device, precision and other ways to execute the run; a resumed run keeps its own
        callbacks: follow the run, and may stop it

    Returns:
        The record, which is also in record.json.

    Raises:
        InputError: something given is wrong; nothing in `out` is lost.
        DivergedError: the costs are no longer finite; the last good checkpoint is kept.
        Interrupted: a callback's `should_stop` ended the run.

    >>> from tempfile import mkdtemp
    >>> recipe = find("moons/mean-teacher").varied(name="mine", steps=20, evaluate_every=10)
    >>> record = run(recipe, seed=0, out=f"{mkdtemp()}/run")
    >>> [point.step for point in record.curve], record.data.n_labelled
    ([10, 20], 6)
    """
    recipe = load_recipe(recipe) if isinstance(recipe, str) else recipe
    if data is None or isinstance(data, str | Path):
        data = recipe.data.source.load(data_folder(None if data is None else Path(data)))
    outcome = experiment.run(
        recipe,
        seed=seed,
        out=Run(recipe.name, recipe, seed).folder if out is None else Path(out),
        data=data,
        resume=resume,
        options=options,
        callbacks=callbacks,
    )
    if outcome.record is None:
        raise Interrupted(f"Interrupted after step {outcome.step}; nothing is lost.")
    return outcome.record


def load_recipe(name: str) -> Recipe:
    """The recipe of that name, or with "my_file.py:recipe" the one that a Python file defines.

    The file is executed. It can import modules from its own folder.

    Raises:
        InputError: there is none, or the file cannot be executed.
    """
    path, _, variable = (name, "", "") if name.endswith(".py") else name.rpartition(":")
    if not path.endswith(".py"):
        return find(name)
    defined = vars(_executed(Path(path)))
    recipes = [key for key, value in defined.items() if isinstance(value, Recipe)]
    there = f"Its recipes are: {', '.join(recipes)}." if recipes else "It defines no recipe."
    if not variable:
        example = recipes[0] if recipes else "recipe"
        raise InputError(f"{path}: name the recipe in it, as in {path}:{example}. {there}")
    if variable not in defined:
        near = get_close_matches(variable, recipes, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InputError(f"{path} defines no {variable!r}.{hint} {there}")
    recipe = defined[variable]
    if not isinstance(recipe, Recipe):
        raise InputError(f"{name} is of type {type(recipe).__name__}, expected a Recipe. {there}")
    return recipe


def _executed(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"There is no file {path}. Give FILE.py:NAME, or the name of a recipe (meanteacher list).")
    # Its classes are described, and so recorded, by this name: one that no installed module has.
    spec = spec_from_file_location(f"recipe_file_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up the types of their fields
    try:
        with _importable(path.resolve().parent):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        raise InputError(f"{_place(error, path)}: {_sentence(error)}") from error
    return module


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _place(error: BaseException, path: Path) -> str:
    """The line of the file that failed: the last one that was being executed, or the one that is not Python."""
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        places.append((error.filename or "", error.lineno))
    lines = [line for file, line in places if Path(file).resolve() == path.resolve()]
    return f"{path}, line {lines[-1]}" if lines else str(path)


def _sentence(error: BaseException) -> str:
    if isinstance(error, InputError):
        return str(error)
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    first = message.strip().partition("\n")[0].removesuffix(".")
    return f"{type(error).__name__}: {first}." if first else f"{type(error).__name__}."
