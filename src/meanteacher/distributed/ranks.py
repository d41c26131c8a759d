"""Several processes that train one network: who they are, what they exchange, and how long they wait for each other.

Rank r of W has the rows r, r + W, r + 2 W … of every batch. What a step does with them is in `rows`. The processes
exchange tensors and JSON, never pickled objects, which would run the code of whoever answers in a rank's place.
"""

import atexit
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from meanteacher.core import FirstRankError, InputError, LostRankError

TIMEOUT_VARIABLE = "MEANTEACHER_TIMEOUT"
"""Environment variable with the seconds that a process waits for another."""
STORE_VARIABLE = "MEANTEACHER_STORE"
"""Environment variable with the file at which the processes of --nproc meet, in a folder that is theirs alone."""
_TIMEOUT = 300.0
_REPORT_SECONDS = 5.0
"""Time for the other ranks to report that they wait, too."""
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
        with self.waiting(doing):
            dist.all_gather(list(gathered.unbind()), padded, group=group_of(x.device))
        # Row i is row i // W of rank i % W.
        return gathered.movedim(0, 2).flatten(1, 2)[:, :n].flatten(0, 1)

    def average_(self, tensors: Sequence[Tensor], doing: str) -> None:
        """Replace the tensors by their means over the ranks, added in float64: equal ones stay as they are."""

        def averaged(flat: Tensor) -> Tensor:
            return self.summed(flat.double(), doing) / self.size

        self._replace(tensors, averaged)

    def broadcast_(self, tensors: Sequence[Tensor], doing: str) -> None:
        """Replace the tensors by those of rank 0."""

        def of_first(flat: Tensor) -> Tensor:
            with self.waiting(doing):
                dist.broadcast(flat, 0, group=group_of(flat.device))
            return flat

        self._replace(tensors, of_first)

    @torch.no_grad()
    def _replace(self, tensors: Sequence[Tensor], exchanged: Callable[[Tensor], Tensor]) -> None:
        """Replace all tensors of one kind at a time, as one flat tensor. All ranks have the same kinds and shapes."""
        if self.size == 1:
            return
        for kind in sorted({(tensor.dtype, tensor.device) for tensor in tensors}, key=str):
            same = [tensor for tensor in tensors if (tensor.dtype, tensor.device) == kind]
            flat = exchanged(torch.cat([tensor.flatten() for tensor in same]))
            parts = flat.split([tensor.numel() for tensor in same])
            torch._foreach_copy_(same, [part.view_as(tensor) for part, tensor in zip(parts, same, strict=True)])

    def summed(self, x: Tensor, doing: str) -> Tensor:
        """The sum of a tensor over the ranks, as a new tensor without gradient."""
        total = x.detach().clone(memory_format=torch.contiguous_format)
        if self.size > 1:
            with self.waiting(doing):
                dist.all_reduce(total, group=group_of(x.device))
        return total

    def agree(self, *values: int, doing: str) -> list[int]:
        """For each value the largest of all ranks: a flag of one rank is a flag of all."""
        if self.size == 1:
            return list(values)
        largest = torch.tensor(values, dtype=torch.int64)
        with self.waiting(doing):
            dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group_of(largest.device))
        return [int(value) for value in largest]

    def gather(self, value: T, doing: str) -> list[T]:
        """The value of every rank, by rank: anything that JSON holds."""
        if self.size == 1:
            return [value]
        own = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = self.gather_rows(torch.tensor([len(own)]), self.size, doing).tolist()
        texts = self.gather_rows(F.pad(own, (0, max(lengths) - len(own)))[None], self.size, doing)
        return [json.loads(bytes(text[:n].tolist())) for text, n in zip(texts, lengths, strict=True)]

    def from_first(self, compute: Callable[[], T], doing: str) -> T:
        """What `compute` returns on rank 0, or the InputError that it raises there, on every rank. JSON holds it."""
        if self.size == 1:
            return compute()
        answer: list[Any] = [None, None]
        refused: InputError | None = None
        if self.is_first:
            try:
                answer[0] = compute()
            except InputError as error:
                refused, answer[1] = error, str(error)
        value, said = self.gather(answer, doing)[0]
        if refused is not None:
            raise refused
        if said is not None:
            raise FirstRankError(said)
        found: T = value
        return found

    def meet(self, doing: str) -> None:
        """Return when every rank has come here."""
        self.agree(0, doing=doing)

    @contextmanager
    def waiting(self, doing: str, *, computes: bool = False) -> Iterator[None]:
        """Turn the failure of an exchange into a LostRankError, but not the other errors of a block that `computes`."""
        began = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
            if computes and not isinstance(error, dist.DistError) and "gloo" not in reason:
                raise
            seconds = time.monotonic() - began
            raise LostRankError(
                f"Rank {self.rank} of {self.size} waited {seconds:.0f} s for {self._missing()} while {doing} "
                f"({reason}). It was killed or is stuck: see its own messages. The last checkpoint is intact; continue "
                f"the run with --resume, and set {TIMEOUT_VARIABLE} to more than {_timeout():.0f} seconds if it was "
                "only slow."
            ) from error

    def _missing(self) -> str:
        """The ranks that do not come to a barrier of those that wait. Rank 0 learns which, and the others ask it."""
        try:
            dist.monitored_barrier(_joined.spare, timedelta(seconds=_REPORT_SECONDS), wait_all_ranks=True)
        except RuntimeError as error:
            named = re.search(r"Ranks ([\d, ]+) failed", str(error))
            silent = re.findall(r"\d+", named[1]) if named else []
            return " and ".join(f"rank {number}" for number in silent) or "a rank that rank 0 names"
        return "an answer of the others, which wait as well"


ALONE = Ranks()


@dataclass(slots=True)
class _Joined:
    ranks: Ranks | None = None
    cpu: Any = None
    """The group for tensors on the CPU: one of gloo, whatever the program's own group is for."""
    spare: Any = None
    """A group of gloo that is used only after another one has failed."""


_joined = _Joined()


def group_of(device: torch.device) -> Any:
    """The process group that exchanges tensors of this device; None for the default one."""
    return _joined.cpu if device.type == "cpu" else None


def join() -> Ranks:
    """The processes that this one was started with, connected; `ALONE` if it was started alone.

    torchrun, `accelerate launch` and `--nproc` say in the environment who belongs together, and so does SLURM's srun. A
    process group that the program has made itself is used as it is, with groups of gloo beside it.
    """
    if _joined.ranks is None:
        found = found_in(os.environ)
        if dist.is_available() and dist.is_initialized():
            found = Ranks(dist.get_rank(), dist.get_world_size(), found.local_rank, found.local_size, found.restarts)
        if found.size > 1:
            if torch.cuda.is_available():
                torch.cuda.set_device(found.local_rank % torch.cuda.device_count())
            _connect(found, os.environ)
            found.meet("connecting")  # one that ends at once must not take the connection from the others
        _joined.ranks = found
    return _joined.ranks


def leave() -> None:
    """Close the connections."""
    if dist.is_initialized():
        dist.destroy_process_group()
    _joined.ranks = _joined.cpu = _joined.spare = None


def check_devices(device: torch.device, ranks: Ranks) -> None:
    """Refuse a GPU that two processes would share. Each may see all GPUs of its machine, or its own alone."""
    if ranks.size == 1 or device.type == "cpu":
        return
    gpu: Any = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    taken = ranks.gather([socket.gethostname(), str(gpu and gpu.uuid)], "choosing devices")
    sharing = [rank for rank, place in enumerate(taken) if place == taken[ranks.rank]]
    if len(sharing) > 1:
        raise InputError(
            f"The processes {' and '.join(map(str, sharing))} would share one GPU, and each needs its own. Start "
            "as many processes as there are GPUs, with --device cuda, or compute with --device cpu."
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


def own_cores(environment: Mapping[str, str] = os.environ) -> int:
    """How many cores this process has: its share of those of the machine, unless SLURM has divided them already."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return found if "SLURM_CPUS_PER_TASK" in environment else max(1, found // found_in(environment).local_size)


def meeting_point(environment: Mapping[str, str]) -> str:
    """The address at which the processes find each other: a file on one machine, a port of a host on several.

    >>> meeting_point({"MEANTEACHER_STORE": "/tmp/mine/store", "MASTER_ADDR": "10.0.0.1"})
    'file:///tmp/mine/store-0'
    >>> meeting_point({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"})
    'tcp://10.0.0.1:29500'
    >>> meeting_point({"SLURM_STEP_NODELIST": "gpu[03-04,07],cpu1", "SLURM_JOB_ID": "41234"})
    'tcp://gpu03:21234'
    """
    if store := environment.get(STORE_VARIABLE):
        return f"file://{store}-{found_in(environment).restarts}"  # a new one for each try
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
    return f"tcp://{host}:{port}"


def _connect(ranks: Ranks, environment: Mapping[str, str]) -> None:
    where, seconds = "the program's process group", timedelta(seconds=_timeout())
    # The connections of one machine do not leave it.
    loopback = [name for _, name in socket.if_nameindex() if name in {"lo", "lo0"}]
    if environment.get("LOCAL_WORLD_SIZE") == str(ranks.size) and loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback[0])
        os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback[0])
    try:
        if not dist.is_initialized():
            where = meeting_point(environment)
            untyped: Any = dist
            store, _, _ = next(untyped.rendezvous(where, ranks.rank, ranks.size, timeout=seconds))
            # torchrun keeps one store for all tries, and keys of an earlier try make a later one fail.
            store = untyped.PrefixStore(f"meanteacher/{ranks.restarts}", store)
            backend = "nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
            dist.init_process_group(backend, store=store, rank=ranks.rank, world_size=ranks.size, timeout=seconds)
            atexit.register(leave)
        _joined.cpu, _joined.spare = (dist.new_group(backend="gloo", timeout=seconds) for _ in range(2))
    except (RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise LostRankError(
            f"Rank {ranks.rank} of {ranks.size} could not connect to the others at {where} within {_timeout():.0f} s "
            f"({reason}). Check that all {ranks.size} processes were started and can reach that address."
        ) from error


def _timeout() -> float:
    return float(os.environ.get(TIMEOUT_VARIABLE) or _TIMEOUT)
