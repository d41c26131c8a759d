"""What is fuzzed: every reader of a file, with small valid files that mutations start from."""

import dataclasses
import io
import json
import struct
import tarfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pillow_heif
import torch
from PIL import Image
from safetensors import torch as safetensors

from fit_example import fit_example
from meanteacher.core import UNLABELLED, InputError, MissingBackboneError, Problem
from meanteacher.data.cifar10 import Cifar10
from meanteacher.data.shards.index import load_index, make_index
from meanteacher.data.split import Split
from meanteacher.data.svhn import Svhn
from meanteacher.experiment import Recipe, override, run
from meanteacher.experiment.run import RunFolder
from meanteacher.files.images import UnreadableError, as_jpeg_or_png, decode, header
from meanteacher.models import FastNetSpec, LiteSpec
from meanteacher.online import OnlineTrainer, Replay
from meanteacher.photos.features.backbones import Backbone, find_backbone
from meanteacher.photos.features.extraction import Extraction, _checks
from meanteacher.photos.fitting.work import read_work
from meanteacher.photos.folder.cache import decode_all
from meanteacher.photos.folder.find import Photos, find_photos
from meanteacher.photos.folder.tables import read_npz
from meanteacher.photos.model.bundle import Classifier, load
from meanteacher.recipes import RECIPES
from meanteacher.records import ErrorEstimate, Trial, WorkRecord, load_record, read_fit
from meanteacher.schedules import Constant
from meanteacher.train import AdamSpec, MetricsFile
from meanteacher.views import PerImage
from photo_support import picture, save
from support import METHODS, N_CLASSES, SHAPE, VIEWS, Small, made_up, recipe

EXPECTED = (InputError, UnreadableError)
"""What bad input may raise. Anything else is a defect."""


@dataclass(frozen=True)
class Target:
    """One reader.

    Args:
        share: of all cases
        valid: contents that it reads without an error
        read: reads a content that was mutated; may use the folder, which is empty at first and kept between the cases
    """

    share: float
    valid: Callable[[], Sequence[bytes]]
    read: Callable[[bytes, Path], object]


def _encoded(kind: str, mode: str = "RGB", **options: object) -> bytes:
    file = io.BytesIO()
    picture(0, 24, 16).convert(mode).save(file, kind, **options)
    return file.getvalue()


def _heic() -> bytes:
    file = io.BytesIO()
    pillow_heif.from_pillow(picture(0, 24, 16)).save(file)
    return file.getvalue()


@cache
def _images() -> list[bytes]:
    grey = io.BytesIO()
    Image.fromarray(np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)).save(grey, "TIFF")
    info = struct.pack("<IiiHHIIiiII", 40, 4, 4, 1, 8, 1, 0, 0, 0, 256, 0)
    runs = b"BM" + struct.pack("<IHHI", 1100, 0, 0, 1078) + info + bytes(1024) + b"\x04\x07\x00\x00" * 4 + b"\x00\x01"
    return [
        _encoded("JPEG"),
        _encoded("JPEG", progressive=True),
        _encoded("JPEG", "CMYK"),
        _encoded("PNG"),
        _encoded("PNG", "RGBA"),
        _encoded("PNG", "P"),
        _encoded("GIF", "P"),
        _encoded("BMP"),
        runs,
        _heic(),
        _encoded("WEBP"),
        _encoded("WEBP", lossless=True),
        _encoded("TIFF"),
        _encoded("TIFF", compression="tiff_lzw"),
        _encoded("TIFF", compression="jpeg"),
        grey.getvalue(),
        _encoded("PPM"),
        b"P3 # x\n2 2\n255\n" + b"1 2 3 # y\n" * 4,
        b"P1\n4 2\n0 1 0 1\n1 0 1 0\n",
    ]


def _read_image(data: bytes, folder: Path) -> None:
    decode(data, 8)
    path = folder / "image"
    path.write_bytes(data)
    header(path)
    as_jpeg_or_png(path)


def _file(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    """A reader that is given the path of the file."""

    def write_and_read(data: bytes, folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        read(path)

    return write_and_read


def _label_files() -> list[bytes]:
    return [
        b'path,label\na/1.png,x\nb/2.png,"y"\n',
        b"path;label\na/1.png;x\nb/2.png;y\n",
        b"path\tlabel\r\na/1.png\t\xc3\xa9\r\nb/2.png\tx\r\n",
    ]


def _read_labels(path: Path) -> None:
    photos = path.parent / "photos"
    if not photos.exists():
        save(photos / "a" / "1.png")
        save(photos / "b" / "2.png")
    find_photos(photos, path)


@cache
def _npz() -> list[bytes]:
    arrays = {"images": np.zeros((3, 4, 4, 3), np.uint8), "labels": np.array([0, 1, -1])}
    names = {"class_names": np.array(["a", "b"]), "names": np.array(["1", "2", "3"])}
    contents = []
    for write, more in ((np.savez, {}), (np.savez_compressed, names), (np.savez, names)):
        file = io.BytesIO()
        write(file, **arrays, **more)
        contents.append(file.getvalue())
    return contents


@cache
def _benchmark() -> list[bytes]:
    contents = []
    for write in (np.savez, np.savez_compressed):
        file = io.BytesIO()
        arrays = {f"{part}_images": np.zeros((2, 32, 32, 3), np.uint8) for part in ("train", "test", "extra")}
        write(file, train_labels=np.array([1, 0]), test_labels=np.array([3, 9]), **arrays)
        contents.append(file.getvalue())
    return contents


@cache
def _shards() -> list[bytes]:
    contents = []
    for format_ in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=format_) as tar:
            for name, content in (("a" * 120 + ".jpg", _images()[0]), ("b.cls", b"1"), ("b.png", _images()[3])):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
            member = tarfile.TarInfo("b.json")
            member.size = 12
            tar.addfile(member, io.BytesIO(b'{"label": 1}'))
        contents.append(file.getvalue())
    return contents


def _index() -> list[bytes]:
    with TemporaryDirectory() as folder:
        shard = Path(folder) / "a.tar"
        shard.write_bytes(_shards()[0])
        make_index(shard).save(Path(folder) / "a.index.jsonl")
        return [(Path(folder) / "a.index.jsonl").read_bytes()]


@cache
def _bundle() -> dict[str, bytes]:
    spec = FastNetSpec(width=0.125)
    torch.manual_seed(0)
    network = spec.build(Problem(2, 1, (3, 16, 16))).eval()
    parts = {"spec": spec, "normaliser": PerImage()}
    with TemporaryDirectory() as folder:
        saved = Classifier(network, PerImage().fit(torch.empty(0)), ("a", "b"), 16, 1.0, {}, **parts).save(
            Path(folder) / "model"
        )
        return {path.name: path.read_bytes() for path in saved.iterdir()}


def _read_model(data: bytes, folder: Path) -> None:
    for name, content in _bundle().items():
        (folder / name).write_bytes(content)
    (folder / "model.json").write_bytes(data)
    load(folder)


def _read_weights(data: bytes, folder: Path) -> None:
    about = json.loads(_bundle()["model.json"])
    (folder / "model.json").write_text(json.dumps(about | {"sha256": sha256(data).hexdigest()}))
    (folder / "weights.safetensors").write_bytes(data)
    load(folder)


def _weights() -> list[bytes]:
    return [_bundle()["weights.safetensors"]]


def _small() -> Recipe:
    return recipe(steps=2, evaluate_every=2)


@cache
def _run_folder() -> dict[str, bytes]:
    """The files of a complete run of two steps."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        run(_small(), seed=0, out=out, data=_small().data.source.load(out))
        return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def _read_run_json(data: bytes, folder: Path) -> None:
    (folder / "run.json").write_bytes(data)
    about = json.loads(_named("run.json")[0])
    with RunFolder(folder, about["identity"], about["recipe"], resume=True) as opened:
        opened.device()
        opened.options()
        assert opened.record is None


def _read_state(data: bytes, folder: Path) -> None:
    """The state of a checkpoint, with the right sha256."""
    for name, content in _run_folder().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (state,) = (folder / "checkpoints").glob("step_*/state.pt")
    manifest = json.loads((state.parent / "manifest.json").read_text())
    state.write_bytes(data)
    manifest["sha256"]["state.pt"] = sha256(data).hexdigest()
    (state.parent / "manifest.json").write_text(json.dumps(manifest))
    run(_small(), seed=0, out=folder, data=_small().data.source.load(folder), resume=True).restored()


def _named(ending: str) -> list[bytes]:
    return [content for name, content in _run_folder().items() if name.endswith(ending)]


def _trainer() -> OnlineTrainer:
    optim = AdamSpec(learning_rate=Constant(0.01), beta1=Constant(0.9), beta2=Constant(0.99))
    given = {"n_classes": N_CLASSES, "input_shape": SHAPE, "views": VIEWS, "device": "cpu"}
    return OnlineTrainer(Small(), METHODS["mean-teacher"], optim, replay=Replay(size=3, rows=2), **given)


@cache
def _online() -> tuple[dict[str, bytes], dict[str, Any]]:
    """The files of a checkpoint of an on-line run, and its state."""
    with TemporaryDirectory() as folder:
        trainer, images = _trainer(), made_up(4, seed=3).images
        trainer.step(images, [2, 0, 1, UNLABELLED], position=4)
        trainer.save(folder)
        files = {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}
    (state,) = (content for name, content in files.items() if name.endswith("state.pt"))
    return files, torch.load(io.BytesIO(state), weights_only=True)


def _stream() -> list[bytes]:
    """Where the stream stands and what is kept of it, as JSON."""
    stream = _online()[1]["stream"]
    kept = [[part.tolist() for part in row] for row in stream["replay"]["kept"]]
    return [json.dumps(stream | {"replay": stream["replay"] | {"kept": kept}}).encode()]


def _as_tensors(row: Any) -> Any:
    """A kept example, as far as its parts are arrays: an image of bytes, and whole numbers."""
    parts = []
    for number, part in enumerate(row if isinstance(row, list) else [row]):
        parts.append(part)
        if isinstance(part, list):
            with suppress(ValueError, TypeError, RuntimeError, OverflowError):
                parts[-1] = torch.tensor(part, dtype=torch.int64 if number else torch.uint8)
    return tuple(parts)


def _read_stream(data: bytes, folder: Path) -> None:
    """The stream of an on-line checkpoint, with the right sha256. What is not refused can be trained on."""
    try:
        stream = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError("not JSON") from error
    if isinstance(stream, dict) and isinstance(replay := stream.get("replay"), dict):
        kept = replay.get("kept")
        replay["kept"] = list(map(_as_tensors, kept)) if isinstance(kept, list) else kept
    files, state = _online()
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (file,) = folder.rglob("state.pt")
    torch.save(state | {"stream": stream}, file)
    manifest = json.loads((file.parent / "manifest.json").read_text())
    manifest["sha256"]["state.pt"] = sha256(file.read_bytes()).hexdigest()
    (file.parent / "manifest.json").write_text(json.dumps(manifest))
    trainer = _trainer().load(folder)
    try:
        trainer.step(made_up(2, seed=5).images, [1, UNLABELLED])
    except InputError as error:
        raise AssertionError("damage was accepted") from error


_PHOTOS = Photos(Path("photos"), ("a.png", "b.png", "c.png"), np.array([0, 1, -1]), ("x", "y"), None)


def _decoded() -> list[bytes]:
    """The list of decoded images, and their pixels."""
    with TemporaryDirectory() as folder:
        photos = replace(_PHOTOS, root=Path(folder) / "photos")
        for seed, name in enumerate(photos.names):
            save(photos.root / name, seed)
        decode_all(photos, 8, Path(folder))
        return [(Path(folder) / f"images-8.{ending}").read_bytes() for ending in ("json", "npy")]


def _read_decoded(data: bytes, folder: Path) -> None:
    """A damaged cache is made again."""
    photos = replace(_PHOTOS, root=folder / "photos")
    if not photos.root.exists():
        for seed, name in enumerate(photos.names):
            save(photos.root / name, seed)
        decode_all(photos, 8, folder / "cache")
    file = folder / "cache" / f"images-8.{'json' if data[:1] == b'{' else 'npy'}"
    file.write_bytes(data)
    found = decode_all(photos, 8, folder / "cache")
    assert found.images.shape == (3, 3, 8, 8)
    assert not found.unreadable.keys() - {0, 1, 2}


_IMAGES = np.zeros((3, 3, 32, 32), np.uint8)


def _extraction(folder: Path) -> Extraction:
    spec = LiteSpec(width=0.1, depth=0.1)
    about: dict[str, Any] = {"licence": "", "trained_on": "", "title": "", "n_features": 4, "size": 32}
    mean: dict[str, Any] = {"mean": (0.5,) * 3, "deviation": (0.5,) * 3}
    backbone = Backbone(name="x", spec=spec, sha256="0" * 64, **about, **mean)
    order = np.arange(3)
    return Extraction(images=_IMAGES, backbone=backbone, view="plain", flip=False, file=folder / "f", order=order)


@cache
def _features() -> list[bytes]:
    with TemporaryDirectory() as folder:
        extraction = _extraction(Path(folder))
        rows = extraction._open()
        rows[:, :-2] = np.arange(12).reshape(3, 4)
        rows[:, -2:] = _checks(rows[:, :-2])
        rows.flush()
        return [extraction.path.read_bytes()]


def _read_features(data: bytes, folder: Path) -> None:
    """What is not as it was written is computed again: rows are the ones that were written, or missing."""
    extraction = _extraction(folder)
    extraction.path.write_bytes(data)
    rows = np.array(extraction._open()[:, :-2], np.float32)
    expected = np.arange(12).reshape(3, 4)
    assert all(np.isnan(row).any() or (row == expected).all(1).any() for row in rows), "damaged features are used"
    if np.isnan(rows).any():
        raise InputError("missing")


@cache
def _weights_of_a_library() -> bytes:
    return safetensors.save({"a": torch.zeros(2)})


def _read_config(data: bytes, folder: Path) -> None:
    (folder / "config.json").write_bytes(data)
    (folder / "weights.safetensors").write_bytes(_weights_of_a_library())
    with suppress(MissingBackboneError):  # timm is not installed
        find_backbone(str(folder / "weights.safetensors"))


def _config() -> list[bytes]:
    about = {"input_size": [3, 32, 32], "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "license": "mit"}
    return [json.dumps({"architecture": "resnet18", "pretrained_cfg": about}).encode()]


def _work() -> list[bytes]:
    error = ErrorEstimate(error=0.5, low=0.4, high=0.6, wrong=5)
    trial = Trial(chosen="scratch", n=10, pretrained=error, scratch=None, sentence="x")
    work = WorkRecord(fingerprint="f", device="cpu", minutes=3.0, flip=True, backbones=("lite0",), trial=trial)
    return [json.dumps(dataclasses.asdict(work) | {"pieces": {"head": 1.5}}).encode()]


def _fits() -> list[bytes]:
    return [json.dumps(fit_example(gallery={})).encode()]


def _override(data: bytes, folder: Path) -> None:
    settings = data.decode("utf-8", "replace").split("\n")
    changed = override(RECIPES["digits/mean-teacher"], *settings)
    assert dataclasses.is_dataclass(changed)


TARGETS: dict[str, Target] = {
    "images": Target(0.28, _images, _read_image),
    "labels.csv": Target(0.07, _label_files, _file("labels.csv", _read_labels)),
    "npz": Target(0.08, _npz, _file("a.npz", read_npz)),
    "svhn": Target(0.07, _benchmark, _file("svhn.npz", lambda path: Svhn(extra=1).load(path.parent))),
    "cifar10": Target(0.07, _benchmark, _file("cifar10.npz", lambda path: Cifar10().load(path.parent))),
    "shard": Target(0.06, _shards, _file("a.tar", make_index)),
    "shard index": Target(0.04, _index, _file("a.index.jsonl", load_index)),
    "split": Target(0.03, lambda: _named("split.txt"), _file("split.txt", Split.load)),
    "model.json": Target(0.04, lambda: [_bundle()["model.json"]], _read_model),
    "weights": Target(0.03, _weights, _read_weights),
    "record.json": Target(0.04, lambda: _named("record.json"), _file("record.json", load_record)),
    "run.json": Target(0.02, lambda: _named("run.json"), _read_run_json),
    "metrics.jsonl": Target(0.02, lambda: _named("metrics.jsonl"), _file("metrics.jsonl", MetricsFile)),
    "state.pt": Target(0.01, lambda: _named("state.pt"), _read_state),
    "on-line stream": Target(0.02, _stream, _read_stream),
    "decoded images": Target(0.02, _decoded, _read_decoded),
    "features": Target(0.02, _features, _read_features),
    "config.json": Target(0.01, _config, _read_config),
    "work.json": Target(0.03, _work, _file("work.json", lambda path: read_work(path.parent))),
    "fit.json": Target(0.02, _fits, _file("fit.json", lambda path: read_fit(path.parent))),
    "--set": Target(
        0.02,
        lambda: [b"steps=300", b"method.weight.value=50\nbatch.size=64", b"model.outputs=2\nevaluate_every=7"],
        _override,
    ),
}
