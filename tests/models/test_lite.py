"""The networks are those that the published weights were trained for."""

from itertools import pairwise

import pytest
import torch

from backbone_support import images, published
from meanteacher.core import InputError, Problem
from meanteacher.models import LiteSpec

LITES = {"lite0": LiteSpec(), "lite2": LiteSpec(width=1.1, depth=1.2)}
IMAGENET = Problem(n_classes=1000, n_examples=1, input_shape=(3, 224, 224))


@pytest.mark.parametrize(("name", "size"), [("lite0", 224), ("lite0", 160), ("lite2", 260)])
def test_logits_are_those_of_the_published_network(name: str, size: int):
    theirs = published(name)
    ours = LITES[name].build(IMAGENET).double().eval()
    # The same tensors in the same order, under other names.
    pairs = zip(ours.state_dict(), theirs.state_dict().values(), strict=True)
    ours.load_state_dict(dict(pairs))
    with torch.no_grad():
        expected = theirs(images(size))
        got = ours(images(size))
    assert expected.std() > 0.1
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("size", [32, 47, 160])
def test_each_stride_halves_the_side_rounded_up_and_shortcuts_keep_it(size: int):
    network = LiteSpec(width=0.25, depth=0.5).build(IMAGENET)
    sides, x = [size], torch.randn(2, 3, size, size)
    for layer in network[:-2]:
        x = layer(x)
        sides.append(x.shape[-1])
    halvings = [(before, after) for before, after in pairwise(sides) if after != before]
    assert len(halvings) == 5
    assert all(after == (before + 1) // 2 for before, after in halvings)


def test_a_cut_network_computes_the_same_in_two_parts_under_the_same_names():
    network = LiteSpec(width=0.25).build(IMAGENET).double().eval()
    front, rest = network[:12], network[12:]
    with torch.no_grad():
        assert torch.equal(rest(front(images(64))), network(images(64)))
    assert front.state_dict().keys() == {name for name in network.state_dict() if int(name.partition(".")[0]) < 12}


@pytest.mark.parametrize(
    "wrong", [{"width": 0.0}, {"depth": -1.0}, {"width": float("nan")}, {"depth": 1000.0}, {"width": 1e300}]
)
def test_a_network_without_a_sensible_width_and_depth_is_refused(wrong: dict[str, float]):
    with pytest.raises(InputError, match="above 0"):
        LiteSpec(**wrong)
