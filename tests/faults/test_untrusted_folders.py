"""A folder from elsewhere, or damaged: one sentence, no traceback, and nothing is written outside it."""

import hashlib
import json
import os
import re
from contextlib import suppress
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fit_example import fit_example
from meanteacher.cli.app import app
from meanteacher.cli.report import write_report
from meanteacher.core import InputError
from meanteacher.experiment import override, run
from meanteacher.files import locked, write_atomic
from meanteacher.models import Conv13Spec, MlpSpec, ModelSpec, ResNeXt152Spec, Shake26Spec
from meanteacher.photos.fitting.work import read_work
from meanteacher.photos.folder.cache import decode_all
from meanteacher.photos.folder.find import find_photos
from meanteacher.recipes import RECIPES
from meanteacher.records import Record, WorkRecord, load_record, read_fit
from meanteacher.train import StopWhen
from photo_support import folder_of
from support import forbid, recipe

DEEP = "[" * 100_000


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    """A run that stopped at step 6 of 20."""
    steps = iter(range(5))
    whole = recipe()
    data = whole.data.source.load(tmp_path)
    run(whole, seed=0, out=tmp_path / "run", data=data, callbacks=[StopWhen(lambda: next(steps, None) is None)])
    return tmp_path / "run"


def resume(out: Path) -> Record | None:
    whole = recipe()
    return run(whole, seed=0, out=out, data=whole.data.source.load(out), resume=True).record


def change(path: Path, **changes: object) -> None:
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


# --- links ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside"
    path.write_text("precious")
    return path


@pytest.mark.parametrize("name", [".lock", "split.txt", "metrics.jsonl", "run.json", "record.json"])
def test_resuming_a_run_writes_through_no_link(interrupted: Path, outside: Path, name: str):
    if name == "run.json":
        outside.write_bytes((interrupted / name).read_bytes())
    before = outside.read_bytes()
    (interrupted / name).unlink(missing_ok=True)
    (interrupted / name).symlink_to(outside)
    if name in (".lock", "record.json"):
        with pytest.raises(InputError):
            resume(interrupted)
    else:
        assert resume(interrupted)
    assert outside.read_bytes() == before


class EmptyingLock:
    """As filelock before 3.20.1, which opens its file for writing and empties what a link leads to."""

    def __init__(self, path: Path, **_: object) -> None:
        self.path = path

    def acquire(self, **_: object) -> None:
        self.path.open("w").close()

    def release(self) -> None: ...


@pytest.mark.parametrize("place", ["run", "cache"])
def test_no_version_of_filelock_empties_what_a_link_in_place_of_a_lock_leads_to(
    place: str, interrupted: Path, outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("meanteacher.files.FileLock", EmptyingLock)
    folder = interrupted if place == "run" else tmp_path / "cache"
    folder.mkdir(exist_ok=True)
    (folder / ".lock").unlink(missing_ok=True)
    (folder / ".lock").symlink_to(outside)
    with suppress(InputError):
        if place == "run":
            resume(interrupted)
        else:
            decode_all(find_photos(folder_of(tmp_path / "photos", "a/1.png", "b/2.png")), 8, folder)
    assert outside.read_text() == "precious"


def test_a_link_to_nowhere_is_not_followed_either(interrupted: Path, tmp_path: Path):
    (interrupted / "metrics.jsonl").unlink()
    (interrupted / "metrics.jsonl").symlink_to(tmp_path / "made")
    assert resume(interrupted)
    assert not (tmp_path / "made").exists()
    assert (interrupted / "metrics.jsonl").is_file()


def test_an_output_folder_that_is_a_link_is_refused(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    whole = recipe()
    with pytest.raises(InputError, match=r"run is a link\. Give the folder that it leads to, .*elsewhere"):
        run(whole, seed=0, out=tmp_path / "run", data=whole.data.source.load(tmp_path))
    assert not list((tmp_path / "elsewhere").iterdir())


def test_checkpoints_are_neither_written_nor_deleted_through_a_link(interrupted: Path, tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    (interrupted / "checkpoints").rename(elsewhere)
    (elsewhere / ".profile").write_text("precious")
    (interrupted / "checkpoints").symlink_to(elsewhere)
    before = {path: path.stat().st_mtime_ns for path in elsewhere.rglob("*")}
    with pytest.raises(InputError, match="link"):
        resume(interrupted)
    assert {path: path.stat().st_mtime_ns for path in elsewhere.rglob("*")} == before


def test_what_others_keep_beside_checkpoints_stays(interrupted: Path):
    (interrupted / "checkpoints" / ".notes").write_text("precious")
    assert resume(interrupted)
    assert (interrupted / "checkpoints" / ".notes").exists()


def test_a_pointer_that_leads_out_of_the_folder_is_not_followed(interrupted: Path, tmp_path: Path):
    (interrupted / "checkpoints" / "last").write_text(f"{tmp_path}\n")
    assert resume(interrupted)
    assert not list(tmp_path.glob("manifest.json"))


@pytest.mark.parametrize("name", [".lock", ".writing-images-8.npy", "images-8.npy", "images-8.json"])
def test_the_cache_of_images_writes_through_no_link(tmp_path: Path, outside: Path, name: str):
    photos = find_photos(folder_of(tmp_path / "photos", "a/1.png", "b/2.png"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / name).symlink_to(outside)
    if name == ".lock":
        with pytest.raises(InputError, match="no lock"):
            decode_all(photos, 8, tmp_path / "cache")
    else:
        assert len(decode_all(photos, 8, tmp_path / "cache").images) == 2
    assert outside.read_text() == "precious"


def test_a_cache_that_is_a_link_is_refused(tmp_path: Path):
    photos = find_photos(folder_of(tmp_path / "photos", "a/1.png", "b/2.png"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="link"):
        decode_all(photos, 8, tmp_path / "cache")
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_lock_is_a_regular_file(tmp_path: Path, outside: Path, kind: str):
    lock = tmp_path / ".lock"
    lock.symlink_to(outside) if kind == "link" else os.mkfifo(lock)
    with pytest.raises(OSError, match="which is no lock"), locked(lock):
        pass


def test_a_file_with_the_longest_name_can_be_written(tmp_path: Path):
    assert write_atomic(tmp_path / ("x" * 255), "content").read_text() == "content"


# --- damaged files of a run -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    ["{}", '{"schema": 1}', "[]", "null", '{"errors": 1}', DEEP, "1" * 5000, "\ud800".encode("utf-8", "surrogatepass")],
    ids=str,
)
def test_a_damaged_record_of_a_run_is_refused(interrupted: Path, content: str | bytes):
    (interrupted / "record.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=r"record\.json: "):
        resume(interrupted)


@pytest.mark.parametrize(
    "changes",
    [
        {"threads": 0},
        {"threads": -4},
        {"threads": "two"},
        {"threads": 10**30},
        {"threads": True},
        {"processes": "one"},
        {"options": []},
        {"options": {"device": 7, "compile": False, "precision": "float32", "sync_batch_norm": False}},
        {"options": {"device": "cpu", "compile": False, "precision": "float32", "micro_batch": 0}},
        {"options": {"device": "cpu", "compile": False, "precision": "float32", "micro_batch": "all"}},
        {"identity": "me"},
        {"recipe": [1]},
    ],
    ids=str,
)
def test_a_damaged_run_json_is_refused(interrupted: Path, changes: dict[str, object]):
    threads = torch.get_num_threads()
    change(interrupted / "run.json", **changes)
    with pytest.raises(InputError, match=r"run\.json.* Start the run again in another folder"):
        resume(interrupted)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    "line",
    [b'{"event": "log"}\n', b"\xff\xfe\n", b"[1]\n", b'{"step": "9"}\n', b'{"step": null}\n', DEEP.encode() + b"\n"],
)
def test_a_damaged_line_of_metrics_is_left_out(interrupted: Path, line: bytes):
    path = interrupted / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(line + whole)
    assert resume(interrupted)
    assert path.read_bytes().startswith(whole)


def forge(out: Path, content: object) -> None:
    """Replace the state of the last checkpoint, with the right sha256."""
    folder = out / "checkpoints" / (out / "checkpoints" / "last").read_text().strip()
    if isinstance(content, bytes):
        (folder / "state.pt").write_bytes(content)
    else:
        torch.save(content, folder / "state.pt")
    digest = hashlib.sha256((folder / "state.pt").read_bytes()).hexdigest()
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"sha256": manifest["sha256"] | {"state.pt": digest}}))


def _state(out: Path) -> dict[str, Any]:
    folder = out / "checkpoints" / (out / "checkpoints" / "last").read_text().strip()
    content: dict[str, Any] = torch.load(folder / "state.pt", weights_only=True)
    return content


@pytest.mark.parametrize(
    "changes",
    [
        {"step": "6"},
        {"step": -1},
        {"step": None},
        {"seconds": "long"},
        {"curve": [{"step": 5}]},
        {"curve": 3},
        {"vitals": [1]},
        {"vitals": {"readings": 1}},
        {"processes": [(0,)]},
        {"processes": "one"},
        {"optimizer": {}},
        {"optimizer": {"state": {0: {"exp_avg": torch.zeros(7)}}, "param_groups": []}},
    ],
    ids=str,
)
def test_a_state_with_a_value_of_another_kind_is_refused(interrupted: Path, changes: dict[str, object]):
    forge(interrupted, _state(interrupted) | changes)
    with pytest.raises(InputError, match="not a state that meanteacher wrote"):
        resume(interrupted)


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04", b"\x80\x02N.", torch.zeros(3), [1, 2], {"step": Fraction(1, 2)}], ids=str
)
def test_something_else_in_place_of_a_state_is_refused_without_advice_to_trust_it(interrupted: Path, content: object):
    forge(interrupted, content)
    with pytest.raises(InputError, match="not a state that meanteacher wrote") as caught:
        resume(interrupted)
    assert not re.search("weights_only|torch.load|trust|unsafe", str(caught.value))


def test_an_empty_state_is_an_error_and_no_abortion(interrupted: Path):
    """Typer takes an EOFError for Ctrl-D, and says no more than "Aborted."."""
    forge(interrupted, b"")
    with pytest.raises(InputError):
        resume(interrupted)


@pytest.mark.parametrize("name", ["manifest.json", "state.pt", "student.safetensors"])
def test_a_checkpoint_with_a_pipe_in_it_is_refused(interrupted: Path, name: str):
    folder = interrupted / "checkpoints" / (interrupted / "checkpoints" / "last").read_text().strip()
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(InputError, match="damaged"):
        resume(interrupted)


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl", "manifest.json", "state.pt"])
def test_a_file_of_a_run_that_may_not_be_read_is_one_sentence(
    interrupted: Path, name: str, monkeypatch: pytest.MonkeyPatch
):
    forbid(monkeypatch, name)
    with pytest.raises(InputError, match=f"{name}.*Permission denied|Permission denied.*{name}"):
        resume(interrupted)


# --- damaged files of a fit -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    ['{"schema": 1}', '{"schema": 1, "data": {}}', DEEP, "1" * 5000, '{"schema": [[[[1]]]]}', "[]"],
    ids=lambda content: content[:20],
)
def test_a_damaged_fit_or_record_is_refused_by_the_report_and_by_a_new_fit(tmp_path: Path, content: str):
    (tmp_path / "fit").mkdir()
    (tmp_path / "fit" / "fit.json").write_text(content)
    for read in (lambda: write_report([tmp_path / "fit"]), lambda: read_fit(tmp_path / "fit")):
        with pytest.raises(InputError):
            read()
    (tmp_path / "record.json").write_text(content)
    with pytest.raises(InputError):
        load_record(tmp_path / "record.json")
    done = CliRunner().invoke(app, ["report", str(tmp_path / "fit")])
    assert (done.exit_code, "Traceback" in done.output) == (2, False)


def places(value: Any) -> list[tuple[object, ...]]:
    """The way to every value in it."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(), *((key, *rest) for key, item in inner for rest in places(item))]


def changed(value: Any, place: tuple[object, ...], junk: object) -> Any:
    if not place:
        return junk
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[place[0]] = changed(value[place[0]], place[1:], junk)
    return copy


def test_no_damage_to_one_value_of_a_fit_escapes_as_another_error(tmp_path: Path):
    """Drawn among all values and all kinds of junk: a page takes a moment to make."""
    whole = fit_example()
    draws = np.random.default_rng(0)
    every = places(whole)
    junk = [None, True, -1, 10**400, "junk", "\ud800", [1], {"a": 1}, float("nan"), [], {}]
    refused = 0
    for _ in range(30):
        place = every[draws.integers(len(every))]
        (tmp_path / "fit.json").write_text(json.dumps(changed(whole, place, junk[draws.integers(len(junk))])))
        try:
            write_report([tmp_path])
        except InputError:
            refused += 1
    assert refused > 8


WORK = asdict(WorkRecord(fingerprint="f", device="cpu", minutes=3.0, flip=True, backbones=("lite0",)))


@pytest.mark.parametrize(
    "changes",
    [
        {"fingerprint": ...},
        {"fingerprint": 3},
        {"spent": -1},
        {"spent": "long"},
        {"device": []},
        {"trial": {}},
        {"steps": -1},
        {"steps": "many"},
        {"pieces": [1]},
        {"pieces": {"head": -1.0}},
        {"backbones": "lite0"},
        {"finished": "no"},
    ],
    ids=str,
)
def test_a_damaged_work_file_of_a_fit_is_refused(tmp_path: Path, changes: dict[str, object]):
    content = {key: value for key, value in (WORK | changes).items() if value is not ...}
    (tmp_path / "work.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"work\.json: .* Start again with overwrite=True"):
        read_work(tmp_path)


# --- what is typed ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "setting",
    [
        "steps=" + "9" * 400,
        "steps=" + "9" * 5000,
        "steps=" + "-" * 5000 + "1",
        "steps=" + "(" * 5000,
        "seeds=()",
        "optim.learning_rate=" + "9" * 400,
        "x" * 5000 + "=1",
        "a." * 5000 + "b=1",
        "=" * 5000,
    ],
    ids=lambda setting: setting[:30],
)
def test_a_setting_that_is_no_value_is_one_short_sentence(setting: str):
    with pytest.raises(InputError) as caught:
        override(RECIPES["digits/mean-teacher"], setting)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "model",
    [
        *(spec(width=width) for spec in (Conv13Spec, Shake26Spec, ResNeXt152Spec) for width in (-1, 0, 1e300)),
        MlpSpec(hidden=(-3,)),
        MlpSpec(hidden=(10**15,)),
        MlpSpec(dropout=7.0),
    ],
    ids=str,
)
def test_a_network_that_cannot_be_is_one_sentence(tmp_path: Path, model: ModelSpec):
    whole = recipe(model=model)
    with pytest.raises(InputError, match=r"width multiplies|cannot be built"):
        run(whole, seed=0, out=tmp_path / "run", data=whole.data.source.load(tmp_path))


def test_a_name_that_is_too_long_is_one_sentence(tmp_path: Path):
    for words in (
        ["report", str(tmp_path / ("x" * 300))],
        ["predict", str(tmp_path / ("x" * 300)), str(tmp_path)],
        ["check", str(tmp_path / ("x" * 300))],
        ["check", str(tmp_path), "--labels", str(tmp_path / ("x" * 300))],
    ):
        done = CliRunner().invoke(app, words)
        assert (done.exit_code, "Traceback" in done.output) == (2, False), done.output


def test_a_message_about_a_long_name_is_shortened_in_the_middle(tmp_path: Path):
    folder_of(tmp_path / "photos", "cat/1.png", "dog/2.png")
    (tmp_path / "labels.csv").write_text(f"path,label\n{'x' * 50_000},a\n")
    done = CliRunner().invoke(app, ["check", str(tmp_path / "photos"), "--labels", str(tmp_path / "labels.csv")])
    assert done.exit_code == 2
    assert len(done.output) < 2500
    assert done.output.rstrip().endswith("Correct the path, or delete the row.")


def test_what_would_steer_the_terminal_is_shown_as_an_escape(tmp_path: Path):
    folder_of(tmp_path / "photos", "cat/1.png", "dog/2.png")
    (tmp_path / "labels.csv").write_text("path,label\n\x1b[2Jowl.png,a\n")
    done = CliRunner().invoke(app, ["check", str(tmp_path / "photos"), "--labels", str(tmp_path / "labels.csv")])
    assert done.exit_code == 2
    assert "\\x1b[2Jowl" in done.output
    assert "\x1b[2J" not in done.output
    done = CliRunner().invoke(app, ["run", "\x1b[31mred"])
    assert done.exit_code == 2
    assert "\x1b[31mred" not in done.output
