"""`meanteacher demo`: three methods on the digits, from labels to page."""

import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from meanteacher.cli.console import graceful_stop
from meanteacher.cli.run import say_how_to_go_on, train_all
from meanteacher.recipes import find
from meanteacher.report import answer, display_name, load_records, summarise, to_text, write_page

_METHODS = ("supervised", "pi-model", "mean-teacher")


def run_demo(out: Path, draws: int, device: str = "auto") -> bool:
    """Train what is missing in `out`, then show everything there. Returns whether it is complete."""
    console = Console()
    recipes = {display_name(name): find(f"digits/{name}") for name in _METHODS}
    spec = next(iter(recipes.values())).data
    data = spec.source.load(out)
    console.print(
        f"Digits: {len(data.train)} training images, {spec.n_labelled} of them labelled, "
        f"{len(data.test)} to test on. {len(recipes)} methods, {draws} draws of the labels each.",
        highlight=False,
    )
    began = time.monotonic()
    with graceful_stop(lambda: console.print("Saving, then stopping.")) as should_stop:
        complete = train_all(console, recipes, draws=draws, out=out, data=data, device=device, should_stop=should_stop)
    if not complete:
        say_how_to_go_on(console, device, "demo", "--out", str(out), "--draws", str(draws))
        return False
    records = [record for record in load_records(out) if record.seed < draws]
    console.print()
    console.print(to_text(summarise(records)), highlight=False, soft_wrap=True)
    for sentence in answer(records):
        console.print(sentence, highlight=False)
    page = write_page(records, out / "report.html", f"Digits with {spec.n_labelled} labels")
    console.print(f"{time.monotonic() - began:.0f} s. The page: {escape(str(page))}", highlight=False, soft_wrap=True)
    return True
