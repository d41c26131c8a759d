"""`meanteacher fit` and `meanteacher check`."""

import shlex
import tempfile
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from meanteacher.cli.console import graceful_stop, said_device
from meanteacher.cli.progress import RunProgress
from meanteacher.core import InputError
from meanteacher.fitting.fit import Wishes, fit
from meanteacher.fitting.plan import image_size
from meanteacher.formats import count, percent, percent_range
from meanteacher.photos.cache import decode_all
from meanteacher.photos.check import check
from meanteacher.photos.find import find_photos
from meanteacher.photos.findings import Finding, shapes_of
from meanteacher.report import RecordError, write_report

_COLOURS = {"problem": "red", "warning": "yellow", "note": "cyan"}


class _Terminal:
    """Tells a person at a terminal what the fit is doing."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bar: Progress | None = None
        self._doing = ""

    def show(self, name: str, steps: int) -> RunProgress:
        return RunProgress(self.console, name, steps=steps)

    def say(self, sentence: str) -> None:
        self.console.print(escape(sentence), soft_wrap=True, highlight=False)

    def found(self, findings: tuple[Finding, ...]) -> None:
        for finding in findings:
            colour = _COLOURS[finding.severity]
            line = f"[{colour}]{finding.severity.capitalize()}:[/] {escape(finding.sentence)}"
            self.console.print(line, soft_wrap=True, highlight=False)

    def progress(self, doing: str, done: int, total: int) -> None:
        if self._bar is None or self._doing != doing:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=self.console,
                disable=not self.console.is_terminal,
                transient=True,
            )
            self._doing = doing
            self._bar.add_task(doing, total=total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done)
        if done >= total:
            self._bar.stop()
            self._bar = None


def run_fit(wishes: Wishes, began: float) -> bool:
    """Fit, in minutes that count from `began`, and say what came of it. Returns whether it is complete."""
    console = Console()

    def announce() -> None:
        console.print("Finishing this step and saving; press Ctrl-C again to stop at once.")

    with graceful_stop(announce) as should_stop:
        fitted = fit(wishes, _Terminal(console), should_stop=should_stop, began=began)
    if fitted is None:
        console.print("Interrupted; nothing is lost. Resume with:", highlight=False)
        console.print(f"  {escape(_again(wishes))}", soft_wrap=True, highlight=False)
        return False
    console.print()
    console.print(f"[bold]{escape(fitted['answer']['sentence'])}[/]", soft_wrap=True, highlight=False)
    estimate = fitted["estimate"][fitted["answer"]["shipped"]]
    judges = count(fitted["estimate"]["n"], "labelled image")
    console.print(
        f"The model that is kept errs on {percent(estimate['error'])} (95 % interval "
        f"{percent_range(estimate['low'], estimate['high'])}), judged by {judges}.",
        soft_wrap=True,
        highlight=False,
    )
    for name, what in (
        ("report.html", "the report, to be opened in a browser"),
        ("predictions.csv", "a label for every image"),
        ("label-next.csv", "the images whose labels would help most"),
        ("model", "the model, for meanteacher predict"),
    ):
        console.print(f"  {escape(str(wishes.out / name))}: {what}", soft_wrap=True, highlight=False)
    return True


def run_check(photos: Path, labels: Path | None) -> None:
    """Say what there is and what is wrong with it; writes nothing that stays."""
    console = Console()
    terminal = _Terminal(console)
    found = find_photos(photos, labels)
    shapes = None if found.arrays is not None else shapes_of(found)
    size = image_size(shapes) if found.arrays is None else image_size(None, min(found.arrays.shape[1:3]))
    with tempfile.TemporaryDirectory() as folder:
        decoded = decode_all(
            found, size, Path(folder), progress=lambda done, n: terminal.progress("Reading images", done, n)
        )
        findings = check(found, decoded, shapes)
    n_labelled, n_classes = int((found.labels >= 0).sum()), len(found.class_names)
    terminal.say(
        f"{count(len(found))}, {n_labelled:,} of them labelled, in {count(n_classes, 'class', 'classes')}: "
        f"{', '.join(found.class_names[:20])}{' …' if n_classes > 20 else ''}."
    )
    terminal.found(findings)
    if not findings:
        terminal.say("Nothing to complain about.")


def run_report(folders: list[Path], out: Path | None) -> None:
    """Write the pages of fits and of runs."""
    console = Console()
    try:
        written = write_report(folders, out)
    except RecordError as error:
        raise InputError(str(error)) from error
    console.print(f"Written: {escape(', '.join(map(str, written)))}", highlight=False, soft_wrap=True)


def _again(wishes: Wishes) -> str:
    words = ["meanteacher", "fit", str(wishes.photos), "--minutes", f"{wishes.minutes:g}", "--out", str(wishes.out)]
    words += ["--labels", str(wishes.labels)] if wishes.labels else []
    words += ["--from", str(wishes.start)] if wishes.start else []
    words += said_device(wishes.device)
    words += [] if wishes.flip is None else ["--flip" if wishes.flip else "--no-flip"]
    return shlex.join([*words, "--resume"])
