"""timm and torchvision are not needed here: stand-ins of the same interface take their places."""

import copy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from backbone_support import Plain, with_timm, with_torchvision
from meanteacher.core import InputError, Problem
from meanteacher.models import ExternalSpec, PooledSpec
from meanteacher.models.external import _install_command

PROBLEM = Problem(n_classes=5, n_examples=100, input_shape=(2, 8, 8))


@pytest.fixture(autouse=True)
def _same_draws_every_time() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    return with_timm(monkeypatch)


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    return with_torchvision(monkeypatch)


def test_timm_is_told_the_channels_and_the_classes(timm: list[dict[str, object]]) -> None:
    network = ExternalSpec(library="timm", name="resnet18").build(PROBLEM)
    assert timm == [{"name": "resnet18", "pretrained": False, "in_chans": 2, "num_classes": 5}]
    assert network(torch.randn(3, 2, 8, 8)).shape == (3, 5)


def test_torchvision_is_told_the_classes_and_made_to_take_the_channels(torchvision: list[dict[str, object]]) -> None:
    network = ExternalSpec(library="torchvision", name="resnet18").build(PROBLEM)
    assert torchvision == [{"name": "resnet18", "weights": None, "num_classes": 5}]
    assert network(torch.randn(3, 2, 8, 8)).shape == (3, 5)
    first, second = (layer for layer in network.modules() if isinstance(layer, nn.Conv2d))
    assert (first.in_channels, first.stride, first.bias, second.in_channels) == (2, (2, 2), None, 4)
    assert 0 < first.weight.std() < 1


@pytest.mark.usefixtures("torchvision")
def test_torchvisions_network_is_left_as_it_is_where_the_images_have_three_channels() -> None:
    colour = Problem(n_classes=5, n_examples=100, input_shape=(3, 8, 8))
    torch.manual_seed(7)
    network = ExternalSpec(library="torchvision", name="vgg11").build(colour)
    torch.manual_seed(7)
    for ours, theirs in zip(network.parameters(), Plain(3, 5).parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.usefixtures("timm", "torchvision")
@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_two_outputs_share_the_trunk_and_no_row_of_the_last_layer(library: str) -> None:
    network = ExternalSpec(library=library, name="resnet18", outputs=2).build(PROBLEM)
    x = torch.randn(3, 2, 8, 8)
    for_class, for_consistency = network(x)
    assert for_class.shape == for_consistency.shape == (3, 5)
    assert not torch.allclose(for_class, for_consistency)
    for output, rows in ((0, slice(0, 5)), (1, slice(5, 10))):
        network.zero_grad()
        network(x)[output].square().sum().backward()
        reached = network.network.fc.weight.grad.any(1)
        assert reached[rows].all()
        assert reached.sum() == 5
        assert network.network.features[0].weight.grad.any()
    copied = copy.deepcopy(network)
    assert torch.equal(copied(x)[1], network(x)[1])


@pytest.mark.usefixtures("timm", "torchvision")
@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_an_unknown_name_gives_the_nearest_ones(library: str) -> None:
    with pytest.raises(InputError, match=rf"{library} .*'resnet-18'.*\bresnet18\b"):
        ExternalSpec(library=library, name="resnet-18").build(PROBLEM)
    with pytest.raises(InputError, match=rf"{library} .*'zzz'.* 6 "):
        ExternalSpec(library=library, name="zzz").build(PROBLEM)


@pytest.mark.usefixtures("torchvision")
def test_a_network_for_another_task_is_unknown() -> None:
    with pytest.raises(InputError, match="'fcn_resnet50'"):
        ExternalSpec(library="torchvision", name="fcn_resnet50").build(PROBLEM)


@pytest.mark.usefixtures("torchvision")
def test_a_network_that_returns_more_than_logits_is_refused() -> None:
    network = ExternalSpec(library="torchvision", name="inception_v3").build(PROBLEM)
    with pytest.raises(InputError, match=r"inception_v3 .*\bBoth\b.*\(3, 5\)"):
        network(torch.randn(3, 2, 8, 8))
    assert network.eval()(torch.randn(3, 2, 8, 8)).shape == (3, 5)


def test_a_network_that_ignores_the_number_of_classes_is_refused(timm: list[dict[str, object]]) -> None:
    network = ExternalSpec(library="timm", name="vgg11").build(PROBLEM)
    network.network.fc = nn.Linear(4, 1000)
    with pytest.raises(InputError, match=r"timm's vgg11 .*\(3, 1000\).*\(3, 5\)"):
        network(torch.randn(3, 2, 8, 8))


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_missing_library_gives_one_line_that_says_what_to_install(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, "torchvision.models", raising=False)
    with pytest.raises(InputError) as caught:
        ExternalSpec(library=library, name="resnet18").build(PROBLEM)
    message = str(caught.value)
    assert library in message
    assert "ModuleNotFoundError" in message
    assert f"`{_install_command(library, torch.__version__)}`" in message
    assert "meanteacher's own networks" in message
    assert "\n" not in message


@pytest.mark.parametrize("error", ["RuntimeError", "OSError", "AttributeError"])
@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_broken_library_is_as_good_as_missing(
    library: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("timm", "torchvision"):
        for module in [module for module in sys.modules if module.partition(".")[0] == name]:
            monkeypatch.delitem(sys.modules, module)
        (tmp_path / name).mkdir()
    # Beside a torch it was not built for, torchvision fails so; and timm, which imports it, with it.
    (tmp_path / "timm" / "__init__.py").write_text("import torchvision\n")
    reason = r"operator torchvision::nms does not exist\nand a second line"
    (tmp_path / "torchvision" / "__init__.py").write_text(f'raise {error}("{reason}")\n')
    monkeypatch.syspath_prepend(tmp_path)
    expected = rf"^{library} .*{error}: operator torchvision::nms does not exist\b.*pip install"
    for _ in range(2):
        with pytest.raises(InputError, match=expected) as caught:
            ExternalSpec(library=library, name="resnet18").build(PROBLEM)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("version", "command"),
    [
        ("2.13.0", "pip install -U torchvision torch==2.13.0"),
        (
            "2.13.0+cu126",
            "pip install -U torchvision torch==2.13.0 --extra-index-url https://download.pytorch.org/whl/cu126",
        ),
        ("2.13.0+git1a2b", "pip install -U torchvision torch==2.13.0"),
    ],
)
def test_the_command_keeps_the_installed_torch(version: str, command: str) -> None:
    assert _install_command("torchvision", version) == command


def test_the_specification_itself_needs_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    assert ExternalSpec(library="timm", name="resnet18") == ExternalSpec(library="timm", name="resnet18")


def test_an_unknown_library_and_a_wrong_number_of_outputs_are_refused_at_once() -> None:
    with pytest.raises(InputError, match=r"library .*timm or torchvision; got 'keras'"):
        ExternalSpec(library="keras", name="resnet18")
    with pytest.raises(InputError, match="got 3"):
        ExternalSpec(library="timm", name="resnet18", outputs=3)


@pytest.mark.usefixtures("timm", "torchvision")
@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_pooled_features_and_a_classifier_are_two_layers(library: str) -> None:
    network = PooledSpec(library=library, name="resnet18").build(PROBLEM)
    x = torch.randn(3, 2, 8, 8)
    assert network[:1](x).shape == (3, 4)
    assert network(x).shape == (3, 5)
    # The classifier of the library is gone.
    assert {name for name in network.state_dict() if "fc" in name} == set()
    assert {name for name in network.state_dict() if name.startswith("1.")} == {"1.weight", "1.bias"}


@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize("size", [8, 12])
def test_a_transformer_of_timm_is_built_for_the_images(size: int) -> None:
    problem = Problem(n_classes=5, n_examples=100, input_shape=(3, size, size))
    network = PooledSpec(library="timm", name="vit_small").build(problem)
    assert network[:1](torch.randn(2, 3, size, size)).shape == (2, 5)


@pytest.mark.usefixtures("timm")
def test_features_that_are_not_pooled_are_refused() -> None:
    network = PooledSpec(library="timm", name="unpooled").build(PROBLEM)
    with pytest.raises(InputError, match=r"timm's unpooled .*\(3, 4, 3, 3\).*\(3, 4\)"):
        network(torch.randn(3, 2, 8, 8))


@pytest.mark.usefixtures("torchvision")
def test_a_network_of_torchvision_without_a_linear_layer_is_refused() -> None:
    with pytest.raises(InputError, match=r"torchvision's squeezenet .*linear"):
        PooledSpec(library="torchvision", name="squeezenet").build(PROBLEM)
