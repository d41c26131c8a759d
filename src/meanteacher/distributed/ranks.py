"""Several processes that train one network: who they are, what they exchange, and how long they wait for each other.

Rank r of W has the rows r, r + W, r + 2 W … of every batch. What a step does with them is in `rows`.
"""

import atexit
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from meanteacher.core import FirstRankError, InputError, LostRankError

TIMEOUT_VARIABLE = "MEANTEACHER_TIMEOUT"
"""Environment variable with the seconds that a process waits for another."""
_TIMEOUT = 300.0
_POLL_SECONDS = 0.1
_REPORT_SECONDS = 5.0
"""For the other ranks to say that they wait, too."""
_SLURM_PORTS = (20_000, 10_000)
"""First and number of those from which the port of a SLURM job is taken, by the job's number."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes of a run, as one of them sees them. With one process nothing is exchanged."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Among the processes of this machine."""
    local_size: int = 1
    restarts: int = 0
    """How often the processes were started again after a failure."""

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    @property
    def rows(self) -> slice:
        """Which rows of a batch, or positions of a list, are this rank's."""
        return slice(self.rank, None, self.size)

    def gather_rows(self, x: Tensor, n: int, doing: str) -> Tensor:
        """[k · n, ...] from [k · own, ...], the rows that each rank has of k blocks of n rows. Without gradient."""
        if self.size == 1:
            return x
        own, most = len(range(n)[self.rows]), -(-n // self.size)
        if not own or len(x) % own:
            raise InputError(
                f"Rank {self.rank} of {self.size} got {len(x)} output rows, but has {own} of the {n} rows of the "
                "batch. Pass all rows of a view through the network, and select some of the outputs."
            )
        blocks = x.detach().reshape(-1, own, *x.shape[1:])
        padded = blocks.new_zeros(len(blocks), most, *x.shape[1:])
        padded[:, :own] = blocks
        gathered = padded.new_empty(self.size, *padded.shape)
        with self._waiting(doing):
            dist.all_gather(list(gathered.unbind()), padded)
        # Row i is row i // W of rank i % W.
        return gathered.movedim(0, 2).flatten(1, 2)[:, :n].flatten(0, 1)

    def average_(self, tensors: Sequence[Tensor], doing: str) -> None:
        """Replace the tensors by their means over the ranks, which have equally many of the same shapes."""
        if self.size == 1:
            return
        for kind in sorted({(tensor.dtype, tensor.device) for tensor in tensors}, key=str):
            same = [tensor for tensor in tensors if (tensor.dtype, tensor.device) == kind]
            flat = torch.cat([tensor.flatten() for tensor in same])
            with self._waiting(doing):
                dist.all_reduce(flat)
            means = (flat / self.size).split([tensor.numel() for tensor in same])
            torch._foreach_copy_(same, [mean.view_as(tensor) for mean, tensor in zip(means, same, strict=True)])

    def summed(self, x: Tensor, doing: str) -> Tensor:
        """The sum of a tensor over the ranks, as a new tensor without gradient."""
        total = x.detach().clone(memory_format=torch.contiguous_format)
        if self.size > 1:
            with self._waiting(doing):
                dist.all_reduce(total)
        return total

    def agree(self, *values: int, doing: str) -> list[int]:
        """For each value the largest of all ranks: a flag of one rank is a flag of all."""
        if self.size == 1:
            return list(values)
        largest = torch.tensor(values, dtype=torch.int64)
        with self._waiting(doing):
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return [int(value) for value in largest]

    def gather(self, value: T, doing: str) -> list[T]:
        """The value of every rank, by rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with self._waiting(doing):
            dist.all_gather_object(values, value)
        return values

    def from_first(self, compute: Callable[[], T], doing: str) -> T:
        """What `compute` returns on rank 0, or the InputError that it raises there, on every rank."""
        if self.size == 1:
            return compute()
        answer: list[Any] = [None, None]
        refused: InputError | None = None
        if self.is_first:
            try:
                answer[0] = compute()
            except InputError as error:
                refused, answer[1] = error, str(error)
        with self._waiting(doing):
            dist.broadcast_object_list(answer)
        if refused is not None:
            raise refused
        if answer[1] is not None:
            raise FirstRankError(answer[1])
        value: T = answer[0]
        return value

    def meet(self, doing: str) -> None:
        """Return when every rank has come here."""
        self.agree(0, doing=doing)

    @contextmanager
    def _waiting(self, doing: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            seconds = time.monotonic() - began
            reason = str(error).strip().splitlines()[0].rstrip(".")
            raise LostRankError(
                f"Rank {self.rank} of {self.size} waited {seconds:.0f} s for {self._missing()} while {doing} "
                f"({reason}). It was killed or is stuck: see its own messages. The last checkpoint is intact; continue "
                f"the run with --resume, and set {TIMEOUT_VARIABLE} to more than {_timeout():.0f} seconds if it was "
                "only slow."
            ) from error

    def _missing(self) -> str:
        """The ranks that do not say that they wait, too."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        try:
            _joined.store.set(f"waits/{self.rank}", "yes")
            deadline = time.monotonic() + _REPORT_SECONDS
            while time.monotonic() < deadline and others:
                others = [rank for rank in others if not _joined.store.check([f"waits/{rank}"])]
                time.sleep(_POLL_SECONDS)
        except RuntimeError:
            return "rank 0"  # which keeps the list
        return " and ".join(f"rank {rank}" for rank in others) or "an answer of the others, which wait as well"


ALONE = Ranks()


@dataclass(slots=True)
class _Joined:
    ranks: Ranks | None = None
    store: Any = None
    """A store of torch, which has no public type."""


_joined = _Joined()


def join() -> Ranks:
    """The processes that this one was started with, connected; `ALONE` if it was started alone.

    torchrun, `accelerate launch` and `--nproc` say in the environment who belongs together, and so does SLURM's srun. A
    process group that the program has made itself is used as it is.
    """
    if _joined.ranks is None:
        found = found_in(os.environ)
        if dist.is_available() and dist.is_initialized():
            found = Ranks(dist.get_rank(), dist.get_world_size(), found.local_rank, found.local_size, found.restarts)
            _joined.store = dist.distributed_c10d._get_default_store()
        elif found.size > 1:
            _joined.store = _connect(found, os.environ)
            atexit.register(leave)
            found.meet("connecting")  # one that ends at once must not take the connection from the others
        if found.size > 1 and torch.cuda.is_available():
            torch.cuda.set_device(found.local_rank % torch.cuda.device_count())
        _joined.ranks = found
    return _joined.ranks


def leave() -> None:
    """Close the connections."""
    if dist.is_initialized():
        dist.destroy_process_group()
    _joined.ranks = _joined.store = None


def check_devices(device: torch.device, ranks: Ranks) -> None:
    """Refuse a device that the processes of this machine cannot share."""
    if ranks.size == 1 or device.type == "cpu":
        return
    n = torch.cuda.device_count() if device.type == "cuda" else 0
    if device.type == "cuda" and device.index != ranks.local_rank % max(n, 1):
        raise InputError(f"Each of {ranks.size} processes takes a GPU of its own: give --device cuda, not {device}.")
    if ranks.local_size > n:
        raise InputError(
            f"{ranks.local_size} processes on this machine need as many GPUs for CUDA, and there are {n}. Start fewer, "
            "or compute with --device cpu."
        )


def found_in(environment: Mapping[str, str]) -> Ranks:
    """Who this process is, by what its launcher says.

    >>> found_in({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"})
    Ranks(rank=1, size=4, local_rank=1, local_size=2, restarts=0)
    >>> found_in({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "3"}).size
    8
    >>> found_in({}) == ALONE
    True
    """

    def number(name: str, default: int) -> int:
        return int(environment.get(name) or default)

    if "RANK" in environment and "WORLD_SIZE" in environment:
        size = number("WORLD_SIZE", 1)
        local = number("LOCAL_RANK", 0), number("LOCAL_WORLD_SIZE", size)
        return Ranks(number("RANK", 0), size, *local, number("TORCHELASTIC_RESTART_COUNT", 0))
    # srun sets the number of a step's tasks; a batch script, which is one process, only has that of the job.
    if "SLURM_STEP_NUM_TASKS" in environment:
        size = number("SLURM_STEP_NUM_TASKS", 1)
        each = re.match(r"\d+", environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
        local = number("SLURM_LOCALID", 0), int(each[0]) if each else size
        return Ranks(number("SLURM_PROCID", 0), size, *local, number("SLURM_RESTART_COUNT", 0))
    return ALONE


def meeting_point(environment: Mapping[str, str]) -> tuple[str, int]:
    """Host and port at which the processes find each other.

    >>> meeting_point({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"})
    ('10.0.0.1', 29500)
    >>> meeting_point({"SLURM_STEP_NODELIST": "gpu[03-04,07],cpu1", "SLURM_JOB_ID": "41234"})
    ('gpu03', 21234)
    """
    # The first host of SLURM's list: "gpu[03-04,07],cpu1" begins with gpu03.
    node = re.match(r"([^\[,]+)(?:\[(\d+))?", environment.get("SLURM_STEP_NODELIST", ""))
    host = environment.get("MASTER_ADDR") or (node and node[1] + (node[2] or ""))
    first, n = _SLURM_PORTS
    port = environment.get("MASTER_PORT") or first + int(environment.get("SLURM_JOB_ID") or 0) % n
    if not host:
        raise InputError(
            "The environment says that this is one of several processes, but not where they meet. Start them with "
            "--nproc, torchrun or srun, or set MASTER_ADDR and MASTER_PORT."
        )
    return host, int(port)


def _connect(ranks: Ranks, environment: Mapping[str, str]) -> Any:
    host, port = meeting_point(environment)
    seconds = timedelta(seconds=_timeout())
    # torchrun keeps a store of its own at that address, unless it was told not to.
    hosts = ranks.is_first and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        stores: Any = dist
        tcp = stores.TCPStore(host, port, None, hosts, seconds, wait_for_workers=False)
        store = stores.PrefixStore(f"meanteacher/{ranks.restarts}", tcp)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=ranks.rank, world_size=ranks.size, timeout=seconds)
    except (RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise LostRankError(
            f"Rank {ranks.rank} of {ranks.size} could not connect to the others at {host}:{port} within "
            f"{_timeout():.0f} s ({reason}). Check that all {ranks.size} processes were started and can reach that "
            "address."
        ) from error
    return store


def _timeout() -> float:
    return float(os.environ.get(TIMEOUT_VARIABLE) or _TIMEOUT)
