"""A network for prediction: batch normalisation folded into the convolutions before it."""

from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from meanteacher.passes import in_fast_layout


def folded(network: nn.Module) -> nn.Module:
    """A network with the same output but for rounding, and the given one untouched.

    In evaluation a normalisation is a scale and a shift for each channel, which the convolution before it can do on
    the way. It can still where the largest of neighbours is taken between the two, if no scale is negative.
    """
    traced = fx.symbolic_trace(network)
    calls: dict[object, list[fx.Node]] = {}
    for node in traced.graph.nodes:
        calls.setdefault(node.target, []).append(node)
    for node in list(traced.graph.nodes):
        norm = _module(traced, node)
        if not isinstance(norm, nn.BatchNorm2d) or norm.running_var is None:
            continue
        before = _only_input(node)
        if isinstance(_module(traced, before), nn.MaxPool2d) and not _turns_over(norm):
            before = _only_input(before)
        conv = _module(traced, before)
        if not isinstance(conv, nn.Conv2d) or before is None or len(calls[before.target]) > 1:
            continue
        merged = fuse_conv_bn_eval(conv, norm)
        merged.weight.data = in_fast_layout(merged.weight.data)
        traced.set_submodule(str(before.target), merged)
        node.replace_all_uses_with(node.args[0])
        traced.graph.erase_node(node)
    traced.recompile()
    return traced.eval()


def _module(traced: fx.GraphModule, node: fx.Node | None) -> nn.Module | None:
    if node is None or node.op != "call_module":
        return None
    return traced.get_submodule(str(node.target))


def _only_input(node: fx.Node | None) -> fx.Node | None:
    """The node whose output goes here and nowhere else."""
    before = node.args[0] if node else None
    return before if isinstance(before, fx.Node) and len(before.users) == 1 else None


def _turns_over(norm: nn.BatchNorm2d) -> bool:
    """Whether it makes the largest value of some channel the smallest."""
    return norm.affine and bool((norm.weight < 0).any())
