"""torch's compiler traces every network of the paper as one graph: nothing in a layer stops it, on any device."""

import pytest
import torch
from instances import ShallowResNeXt

from benchmarks.sizing import outline
from meanteacher.core import Problem
from meanteacher.models import ResNeXt152Spec
from meanteacher.models.layers import ModelSpec
from meanteacher.recipes import RECIPES

NETWORKS: dict[str, tuple[ModelSpec, Problem]] = {}
for _recipe in RECIPES.values():
    if not _recipe.name.startswith("compare/"):
        _problem = outline(_recipe.data.source).problem
        _model = _recipe.training.model
        if isinstance(_model, ResNeXt152Spec):  # all of its blocks take minutes
            _model = ShallowResNeXt()
        NETWORKS.setdefault(f"{type(_model).__name__}-{getattr(_model, 'outputs', 1)}", (_model, _problem))


# torch's compiler makes an object of an autograd function, which torch advises against.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", NETWORKS)
def test_network_is_one_graph(name: str, device: str):
    """A pass on the meta device takes the way of a GPU, and computes nothing."""
    spec, problem = NETWORKS[name]
    graphs = []

    def count(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    with torch.device(device):
        network = spec.build(problem).train()
        torch.compile(network, backend=count, fullgraph=True, dynamic=False)(torch.zeros(2, *problem.input_shape))
    assert len(graphs) == 1
