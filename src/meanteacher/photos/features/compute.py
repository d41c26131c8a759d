"""A module as a function from one array to another: by onnxruntime on a CPU, by torch elsewhere."""

import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import nn

from meanteacher.core import imported
from meanteacher.devices import CPU
from meanteacher.photos.features.onnx_graph import UnsupportedError, to_onnx

Compute = Callable[[NDArray[Any]], NDArray[np.float32]]
"""A function from a batch [N, ...] to the output [N, ...]. Threads may share it."""

_BATCH = 8
"""Images per call of onnxruntime. Larger batches are not faster and take more memory."""


def computing(module: nn.Module, shape: Sequence[int], dtype: type[np.generic], device: torch.device = CPU) -> Compute:
    """The module as a function of a batch [N, *shape]: by onnxruntime on a CPU, by torch elsewhere.

    Torch also computes modules that cannot be written as ONNX. Later changes of the module have no effect. Onnxruntime
    computes in the calling thread alone: call it from one thread per core, each with batches of its own.
    """
    if device.type == "cpu":
        try:
            return session(to_onnx(module, shape, dtype).SerializeToString())
        except UnsupportedError:
            pass
    moved = copy.deepcopy(module).to(device)

    def compute(batch: NDArray[Any]) -> NDArray[np.float32]:
        with torch.inference_mode():
            output: NDArray[np.float32] = moved(torch.from_numpy(batch).to(device)).cpu().numpy()
            return output

    return compute


def session(model: bytes) -> Compute:
    """An ONNX model with one input and one output, computed in the calling thread."""
    onnxruntime = imported("onnxruntime", "A network on a CPU", extra="photos")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    running = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (given,) = running.get_inputs()

    def compute(batch: NDArray[Any]) -> NDArray[np.float32]:
        parts = (batch[start : start + _BATCH] for start in range(0, max(1, len(batch)), _BATCH))
        return np.concatenate([running.run(None, {given.name: np.ascontiguousarray(part)})[0] for part in parts])

    return compute


@contextmanager
def one_network_per_thread() -> Iterator[tuple[ThreadPoolExecutor, int]]:
    """As many threads as torch would use within one network, each of which computes a network alone.

    Threads that share one computation wait for each other, which takes many times as long beside other busy programs.
    """
    n = torch.get_num_threads()
    try:
        with threadpool_limits(1), ThreadPoolExecutor(n, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            try:
                yield pool, n
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
    finally:
        torch.set_num_threads(n)
