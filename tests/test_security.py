"""Each promise of SECURITY.md, tried."""

import hashlib
import http.client
import json
import os
import pickle
import re
import socket
import tarfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from processes import in_processes
from torch import nn
from typer.testing import CliRunner, Result

from label_example import make_example, serving
from meanteacher.cli.app import app
from meanteacher.core import InputError, Problem
from meanteacher.data.cifar10 import Cifar10
from meanteacher.data.download import fetch
from meanteacher.experiment import run
from meanteacher.files.images import UnreadableError, decode
from meanteacher.models import FastNetSpec
from meanteacher.photos.model.bundle import Classifier, load
from meanteacher.train import StopWhen
from meanteacher.views import PerImage
from photo_support import folder_of
from support import PATIENCE, at_most, recipe

PAGE = (Path(__file__).parents[1] / "SECURITY.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## What is promised\n")[2].partition("\n`tests/")[0]
PROMISES = re.findall(r"^- \*\*(.+?)\.\*\*", SECTION, flags=re.MULTILINE)


def command(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(result: Result) -> str:
    """One sentence and exit code 2."""
    said = result.output.strip()
    assert (result.exit_code, "Traceback" in said, said.startswith("Error: ")) == (2, False, True), said
    assert len(said.splitlines()) == 1
    return said


def saved_model(folder: Path, *, weight: float | None = None, names: tuple[str, ...] = ("a", "b")) -> Path:
    spec = FastNetSpec(width=0.125)
    network = spec.build(Problem(len(names), 1, (3, 16, 16))).eval()
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear) and weight is not None:
            module.weight.data.fill_(weight)
    parts = {"spec": spec, "normaliser": PerImage()}
    return Classifier(network, PerImage().fit(torch.empty(0)), names, 16, 1.0, {}, **parts).save(folder / "model")


def one_sentence(folder: Path) -> None:
    photos = folder_of(folder / "photos", "cat/1.png", "dog/2.png")
    (folder / "junk").write_bytes(bytes(range(256)) * 40)
    (folder / "run").mkdir()
    (folder / "run" / "record.json").write_text("{}")
    (folder / "fit").mkdir()
    (folder / "fit" / "fit.json").write_text('{"schema": 1}')
    model = saved_model(folder)
    (model / "model.json").write_bytes(b"[" * 100_000)
    for words in (
        ("check", photos, "--labels", folder / "junk"),
        ("check", folder / "junk"),
        ("report", folder / "run"),
        ("report", folder / "fit"),
        ("label", photos, "--run", folder / "fit"),
        ("predict", model, photos, "--out", folder / "out.csv"),
        ("evaluate", model, photos),
        ("fit", folder / "junk", "--out", folder / "new"),
        ("pack", folder / "junk", "--shards", folder / "shards"),
        ("run", "digits/mean-teacher", "--set", "steps=" + "9" * 400),
        ("run", "digits/mean-teacher", "--out", folder / ("x" * 300)),
    ):
        refused(command(*words))


class Canary:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.path),)


def nothing_runs(folder: Path) -> None:
    canary = folder / "executed"
    evil = pickle.dumps({b"data": Canary(canary)}, protocol=2)
    pickle.loads(evil)
    canary.rmdir()  # it sings
    with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("cifar-10-batches-py/test_batch")
        member.size = len(evil)
        tar.addfile(member, BytesIO(evil))
    model = saved_model(folder)
    (model / "weights.safetensors").write_bytes(evil)
    content = json.loads((model / "model.json").read_text())
    (model / "model.json").write_text(json.dumps(content | {"sha256": hashlib.sha256(evil).hexdigest()}))
    np.savez(folder / "photos.npz", images=np.array([Canary(canary)], object))
    for read in (
        lambda: Cifar10().load(folder),
        lambda: load(model),
        lambda: load(folder / "cifar-10-python.tar.gz"),
        lambda: command("check", folder / "photos.npz").output and refused(command("check", folder / "photos.npz")),
    ):
        with suppress(InputError):
            read()
        assert not canary.exists()


def nothing_outside(folder: Path) -> None:
    outside = folder / "outside"
    outside.write_text("precious")
    whole, steps = recipe(steps=4), iter([False])
    data = whole.data.source.load(folder)
    run(whole, seed=0, out=folder / "run", data=data, callbacks=[StopWhen(lambda: next(steps, True))])
    for name in ("split.txt", "metrics.jsonl"):
        (folder / "run" / name).unlink()
        (folder / "run" / name).symlink_to(outside)
    before = {path for path in folder.rglob("*") if folder / "run" not in path.parents}
    assert run(whole, seed=0, out=folder / "run", data=data, resume=True).complete
    assert {path for path in folder.rglob("*") if folder / "run" not in path.parents} == before
    assert outside.read_text() == "precious"


def regular_files(folder: Path) -> None:
    photos = folder_of(folder / "photos", "cat/1.png", "dog/2.png")
    os.mkfifo(folder / "pipe")
    (folder / "device").symlink_to("/dev/zero")
    model = saved_model(folder)
    for special in (folder / "pipe", folder / "device"):
        refused(command("check", photos, "--labels", special))
        for name in ("weights.safetensors", "model.json"):
            kept = (model / name).read_bytes()
            (model / name).unlink()
            (model / name).symlink_to(special)
            refused(command("predict", model, photos, "--out", folder / "out.csv"))
            (model / name).unlink()
            (model / name).write_bytes(kept)
    assert command("predict", model, photos, "--out", folder / "out.csv").exit_code == 0


def bounded_work(folder: Path) -> None:
    np.savez_compressed(folder / "photos.npz", images=np.zeros((9, 3000, 3000), np.uint8))
    with at_most(1 << 25):
        refused(command("check", folder / "photos.npz"))
    with pytest.raises(UnreadableError, match="too large"):
        decode(b"P3\n1 1\n255\n" + b"#\n" * 5_000_000 + b"1 2 3", 8)


def honest_numbers(folder: Path) -> None:
    photos = folder_of(folder / "photos", "cat/1.png", "dog/2.png")
    assert "finite" in refused(
        command("predict", saved_model(folder, weight=3e38), photos, "--out", folder / "out.csv")
    )
    assert not (folder / "out.csv").exists()


def the_labelling_page_is_local(folder: Path) -> None:
    with serving(make_example(folder).session()) as server:
        assert server.server_address[0] == "127.0.0.1"

        def status(path: str, **headers: str) -> int:
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE)
            connection.request("POST", path, b'{"window": "w"}', {"Content-Type": "application/json", **headers})
            found = connection.getresponse().status
            connection.close()
            return found

        own = f"/{server.token}/undo"
        assert status(own) == 200
        assert status("/undo") == 404
        assert status(own, Host="evil.example") == 403
        assert status(own, Origin="http://evil.example") == 403
        assert status(own, **{"Content-Length": "000000001" + "0" * 8}) == 400


def the_terminal_is_not_steered(folder: Path) -> None:
    steering = "\x1b[2J\x9b31mcat"
    photos = folder_of(folder / "photos", "cat/1.png", f"{steering}/2.png")
    shown = [command("check", photos).output]
    model = saved_model(folder, names=(steering, f"{steering}2"))
    shown.append(command("predict", model, photos, "--out", folder / "out.csv").output)
    shown.append(command("predict", folder / steering, photos).output)
    shown.append((folder / "out.csv").read_text())
    for text in shown:
        assert "\\x1b[2J" in text
        assert not re.search("[\x1b\x9b]", text)


def data_sets_are_compared(folder: Path) -> None:
    recipes = {
        "fast/svhn-500/supervised": ("train_32x32.mat", "test_32x32.mat"),
        "fast/cifar10-4000/supervised": ("cifar-10-python.tar.gz",),
    }
    for name, files in recipes.items():
        for file in files:
            (folder / file).write_bytes(b"made up")
        words = "run", name, "--data", folder, "--out", folder / "run"
        assert hashlib.sha256(b"made up").hexdigest() in refused(command(*words))
    assert not (folder / "run").exists()


def downloads_are_verified(folder: Path) -> None:
    (folder / "site").mkdir()
    (folder / "site" / "file").write_text("something else")
    handler = partial(_Quiet, directory=str(folder / "site"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        with pytest.raises(InputError, match="not the file that was expected"):
            fetch(f"http://127.0.0.1:{server.server_port}/file", folder / "copy", sha256="0" * 64)
        server.shutdown()
        thread.join()
    assert sorted(path.name for path in folder.iterdir()) == ["site"]


def nobody_else_joins(folder: Path) -> None:
    """A pickle is sent to every port on which two processes listen while they train."""
    for found in in_processes("guarded", 2, folder):
        assert found["heard"]
        assert {address.partition(":")[0] for address in found["heard"]} == {"0100007F"}  # 127.0.0.1
        assert (found["step"], found["executed"]) == (14, False)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object, **__: object) -> None: ...


TRIALS: dict[str, Callable[[Path], None]] = {
    "One sentence": one_sentence,
    "Nothing runs": nothing_runs,
    "Nothing outside": nothing_outside,
    "Regular files": regular_files,
    "Bounded work": bounded_work,
    "Honest numbers": honest_numbers,
    "The labelling page is local": the_labelling_page_is_local,
    "Nobody else joins a run": nobody_else_joins,
    "The terminal is not steered": the_terminal_is_not_steered,
    "Official data are compared": data_sets_are_compared,
    "Downloads are verified": downloads_are_verified,
}


def test_every_promise_is_tried():
    assert list(TRIALS) == PROMISES


@pytest.mark.parametrize("promise", TRIALS)
def test_promise_is_kept(promise: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real = socket.socket.connect

    def only_this_machine(self: socket.socket, address: tuple[str, int]) -> None:
        assert address[0] in ("127.0.0.1", "localhost"), f"a connection to {address}"
        real(self, address)

    monkeypatch.setattr(socket.socket, "connect", only_this_machine)
    TRIALS[promise](tmp_path)
