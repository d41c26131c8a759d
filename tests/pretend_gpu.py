"""A GPU that is not there: tensors that say they are on "cuda", compute on the CPU, and refuse to meet the CPU's.

Unlike torch's fake tensors they have values, so a whole run goes through: gradients, readings, checkpoints. What the
CPU computes for them is what it computes for itself, so a run here has to end with the very bytes of a run there.
torch's own fake tensors cannot show that: for a GPU that torch was not built for, the first gradient ends the process.

Inside torch a tensor of the pretended GPU is on the device "meta", which autograd knows on every machine.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from meanteacher.devices import VARIABLE

GPU = torch.device("cuda", 0)
NAME = "Pretended GPU"
_CPU, _INSIDE = torch.device("cpu"), torch.device("meta")
_aten = torch.ops.aten
_MOVES = {_aten._to_copy.default, _aten.copy_.default}
"""What takes values from one device to another."""
_INDEXING = {_aten.index.Tensor, _aten.index_put_.default, _aten._index_put_impl_.default}
"""Where an index on the CPU may choose of a GPU's rows."""


class TwoDevicesError(RuntimeError):
    """Tensors of both devices met, where a real GPU would refuse it."""


class OnGpu(Tensor):
    """A tensor of the pretended GPU. Its values are on the CPU, where nobody but this file finds them."""

    values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> "OnGpu":
        made = Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=_INSIDE,
        )
        made.values = values
        return made

    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)
    is_meta = property(lambda self: False)

    def __repr__(self, **_: object) -> str:
        return f"OnGpu({self.values})"

    def tolist(self) -> Any:
        return self.values.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TwoDevicesError("numpy has its arrays on the CPU")

    def new_tensor(self, data: Any, **options: Any) -> "OnGpu":
        return OnGpu(self.values.new_tensor(data, **options))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Saved as what a GPU's tensor is loaded as with map_location="cpu"."""
        return self.values.detach().__reduce_ex__(protocol)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


def _mapped(change: Callable[[Any], Any], x: Any) -> Any:
    """Every tensor in arguments or results, changed. torch's own tree_map takes longer than most operations here."""
    if isinstance(x, Tensor):
        return change(x)
    if isinstance(x, list | tuple):
        return type(x)([_mapped(change, each) for each in x])
    if isinstance(x, dict):
        return {key: _mapped(change, each) for key, each in x.items()}
    return x


def _tensors(*given: Any) -> list[Tensor]:
    found: list[Tensor] = []
    _mapped(found.append, given)
    return found


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    leaves = _tensors(args, kwargs)
    there = [leaf for leaf in leaves if isinstance(leaf, OnGpu)]
    if there and func not in _MOVES:
        _check(func, args, leaves)
    ends_there = bool(there) if kwargs.get("device") is None else torch.device(kwargs["device"]) == _INSIDE
    if ends_there and "device" in kwargs:
        kwargs = {**kwargs, "device": _CPU}
    args, kwargs = _mapped(lambda x: x.values if isinstance(x, OnGpu) else x, (args, kwargs))
    result = func(*args, **kwargs)
    if not ends_there:
        return result
    written = {id(leaf.values): leaf for leaf in there}  # an operation in place returns what it was given

    return _mapped(lambda x: written[id(x)] if id(x) in written else OnGpu(x), result)


def _check(func: Any, args: Any, leaves: list[Tensor]) -> None:
    here = [leaf for leaf in leaves if not isinstance(leaf, OnGpu)]
    if func in _INDEXING and isinstance(args[0], OnGpu):
        here = [leaf for leaf in here if not any(leaf is index for index in _tensors(args[1]))]
    if torch.Tag.pointwise in func.tags:
        here = [leaf for leaf in here if leaf.ndim]  # one number of the CPU is taken for a constant
    if here:
        raise TwoDevicesError(
            f"{func} is given tensors of both devices: {[tuple(x.shape) for x in here]} are the CPU's"
        )


class _Factories(TorchDispatchMode):
    """Also what is made of nothing, by an operation without a tensor among its arguments."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


class _Names(TorchFunctionMode):
    """Takes "cuda" in a call for the pretended GPU, before torch looks for a real one."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.device:
            return func(*args, **kwargs)
        if func is Tensor.pin_memory:
            return args[0]
        if func is torch.tensor and _inside(kwargs.get("device")) is _INSIDE:
            return OnGpu(func(*args, **{**kwargs, "device": _CPU}))
        if (generator := kwargs.get("generator")) is not None:
            on_gpu = kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda"
            if on_gpu != getattr(generator, "on_gpu", False):
                raise TwoDevicesError(f"{func} draws on {kwargs.get('device')} from a generator of the other device")
        return func(*map(_inside, args), **{name: _inside(value) for name, value in kwargs.items()})


def _inside(x: object) -> object:
    name = x.type if isinstance(x, torch.device) else x.partition(":")[0] if isinstance(x, str) else ""
    return _INSIDE if name == "cuda" else x


class _Generator(torch.Generator):
    """One that knows its device: a GPU's can be made on a GPU alone."""

    on_gpu: bool

    def __new__(cls, device: torch.device | str = "cpu") -> "_Generator":
        made = super().__new__(cls, "cpu")
        made.on_gpu = torch.device(device).type == "cuda"
        return made


class _NoThreads:
    """A pool of threads without threads: torch's modes, and so the pretended GPU, exist in one thread only."""

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(work(*arguments))
        return future

    def map(self, work: Callable[..., Any], *arguments: Iterable[Any]) -> Iterator[Any]:
        return map(work, *arguments)


_WITH_THREADS = ("photos.model.predict", "photos.features.extraction", "photos.fitting.pretrained")


@contextlib.contextmanager
def _in_this_thread() -> Iterator[tuple[_NoThreads, int]]:
    yield _NoThreads(), 1


@contextlib.contextmanager
def pretend_gpu(free_bytes: int = 1 << 30) -> Iterator[torch.device]:
    """While open, there is a GPU, in this thread.

    Args:
        free_bytes: of its memory
    """
    stand_ins = {
        "torch.cuda.is_available": lambda: True,
        "torch.cuda.device_count": lambda: 1,
        "torch.cuda.current_device": lambda: 0,
        "torch.cuda.get_device_name": lambda device: NAME,
        "torch.cuda.get_device_capability": lambda device: (7, 5),  # it has no bfloat16
        "torch.cuda.mem_get_info": lambda device: (free_bytes, free_bytes),
        "torch.cuda.memory_reserved": lambda device: 0,
        "torch.cuda.memory_allocated": lambda device: 0,
        "torch.cuda.synchronize": lambda device: None,
        # One generator serves both devices, so that both draw the same.
        "torch.cuda.get_rng_state": lambda device: torch.get_rng_state(),
        "torch.cuda.set_rng_state": lambda state, device: torch.set_rng_state(state),
        "torch.Generator": _Generator,
        **{f"meanteacher.{module}.one_network_per_thread": _in_this_thread for module in _WITH_THREADS},
        "torch.inference_mode": torch.no_grad,  # which cannot take views of a subclass
    }
    with contextlib.ExitStack() as stack:
        for name, stand_in in stand_ins.items():
            stack.enter_context(mock.patch(name, stand_in))
        stack.enter_context(_Factories())
        stack.enter_context(_Names())
        stack.enter_context(mock.patch.dict(os.environ))
        os.environ.pop(VARIABLE, None)
        yield GPU
