"""`meanteacher demo`: three methods on two moons, from labels to a page."""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from meanteacher.cli.console import graceful_stop, progress_bar, say
from meanteacher.cli.options import DeviceOption
from meanteacher.formats import percent

if TYPE_CHECKING:
    from torch import Tensor

    from meanteacher.data import Dataset, EncodedDataset, Split, TrainTest
    from meanteacher.experiment import Recipe
    from meanteacher.records import Evaluation, Record
    from meanteacher.report.boundary import Floats, Points
    from meanteacher.train import TrainState


METHODS = {"supervised": "supervised-only training", "pi-model": "the Pi model", "mean-teacher": "Mean Teacher"}
"""method -> its name within a sentence, in the order of the errors that is expected"""
MOMENTS = (50, 100, 200, 400, 700, 1000)
"""Steps after which the boundary is drawn."""
WHY_MOONS = (
    "Two moons, and not scikit-learn's digits: there, with 40 labels, Mean Teacher does not beat the Pi model "
    "(docs/experiments/laptop.md)."
)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the page.")] = Path("demo"),
    draws: Annotated[int, typer.Option(min=2, metavar="N", help="Number of label draws per method.")] = 6,
    device: DeviceOption = "auto",
) -> None:
    """Compare three methods on two moons with 6 labels, in about a minute.

    Trains supervised-only, Pi model and Mean Teacher on several draws of the labels, prints their errors and the
    differences paired by draw with their standard errors, and writes a page with the curves and with the decision
    boundary as it grows. Running it again with the same folder trains only the runs that are missing.
    """
    from meanteacher.recipes import find
    from meanteacher.report import display_name, load_records, write_page

    console = Console()
    began = time.monotonic()
    recipes = {display_name(name): find(f"moons/{name}") for name in METHODS}
    spec = next(iter(recipes.values())).data
    data = spec.source.load(out)
    say(
        console,
        f"Two moons: {len(data.train)} training points, {spec.n_labelled} of them labelled, and {len(data.test)} test "
        f"points. {len(recipes)} methods, {draws} draws of the labels each.",
    )
    with graceful_stop(console) as should_stop:
        train_all(console, recipes, draws=draws, out=out, data=data, device=device, should_stop=should_stop)
        picture = growth(recipes, data=data, device=device)
    records = [record for record in load_records(out) if record.seed < draws]
    console.print()
    for line in comparison(records):
        say(console, line)
    say(console, WHY_MOONS)
    page = write_page(
        records,
        out / "report.html",
        f"Two moons with {spec.n_labelled} labels",
        picture=picture,
        sentences=[*verdicts(records), WHY_MOONS],
    )
    say(console, f"{time.monotonic() - began:.0f} s. The page: {page}")


def comparison(records: "Sequence[Record]") -> list[str]:
    """The errors of the methods, and the differences between them paired by draw, as lines for a terminal."""
    from meanteacher.report.compare import aligned, paired_difference, percent_spread, summarise

    rows = {row.method: row for row in summarise(records)}
    lines: list[tuple[str, ...]] = [
        ("Method", "Student error, %", "Teacher error, %", "To supervised-only", "To the Pi model")
    ]
    for i, method in enumerate(METHODS):
        row = rows[method]
        against = [paired_difference(records, other, method).cell(row.n_images) for other in [*METHODS][:i]]
        errors = (percent_spread(each, row.n_images) for each in (row.student, row.teacher))
        lines.append((row.label, *errors, *against, *["–"] * (2 - len(against))))
    explained = "Mean ± standard deviation over the draws; differences in points, paired by draw, ± standard error."
    return [*aligned(lines, n_left=1).splitlines(), explained, *verdicts(records)]


def verdicts(records: "Sequence[Record]") -> list[str]:
    """A sentence on each method and the one before it: whether it is ahead by more than the standard error."""
    from meanteacher.report import paired_difference

    sentences = []
    for worse, better in reversed([*pairwise(METHODS)]):
        found = paired_difference(records, worse, better)
        assert found.standard_error is not None
        ahead = "is ahead of" if found.mean < -found.standard_error else "is not shown to be ahead of"
        n_lower = sum(pair.difference < 0 for pair in found.pairs)
        name = METHODS[better]
        sentences.append(
            f"{name[0].upper()}{name[1:]} {ahead} {METHODS[worse]}: "
            f"{found.cell(records[0].data.n_test)} points, lower in {n_lower} of {found.n} draws."
        )
    return sentences


def growth(recipes: "Mapping[str, Recipe]", *, data: "TrainTest", device: str) -> str:
    """The decision boundary of each recipe (title -> recipe) during its training on the first draw, as SVG.

    Each is trained once more, without files: the same seed gives the same networks, in a second.
    """
    import numpy as np

    from meanteacher.report import boundary

    split = next(iter(recipes.values())).data.split(data.train, 0)
    train, test = points_of(data.train), points_of(data.test)
    window = boundary.Window.around(np.concatenate([train.places, test.places]))
    rows = {
        title: _boundaries(recipe, window.grid(90), split=split, data=data, device=device)
        for title, recipe in recipes.items()
    }
    return boundary.draw_growth(
        window,
        rows,
        test,
        points_of(data.train, split.labelled),
        f"The decision boundary of {', '.join(recipes)} on two moons, from the first steps to the last",
    )


def _boundaries(
    recipe: "Recipe", places: "Floats", *, split: "Split", data: "TrainTest", device: str
) -> dict[str, "Floats"]:
    """Moment of the training -> probability of class 1 at the places."""
    from meanteacher.devices import choose_device
    from meanteacher.experiment import Prepared
    from meanteacher.train import Callback

    prepared = Prepared(recipe.training, data=data, split=split, seed=0, device=choose_device(device))
    state = prepared.start()
    found: dict[str, Floats] = {}

    class Boundaries(Callback):
        def on_evaluation(self, evaluation: "Evaluation") -> None:
            if evaluation.step in MOMENTS or evaluation.step == recipe.training.steps:
                found[f"step {evaluation.step}"] = probability(recipe, state, places)

    prepared.train(state, callbacks=[Boundaries()])
    return found


def probability(recipe: "Recipe", state: "TrainState", places: "Floats") -> "Floats":
    """Probability of class 1 at places [..., 2], by the network that is evaluated."""
    import torch

    from meanteacher.evaluate import predict_logits

    points = torch.from_numpy(places).float().flatten(0, -2)
    logits = predict_logits(state.predictor(recipe.training.method), points, normalise=state.normalise)
    values: Floats = logits.softmax(1)[:, 1].numpy()
    return values.reshape(places.shape[:-1])


def points_of(data: "Dataset | EncodedDataset", rows: "slice | Tensor" = slice(None)) -> "Points":
    """Points of the plane and their classes, to be drawn."""
    from meanteacher.report.boundary import Points

    return Points(data.images[rows].numpy(), data.labels[rows].numpy())


def train_all(
    console: Console,
    recipes: "Mapping[str, Recipe]",
    *,
    draws: int,
    out: Path,
    data: "TrainTest",
    device: str,
    should_stop: Callable[[], bool],
) -> None:
    """Train the runs that are missing in `out`, draw by draw, so that the complete draws can always be compared.

    The recipes (title -> recipe) have the same data; the draws of the labelled set have the seeds 0, 1, …
    After an interruption by `should_stop`, the same call continues from the last step.
    """
    import torch

    from meanteacher import api
    from meanteacher.train import RunOptions, StopWhen

    # These networks are too small for several threads to save time.
    torch.set_num_threads(1)
    with progress_bar(console) as show:
        for seed in range(draws):
            errors: list[str] = []
            for title, recipe in recipes.items():
                show(f"draw {seed + 1}: {title}", seed * len(recipes) + len(errors), draws * len(recipes))
                folder = run_folder(out, recipe, seed)
                record = api.run(
                    recipe,
                    seed=seed,
                    out=folder,
                    data=data,
                    resume=(folder / "run.json").exists(),
                    options=RunOptions(device=device, precision="float32"),
                    callbacks=[StopWhen(should_stop)],
                )
                errors.append(f"{title} {percent(record.error('test'))}")
            say(console, f"draw {seed + 1}: {', '.join(errors)}")


def run_folder(out: Path, recipe: "Recipe", seed: int) -> Path:
    """The folder of one run below `out`."""
    return out / recipe.name / f"seed-{seed}"
