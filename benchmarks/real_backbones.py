"""Real networks of timm and torchvision through fit, resume, predict and export. Not part of the tests.

The tests use stand-ins for both libraries, because they need gigabytes. In an environment with the real ones:

    python3 -m venv /tmp/real
    /tmp/real/bin/pip install torch torchvision timm onnxscript -e ".[photos]"
    /tmp/real/bin/python benchmarks/real_backbones.py

The wheels on PyPI are CUDA builds, and run on a CPU. Nothing is downloaded later: the weights are random. Those of timm
are saved as a .safetensors file with its config.json, those of torchvision where it looks for a download. Prints a
table, and ends with the number of failures. The last outcome is in docs/experiments/backbones.md.
"""

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
import timm
import torch
import torchvision
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from meanteacher.core import InputError
from meanteacher.files.typed import read_json
from meanteacher.photos.features.extraction import views
from meanteacher.records import WORK_FILE, WorkRecord, read_fit

OF_TIMM = ("resnet18", "vit_tiny_patch16_224")
OF_TORCHVISION = ("mobilenet_v3_small", "resnet18")
CLASSES = {"red": (200, 60, 50), "green": (60, 190, 70), "blue": (50, 70, 200)}
N_LABELLED, N_OTHER, SIDE = 4, 24, 96
MINUTES = "30"
"""Time for all views, also beside other programs: fits that end at different views have different models."""
PACKAGES = ("torch", "torchvision", "timm", "onnx", "onnxscript", "onnxruntime", "safetensors", "numpy", "pillow")


def main() -> int:
    write = sys.stdout.write
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    write(f"Python {platform.python_version()}, {versions}\n\n")
    write("| backbone | step | outcome | seconds |\n|---|---|---|---|\n")
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        photos = photos_in(root / "photos")
        for name, backbone in backbones(root):
            for step, work in steps(root / name.replace(":", "-"), photos, backbone):
                began = time.monotonic()
                try:
                    outcome = work()
                except (AssertionError, InputError, OSError, subprocess.SubprocessError) as error:
                    outcome, failures = f"FAILED: {str(error).strip()[-300:]}", failures + 1
                write(f"| {name} | {step} | {outcome} | {time.monotonic() - began:.0f} |\n")
                sys.stdout.flush()
                if outcome.startswith("FAILED"):
                    break
    return failures


def photos_in(root: Path) -> Path:
    """Plain photos of three colours, and labels.csv for a few of them.

    Each is a shot of its own, as the table says: by their features those of one colour would belong together.
    """
    root.mkdir()
    draws, rows = np.random.default_rng(0), ["path,label,shot"]
    for name, colour in CLASSES.items():
        for k in range(N_LABELLED + N_OTHER // len(CLASSES)):
            pixels = np.array(colour) + draws.normal(0, 25, 3) + draws.normal(0, 20, (SIDE, SIDE, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / f"{name}{k}.jpg")
            rows.append(f"{name}{k}.jpg,{name if k < N_LABELLED else ''},{name}{k}")
    (root / "labels.csv").write_text("\n".join(rows))
    return root


def backbones(root: Path) -> Iterator[tuple[str, str]]:
    """The name of each network, and the value of --backbone."""
    torch.manual_seed(0)
    for name in OF_TIMM:
        network = timm.create_model(name, pretrained=False)
        set_statistics(network)
        folder = root / "weights" / name
        folder.mkdir(parents=True)
        save_file(network.state_dict(), folder / "model.safetensors")
        about = {key: network.pretrained_cfg[key] for key in ("input_size", "mean", "std")}
        (folder / "config.json").write_text(json.dumps({"architecture": name, "pretrained_cfg": about}))
        yield f"timm:{name}", str(folder / "model.safetensors")
    os.environ["TORCH_HOME"] = str(root / "torch")
    for name in OF_TORCHVISION:
        network = torchvision.models.get_model(name, weights=None)
        set_statistics(network)
        file = Path(torchvision.models.get_model_weights(name).DEFAULT.url).name
        (root / "torch/hub/checkpoints").mkdir(parents=True, exist_ok=True)
        torch.save(network.state_dict(), root / "torch/hub/checkpoints" / file)
        yield f"torchvision:{name}", f"torchvision:{name}"


def set_statistics(network: nn.Module) -> None:
    """Give the batch normalisations the statistics of noise in random colours.

    With a mean of 0 and a variance of 1, which new networks have, the features of mobilenet_v3_small are 1e-9. They are
    zeros in half precision, so that all photos look the same.
    """
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None  # the statistics are then those of the one batch
    with torch.no_grad():
        network.train()(torch.randn(16, 3, 1, 1) + 0.5 * torch.randn(16, 3, 224, 224))


def steps(root: Path, photos: Path, backbone: str) -> Iterator[tuple[str, Callable[[], str]]]:
    root.mkdir()
    labels = ("--labels", str(photos / "labels.csv"), "--group-by", "shot")
    fit = ["fit", str(photos), *labels, "--minutes", MINUTES, "--backbone", backbone, "--device", "cpu", "--out"]
    whole, killed = str(root / "fit"), str(root / "killed")

    def fitted() -> str:
        run(*fit, whole)
        record = read_fit(Path(whole))
        seen = views(flip=record.flip)
        assert record.n_views == len(seen), f"{record.n_views} of {len(seen)} views in {MINUTES} minutes"
        assert record.estimate.n == N_LABELLED * len(CLASSES), f"{record.estimate.n} tested photos"
        return f"{record.n_views} views, wrong on {record.estimate.wrong} of {record.estimate.n} tested photos"

    def resumed() -> str:
        process = subprocess.Popen([sys.executable, "-m", "meanteacher", *fit, killed], stdout=subprocess.DEVNULL)
        while process.poll() is None and not any(Path(killed).glob("cache/features/*-mirrored-*.npy")):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        work = read_json(Path(killed) / WORK_FILE, WorkRecord, "")
        assert not work.finished, "the fit had ended before it was killed"
        run(*fit, killed, "--resume")
        n_views, expected = read_fit(Path(killed)).n_views, read_fit(Path(whole)).n_views
        assert n_views == expected, f"{n_views} views, but {expected} without the kill"
        for name in ("model/weights.safetensors", "predictions.csv"):
            same = (Path(whole) / name).read_bytes() == (Path(killed) / name).read_bytes()
            assert same, f"{name} differs from that of the fit that was not killed"
        return "killed at the second view and resumed: the same weights and predictions to the byte"

    def predicted() -> str:
        run("predict", whole, str(photos), "--out", str(root / "predictions.csv"), "--device", "cpu")
        found = answers(root / "predictions.csv")
        right = sum(Path(path).name.startswith(guess) for path, guess in found.items())
        assert all(found.values()), "a photo has no answer"
        assert right > len(found) / 2, (
            f"right on {right} of {len(found)} photos, which are as different as their colours"
        )
        return f"right on {right} of {len(found)} photos"

    def exported() -> str:
        run("export", whole, "--out", str(root / "model.onnx"))
        return f"{(root / 'model.onnx').stat().st_size / 1e6:.1f} MB, the same as torch"

    yield from {"fit": fitted, "resume": resumed, "predict": predicted, "export": exported}.items()


def run(*command: str) -> None:
    done = subprocess.run([sys.executable, "-m", "meanteacher", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or done.stdout


def answers(table: Path) -> dict[str, str]:
    header, *rows = (line.split(",") for line in table.read_text(encoding="utf-8-sig").splitlines())
    return {row[header.index("path")]: row[header.index("guess")] for row in rows}


if __name__ == "__main__":
    sys.exit(main())
