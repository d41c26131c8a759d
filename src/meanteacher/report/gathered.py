"""The numbers of many runs in one file, a line a run: small enough to be kept beside the page that prints them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from meanteacher.report.fields import Field, RecordError
from meanteacher.report.records import Data, Errors, Record, alarm_of, complete_runs, data_of

SCHEMA = 1


def gathered(records: Iterable[Record]) -> str:
    """The complete runs as JSON: their test errors and all that is needed to make them again."""
    runs = complete_runs(records)
    datasets = list(dict.fromkeys(run.data for run in runs))
    environments: list[Mapping[str, str]] = []
    for run in runs:
        if run.environment not in environments:
            environments.append(run.environment)
    lines = [
        {
            "recipe": run.recipe,
            "recipe_fingerprint": run.recipe_fingerprint,
            "method": run.method,
            "seed": run.seed,
            "split_fingerprint": run.split_fingerprint,
            "student": run.errors("test").student,
            "teacher": run.errors("test").teacher,
            "steps": run.steps,
            "seconds": run.seconds,
            "images_per_second": run.images_per_second,
            "n_parameters": run.n_parameters,
            "alarms": [asdict(alarm) for alarm in run.alarms],
            "data": datasets.index(run.data),
            "environment": environments.index(run.environment),
        }
        for run in runs
    ]
    parts: dict[str, Sequence[object]] = {
        "data": [asdict(data) for data in datasets],
        "environments": environments,
        "runs": lines,
    }
    listed = [f' "{name}": [\n{_one_a_line(values)}\n ]' for name, values in parts.items()]
    return "{\n" + ",\n".join([f' "schema": {SCHEMA}', *listed]) + "\n}\n"


def load_gathered(path: str | Path) -> list[Record]:
    """The runs again, without what the file leaves out: fields of the recipe, curve and vitals."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: cannot be read ({error}). Write it again from the runs.") from error
    file = Field(str(path), "", content)
    if file["schema"].value != SCHEMA:
        raise RecordError(f"{path}: schema is {file['schema'].value!r}, this version reads {SCHEMA}. Write it again.")
    datasets = [data_of(data) for data in file["data"].elements()]
    environments = [
        {name: value.text() for name, value in environment.fields().items()}
        for environment in file["environments"].elements()
    ]
    return [_run(run, datasets, environments) for run in file["runs"].elements()]


def _one_a_line(values: Iterable[object]) -> str:
    return ",\n".join(f"  {json.dumps(value, ensure_ascii=False)}" for value in values)


def _run(field: Field, datasets: Sequence[Data], environments: Sequence[Mapping[str, str]]) -> Record:
    errors = Errors(*(field[model].optional(Field.fraction) for model in ("student", "teacher")))
    return Record(
        file=f"{field.file}: {field.name}",
        recipe=field["recipe"].text(),
        recipe_fingerprint=field["recipe_fingerprint"].text(),
        recipe_fields={},
        method=field["method"].text(),
        seed=field["seed"].count(),
        status="complete",
        data=datasets[_place(field["data"], len(datasets))],
        split_fingerprint=field["split_fingerprint"].text(),
        environment=environments[_place(field["environment"], len(environments))],
        n_parameters=field["n_parameters"].count(),
        steps=field["steps"].count(),
        seconds=field["seconds"].positive(),
        images_per_second=field["images_per_second"].positive(),
        curve=(),
        last={"test": errors, "validation": Errors(None, None)},
        vitals=(),
        alarms=tuple(alarm_of(alarm) for alarm in field["alarms"].elements()),
    )


def _place(field: Field, n: int) -> int:
    place = field.count()
    if place >= n:
        field.wrong(f"a place in the list of {n}")
    return place
