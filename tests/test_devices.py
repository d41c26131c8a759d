"""A device is chosen by name, and a run goes on on the kind of device that it was started on."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from meanteacher import devices
from meanteacher.cli.app import app
from meanteacher.core import InputError, Problem
from meanteacher.devices import choose_device, device_name, free_bytes, in_double, same_kind, wait_for
from meanteacher.experiment import run
from meanteacher.experiment.run import environment
from meanteacher.models import FastNetSpec
from meanteacher.passes import SameNoise
from meanteacher.photos.model.bundle import Classifier
from meanteacher.seeding import isolated_global_randomness
from meanteacher.train import RunOptions, StopWhen
from meanteacher.views import PerChannel
from support import recipe


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """Call it to say what GPUs there are."""

    def has(*, cuda: int = 0, mps: bool = False) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU number {device.index}")
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
        monkeypatch.setattr(devices, "_processor", lambda: "Some Processor")
        monkeypatch.delenv(devices.VARIABLE, raising=False)

    return has


@pytest.mark.parametrize(
    ("cuda", "mps", "name", "expected"),
    [
        (0, False, "auto", "cpu"),
        (2, False, "auto", "cuda:0"),
        (0, True, "auto", "mps"),
        (1, True, "auto", "cuda:0"),
        (2, True, "cpu", "cpu"),
        (2, False, "cuda", "cuda:0"),
        (2, False, "cuda:1", "cuda:1"),
        (2, True, "mps", "mps"),
    ],
)
def test_device_of_a_name(cuda: int, mps: bool, name: str, expected: str, machine):
    machine(cuda=cuda, mps=mps)
    assert str(choose_device(name)) == expected


@pytest.mark.parametrize("name", ["cuda", "cuda:2", "mps", "gpu", "cuda:", "cuda:-1", "CPU", "meta", ""])
def test_wrong_name_or_absent_gpu_is_answered_with_what_there_is(name: str, machine):
    machine(cuda=2 if name == "cuda:2" else 0)
    with pytest.raises(InputError, match=r"Available: .*cpu \(Some Processor\)") as raised:
        choose_device(name)
    assert name in str(raised.value)
    assert ("cuda:1 (GPU number 1)" in str(raised.value)) == (name == "cuda:2")


@pytest.mark.parametrize(("value", "expected"), [("cpu", "cpu"), ("cuda:1", "cuda:1"), ("", "cuda:0")])
def test_environment_says_what_auto_is(value: str, expected: str, machine, monkeypatch: pytest.MonkeyPatch):
    machine(cuda=2)
    monkeypatch.setenv(devices.VARIABLE, value)
    assert str(choose_device("auto")) == expected
    assert str(choose_device("cuda")) == "cuda:0"
    monkeypatch.setenv(devices.VARIABLE, "tpu")
    with pytest.raises(InputError, match=f"{devices.VARIABLE}=tpu"):
        choose_device("auto")


def test_resuming_stays_with_the_kind_of_device(machine):
    machine(cuda=2)
    here = Path("a folder")
    assert same_kind("auto", "cpu", here).type == "cpu"
    assert str(same_kind("auto", "cuda", here)) == "cuda:0"
    assert str(same_kind("cuda:1", "cuda", here)) == "cuda:1"
    for wanted, kind in (("cpu", "cuda"), ("cuda", "cpu")):
        with pytest.raises(InputError, match=f"a folder was started on {kind}, .*--device {kind}"):
            same_kind(wanted, kind, here)
    with pytest.raises(InputError, match=r"a folder was started on mps. There is no device mps here"):
        same_kind("auto", "mps", here)


def test_records_name_the_device_and_what_it_is(machine):
    machine(cuda=1)
    assert environment()["device"] == "cpu"
    assert environment()["device_name"] == "Some Processor"
    on_gpu = environment(torch.device("cuda", 0))
    assert (on_gpu["device"], on_gpu["device_name"]) == ("cuda", "GPU number 0")


class Generators:
    """Stands for the module of a device whose networks draw from its own generator."""

    def __init__(self) -> None:
        self.state = 0

    def get_rng_state(self, device: object = None) -> int:
        return self.state

    def set_rng_state(self, state: int, device: object = None) -> None:
        self.state = state


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_noise_of_a_gpu_is_repeated_and_put_back(kind: str, monkeypatch: pytest.MonkeyPatch):
    generators = Generators()
    monkeypatch.setattr(torch, kind, generators)
    generators.state = 5
    noise = SameNoise(torch.device(kind))
    generators.state = 8
    with noise.again():
        assert generators.state == 5
        generators.state = 6
    assert generators.state == 8


def test_generator_of_apples_gpu_is_left_as_it_was(machine, monkeypatch: pytest.MonkeyPatch):
    machine(mps=True)
    generators = Generators()
    monkeypatch.setattr(torch, "mps", generators)
    generators.state = 5
    with isolated_global_randomness():
        generators.state = 6
    assert generators.state == 5


@pytest.mark.parametrize(("kind", "where"), [("mps", "cpu"), ("cuda", "cuda"), ("cpu", "cpu")])
def test_double_precision_is_on_the_device_where_it_has_any(kind: str, where: str):
    class Stub:
        def __init__(self, kind: str) -> None:
            self.device = torch.device(kind)

        def cpu(self) -> "Stub":
            return Stub("cpu")

        def double(self) -> str:
            return self.device.type

    assert in_double(Stub(kind)) == where


def test_clock_waits_for_a_gpu(monkeypatch: pytest.MonkeyPatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waited.append("mps"))
    for name in ("cpu", "cuda:1", "mps"):
        wait_for(torch.device(name))
    assert waited == [torch.device("cuda", 1), "mps"]


def test_free_memory_counts_what_torch_may_use_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 70)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 30)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 90)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 20)
    assert [free_bytes(torch.device(name)) for name in ("cuda", "mps", "cpu")] == [140, 70, float("inf")]


def test_processor_has_a_name():
    assert device_name(torch.device("cpu")).strip()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number, name in enumerate(("dark", "bright")):
        for k in range(3):
            path = tmp_path / "photos" / name / f"{k}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (16, 16), (200 * number + k,) * 3).save(path)
    return tmp_path / "photos"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    spec, normaliser = FastNetSpec(width=0.125), PerChannel()
    network = spec.build(Problem(n_classes=2, n_examples=1, input_shape=(3, 32, 32))).eval()
    fitted = normaliser.fit(torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8))
    parts = {"spec": spec, "normaliser": normaliser}
    return Classifier(network, fitted, ("bright", "dark"), 32, 1.0, {}, **parts).save(tmp_path / "model")


def _run(out: Path, *, resume: bool = False, device: str = "cpu", stop: bool = False):
    whole = recipe(steps=4)
    data = whole.data.source.load(out)
    return run(
        whole,
        seed=0,
        out=out,
        data=data,
        resume=resume,
        options=RunOptions(device=device),
        callbacks=[StopWhen(lambda: stop)],
    )


def test_run_says_where_it_was_computed_and_is_not_resumed_elsewhere(tmp_path: Path, machine):
    _run(tmp_path, stop=True)
    about = json.loads((tmp_path / "run.json").read_text())
    assert about["options"]["device"] == "cpu"
    on_gpu = json.dumps(about | {"options": about["options"] | {"device": "cuda"}})
    machine(cuda=1)
    with pytest.raises(InputError, match="was started on cpu, and cuda rounds differently"):
        _run(tmp_path, resume=True, device="cuda")
    machine()
    (tmp_path / "run.json").write_text(on_gpu)
    for wanted in ("auto", "cpu"):
        with pytest.raises(InputError, match="was started on cuda"):
            _run(tmp_path, resume=True, device=wanted)
    (tmp_path / "run.json").write_text(json.dumps(about))
    record = _run(tmp_path, resume=True, device="auto").record
    assert record is not None
    assert record.environment["device"] == "cpu"
    assert record.environment["device_name"] == "Some Processor"
    # What is complete is only read.
    (tmp_path / "run.json").write_text(on_gpu)
    assert _run(tmp_path, resume=True).record == record


def test_wrong_device_leaves_nothing_behind(tmp_path: Path, machine):
    machine()
    with pytest.raises(InputError, match="There is no device cuda here"):
        _run(tmp_path / "a", device="cuda")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("command", ["run", "demo", "fit", "predict", "evaluate"])
def test_every_command_that_computes_takes_a_device(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Path, photos: Path
):
    monkeypatch.chdir(tmp_path)
    given = {"run": ["digits/supervised"], "fit": [photos], "predict": [model, photos], "evaluate": [model, photos]}
    failed = CliRunner().invoke(app, [command, *map(str, given.get(command, [])), "--device", "tpu"])
    assert failed.exit_code == 2, failed.output
    assert "A device is auto, cpu, cuda, cuda:N or mps; got 'tpu'" in failed.output
