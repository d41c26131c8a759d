"""The start of a labelling session: which photos, which fit, which labels file, and the first questions."""

import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from meanteacher.core import InputError
from meanteacher.files.typed import RecordError
from meanteacher.formats import escape_name
from meanteacher.photos.folder.find import Given, Photos, find_files, folder_labels, given_labels
from meanteacher.photos.folder.tables import NEXT, REVIEW, SUSPICIOUS, read_table
from meanteacher.photos.label.session import Question, Session, stamp_of
from meanteacher.records import Fit, read_fit

LABEL_NEXT, PREDICTIONS = "label-next.csv", "predictions.csv"
_DEFAULT_RUN = Path("fit")


def open_session(
    photos: Path,
    run: Path | None = None,
    labels: Path | None = None,
    *,
    classes: Sequence[str] = (),
    review: bool = False,
) -> Session:
    """Start a session, or continue an earlier one.

    After a fit, the first questions are those of its label-next.csv, or with `review` the labels that its out-of-fold
    answers contradict. Without `run`, the folder `fit` is taken if it holds a fit of these photos. Before any fit, the
    session starts with photos drawn at random.

    The answers are appended to `labels`, by default the labels file of the fit, labels.csv in its folder, or before any
    fit ./labels.csv. A new file starts with every label of the fit, because the next fit uses only that file.
    """
    fitted = _read_run(photos, run)
    if review and not fitted:
        raise InputError(
            "A review needs a fit of these photos: run `meanteacher fit` first, or name its folder (--run)."
        )
    run = run or _DEFAULT_RUN
    used = _as_seen_from_here(Path(fitted.data.labels_file)) if fitted and fitted.data.labels_file else None
    file = labels or used or (run / "labels.csv" if fitted else Path("labels.csv"))
    if not (file.parent.is_dir() and os.access(file.parent, os.W_OK)):
        raise InputError(f"Cannot write to the folder {file.parent}: create it, or give another file with --labels.")
    source = file if file.exists() else used
    if fitted and fitted.data.source == "csv" and not (source and source.exists()):
        raise InputError(f"The labels file of the fit in {run} is missing: give the file of its labels with --labels.")
    read = stamp_of(file)
    found = find_files(_root(photos, fitted))
    known = (
        given_labels(found.root, found.names, source)
        if source
        else folder_labels(found.names, beside_table=fitted is None)
    )
    named = (*classes, *(fitted.data.class_names if fitted else ()))
    class_names = (*named, *sorted({given.label for given in known.values()} - {*named}))
    planned: Sequence[Question] = ()
    if fitted:
        planned = _disagreements(run, found, known) if review else _suggestions(run, found, class_names)
    return Session(
        found,
        known,
        class_names,
        file=file,
        command=_command(found.root, file, run, fitted),
        planned=planned,
        review=review,
        read=read,
    )


def _read_run(photos: Path, run: Path | None) -> Fit | None:
    """The fit in the folder; without a folder that in ./fit, if it is one of these photos."""
    if run is not None and not run.is_dir():
        raise InputError(f"There is no folder {run}: give the folder that `meanteacher fit` wrote (its --out).")
    try:
        fitted = read_fit(run or _DEFAULT_RUN)
    except RecordError as error:
        if run is None:
            return None
        raise InputError(
            f"{run} has no readable fit.json: give the folder of a finished `meanteacher fit` (its --out). {error}"
        ) from error
    used, given = Path(fitted.data.photos), photos.resolve()
    return fitted if run or given in (used, used.parent) else None


def _as_seen_from_here(file: Path) -> Path:
    """The file relative to the current folder if it is below that."""
    return file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file


def _root(photos: Path, fitted: Fit | None) -> Path:
    """The folder that names are relative to: the given one, or the only folder in it if the fit has entered that."""
    inner = photos.resolve()
    if fitted and (used := Path(fitted.data.photos)) != inner and used.parent == inner:
        return photos / used.name
    return photos


def _suggestions(run: Path, photos: Photos, class_names: Collection[str]) -> list[Question]:
    """The rows of label-next.csv whose photos exist, in its order."""
    return [
        Question(index, NEXT, _unescape(guess, class_names), _fraction(confidence), reason)
        for index, (guess, confidence, reason) in _rows_of(run / LABEL_NEXT, photos, ("guess", "confidence", "reason"))
    ]


def _disagreements(run: Path, photos: Photos, known: Mapping[str, Given]) -> list[Question]:
    """The labels that the answers of the fit contradict and that no person has reviewed, the most doubtful first.

    The answer for a labelled photo comes from cross-validation, by a model that did not learn from its label.
    """
    class_names = {given.label for given in known.values()}
    columns = ("guess", "confidence", "second", "second_confidence", "doubt")
    found: list[tuple[float, Question]] = []
    for index, (guess, confidence, second, its_confidence, doubt) in _rows_of(run / PREDICTIONS, photos, columns):
        given = known.get(photos.names[index])
        answer, sure, doubtful = _unescape(guess, class_names), _fraction(confidence), _fraction(doubt) or 0.0
        if given and answer == given.label and doubtful >= SUSPICIOUS:
            answer, sure = _unescape(second, class_names), _fraction(its_confidence)
        if given and not (given.is_none or given.is_reviewed or answer in ("", given.label) or sure is None):
            found.append((doubtful, Question(index, REVIEW, answer, sure)))
    return [question for _, question in sorted(found, key=lambda each: (-each[0], -(each[1].confidence or 0)))]


def _rows_of(file: Path, photos: Photos, columns: tuple[str, ...]) -> list[tuple[int, list[str]]]:
    """The positions of existing photos in a table of the fit, and their cells of these columns."""
    try:
        rows = [cells for _, cells in read_table(file, ("path", *columns))]
    except InputError as error:
        raise InputError(f"{error} Fit again to write {file.name} again.") from error
    by_name = {escape_name(name): index for index, name in enumerate(photos.names)}
    found = [(by_name.get(_unescape(escape_name(path), by_name)), cells) for path, *cells in rows]
    if rows and all(index is None for index, _ in found):
        raise InputError(
            f"{photos.root} contains none of the {len(rows)} images of {file}, such as "
            f"{escape_name(rows[0][0])!r}: give the folder of images that was fitted."
        )
    return list({index: cells for index, cells in found if index is not None}.items())


def _unescape(cell: str, known: Collection[str]) -> str:
    """The cell without the apostrophe that keeps a spreadsheet from reading a name as a formula."""
    return cell[1:] if cell.startswith("'") and cell not in known and cell[1:] in known else cell


def _fraction(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if 0 <= value <= 1 else None


def _command(photos: Path, file: Path, run: Path, fitted: Fit | None) -> str:
    """The command that fits with all labels so far."""
    command: list[object] = ["meanteacher", "fit", photos, "--labels", file]
    if fitted:
        command += ["--minutes", f"{fitted.minutes:g}", "--out", run, "--overwrite"]
    elif _DEFAULT_RUN.exists():
        command += ["--out", f"fit-{photos.resolve().name}"]
    return shlex.join(map(str, command))
