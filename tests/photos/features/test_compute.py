"""Onnxruntime computes where it can, torch computes the rest, and both give the same."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from meanteacher.core import InputError, Problem
from meanteacher.models import LiteSpec
from meanteacher.photos.features import compute
from meanteacher.photos.features.compute import computing
from meanteacher.views import PerChannel

SIZE = 32


class LeftToTorch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.erf()


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (21, 3, SIZE, SIZE), dtype=np.uint8)


@pytest.fixture(scope="module")
def front(pixels: np.ndarray) -> nn.Sequential:
    """A normalisation and the first layers of a network."""
    torch.manual_seed(0)
    network = LiteSpec(width=0.25).build(Problem(5, 1, (3, SIZE, SIZE)))
    return nn.Sequential(PerChannel().fit(torch.from_numpy(pixels)), network[:6]).eval()


@torch.no_grad()
def torchs(module: nn.Module, batch: np.ndarray) -> np.ndarray:
    return module(torch.from_numpy(batch)).numpy()


@pytest.mark.parametrize("of_torch", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_both_engines_give_the_features_of_torch(
    front: nn.Sequential, pixels: np.ndarray, of_torch: bool, dtype: type, monkeypatch: pytest.MonkeyPatch
):
    sessions = []
    real = compute.session
    monkeypatch.setattr(compute, "session", lambda model: sessions.append(1) or real(model))
    module = nn.Sequential(front, LeftToTorch()).eval() if of_torch else front
    batch = pixels if dtype is np.uint8 else (pixels / 255).astype(np.float32)
    features = computing(module, (3, SIZE, SIZE), dtype)(batch)
    assert len(sessions) == (not of_torch)
    assert features.dtype == np.float32
    assert features.std() > 1e-3
    np.testing.assert_allclose(features, torchs(module, batch), atol=1e-4)


@pytest.mark.parametrize("n", [0, 1, 8, 9])
def test_batch_of_any_size_in_any_layout(front: nn.Sequential, pixels: np.ndarray, n: int):
    last = np.ascontiguousarray(pixels[:n].transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    features = computing(front, (3, SIZE, SIZE), np.uint8)(last)
    np.testing.assert_allclose(features, torchs(front, pixels)[:n], atol=1e-4)


def test_threads_share_a_network(front: nn.Sequential, pixels: np.ndarray):
    run = computing(front, (3, SIZE, SIZE), np.uint8)
    expected = torchs(front, pixels)
    with ThreadPoolExecutor(4) as pool:
        for features in pool.map(run, [pixels] * 12):
            np.testing.assert_allclose(features, expected, atol=1e-4)


@pytest.mark.parametrize("of_torch", [False, True])
def test_later_training_changes_nothing(pixels: np.ndarray, of_torch: bool):
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 4, 3)
    module = nn.Sequential(layer, LeftToTorch() if of_torch else nn.ReLU()).eval()
    batch = pixels.astype(np.float32) / 255
    run = computing(module, (3, SIZE, SIZE), np.float32)
    before = run(batch)
    with torch.no_grad():
        layer.weight.add_(1)
    np.testing.assert_array_equal(run(batch), before)
    assert np.abs(torchs(module, batch) - before).max() > 0.1


def test_another_device_is_left_to_torch(pixels: np.ndarray, monkeypatch: pytest.MonkeyPatch):
    """The meta device stands for a GPU: what is on it has no values, so torch cannot return any."""
    monkeypatch.setattr(compute, "to_onnx", None)
    run = computing(nn.ReLU().eval(), (3, SIZE, SIZE), np.uint8, torch.device("meta"))
    with pytest.raises(NotImplementedError, match="meta"):
        run(pixels)


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_missing_package_is_named(front: nn.Sequential, package: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"needs the package {package}, .* pip install 'meanteacher\[photos\]'$"):
        computing(front, (3, SIZE, SIZE), np.uint8)
