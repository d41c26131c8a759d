"""Several processes that train one network: who they are, what they exchange, and how they share the rows of a batch.

Rank r of W computes rows r, r + W, r + 2 W … of a batch. Then every rank knows the outputs of all rows, which are
small, and computes the costs of the whole batch. The gradient of such a cost reaches the rank's own rows only. It is
multiplied by W there and averaged over the ranks afterwards, so that parameters before and after the exchange both get
the gradient of one process.

The processes exchange tensors and JSON, never pickled objects, which would run the code of whoever answers in a rank's
place.
"""

import atexit
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from meanteacher.core import FirstRankError, InputError, LostRankError

TIMEOUT_VARIABLE = "MEANTEACHER_TIMEOUT"
"""Environment variable with the seconds that a process waits for another: five minutes unless it is set."""
STORE_VARIABLE = "MEANTEACHER_STORE"
"""Environment variable with the file at which the processes of --nproc meet, in a folder that is theirs alone."""
_REPORT_SECONDS = 5.0
"""Time for the other ranks to report that they wait, too."""

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
        return slice(self.rank, None, self.size) if self.size > 1 else slice(None)

    def gather_rows(self, x: Tensor, n: int, doing: str) -> Tensor:
        """[k · n, ...] from [k · own, ...], the rows that each rank has of k blocks of n rows. Without gradient."""
        if self.size == 1:
            return x
        own = len(range(n)[self.rows])
        if not own or len(x) % own:
            raise InputError(
                f"Rank {self.rank} of {self.size} got {len(x)} output rows, but has {own} of the {n} rows of the "
                "batch. Pass all rows of a view through the network, and select some of the outputs."
            )
        blocks = x.detach().reshape(-1, own, *x.shape[1:])
        padded = blocks.new_zeros(len(blocks), -(-n // self.size), *x.shape[1:])
        padded[:, :own] = blocks
        # Row i is row i // W of rank i % W.
        return self._gathered(padded, doing).movedim(0, 2).flatten(1, 2)[:, :n].flatten(0, 1)

    def _gathered(self, x: Tensor, doing: str) -> Tensor:
        """[W, ...]: the tensor of every rank, all of one shape."""
        gathered = x.new_empty(self.size, *x.shape)
        with self.waiting(doing):
            dist.all_gather(list(gathered.unbind()), x, group=group_of(x.device))
        return gathered

    def summed(self, x: Tensor, doing: str) -> Tensor:
        """The sum of a tensor over the ranks, as a new tensor without gradient."""
        total = x.detach().clone(memory_format=torch.contiguous_format)
        if self.size > 1:
            with self.waiting(doing):
                dist.all_reduce(total, group=group_of(x.device))
        return total

    @torch.no_grad()
    def average_(self, tensors: Sequence[Tensor], doing: str) -> None:
        """Replace the tensors by their means over the ranks, added in float64: equal ones stay as they are."""
        if self.size > 1 and tensors:
            flat = self.summed(torch.cat([tensor.flatten().double() for tensor in tensors]), doing) / self.size
            for tensor, mean in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(mean.view_as(tensor))

    def broadcast_(self, tensors: Sequence[Tensor], doing: str) -> None:
        """Replace the tensors by those of rank 0."""
        for tensor in tensors if self.size > 1 else ():
            with self.waiting(doing):
                dist.broadcast(tensor.detach(), 0, group=group_of(tensor.device))

    def agree(self, *values: int, doing: str) -> list[int]:
        """For each value the largest of all ranks: a flag of one rank is a flag of all."""
        if self.size == 1:
            return list(values)
        return [int(value) for value in self._gathered(torch.tensor(values, dtype=torch.int64), doing).amax(0)]

    def gather(self, value: T, doing: str) -> list[T]:
        """The value of every rank, by rank: anything that JSON holds."""
        if self.size == 1:
            return [value]
        own = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = self._gathered(torch.tensor(len(own)), doing).tolist()
        texts = self._gathered(F.pad(own, (0, max(lengths) - len(own))), doing)
        return [json.loads(bytes(text[:n].tolist())) for text, n in zip(texts, lengths, strict=True)]

    def from_first(self, compute: Callable[[], T], doing: str) -> T:
        """What `compute` returns on rank 0, or the InputError that it raises there, on every rank. JSON holds it."""
        if self.size == 1:
            return compute()
        value: Any = None
        refused: InputError | None = None
        if self.is_first:
            try:
                value = compute()
            except InputError as error:
                refused = error
        value, said = self.gather([value, refused and str(refused)], doing)[0]
        if said is not None:
            raise refused or FirstRankError(said)
        found: T = value
        return found

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
                f"Rank {self.rank} of {self.size} waited {seconds:.0f} s for {_missing()} while {doing} ({reason}). It "
                "was killed or is stuck: see its own messages. The last checkpoint is intact; continue the run with "
                f"--resume, and set {TIMEOUT_VARIABLE} to more than {_timeout():.0f} seconds if it was only slow."
            ) from error


ALONE = Ranks()
_joined: dict[str, Any] = {}
"""The ranks; "cpu", a group of gloo for tensors on the CPU, whatever the program's own group is for; and "spare", a
group that is used only after another one has failed."""


def _missing() -> str:
    """The ranks that do not come to a barrier of those that wait. Rank 0 learns which, and the others ask it."""
    try:
        dist.monitored_barrier(_joined["spare"], timedelta(seconds=_REPORT_SECONDS), wait_all_ranks=True)
    except RuntimeError as error:
        named = re.search(r"Ranks ([\d, ]+) failed", str(error))
        silent = re.findall(r"\d+", named[1]) if named else []
        return " and ".join(f"rank {number}" for number in silent) or "a rank that rank 0 names"
    return "an answer of the others, which wait as well"


def group_of(device: torch.device) -> Any:
    """The process group that exchanges tensors of this device; None for the default one."""
    return _joined.get("cpu") if device.type == "cpu" else None


def join() -> Ranks:
    """The processes that this one was started with, connected; `ALONE` if it was started alone.

    torchrun, `accelerate launch` and `--nproc` say in the environment who belongs together, and so does SLURM's srun. A
    process group that the program has made itself is used as it is, with groups of gloo beside it.
    """
    if "ranks" not in _joined:
        found = found_in(os.environ)
        if dist.is_available() and dist.is_initialized():
            found = replace(found, rank=dist.get_rank(), size=dist.get_world_size())
        if found.size > 1:
            if torch.cuda.is_available():
                torch.cuda.set_device(found.local_rank % torch.cuda.device_count())
            _connect(found)
            found.agree(0, doing="connecting")  # one that ends at once must not take the connection from the others
        _joined["ranks"] = found
    ranks: Ranks = _joined["ranks"]
    return ranks


def _connect(ranks: Ranks) -> None:
    seconds, store = timedelta(seconds=_timeout()), os.environ.get(STORE_VARIABLE)
    # The connections of one machine do not leave it.
    loopback = [name for _, name in socket.if_nameindex() if name in {"lo", "lo0"}]
    if os.environ.get("LOCAL_WORLD_SIZE") == str(ranks.size) and loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback[0])
        os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback[0])
    os.environ.update(as_torchrun(os.environ))
    where = f"file://{store}-{ranks.restarts}" if store else "env://"  # a new file for each try
    try:
        if not dist.is_initialized():
            untyped: Any = dist
            opened, _, _ = next(untyped.rendezvous(where, ranks.rank, ranks.size, timeout=seconds))
            # torchrun keeps one store for all tries, and keys of an earlier try make a later one fail.
            prefixed = untyped.PrefixStore(f"meanteacher/{ranks.restarts}", opened)
            backend = "nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
            dist.init_process_group(backend, store=prefixed, rank=ranks.rank, world_size=ranks.size, timeout=seconds)
            atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())
        _joined["cpu"], _joined["spare"] = (dist.new_group(backend="gloo", timeout=seconds) for _ in range(2))
    except ValueError as error:
        raise InputError(
            f"The environment says that this is one of several processes, but not where they meet ({error}). Start "
            "them with --nproc, torchrun or srun, or set MASTER_ADDR and MASTER_PORT."
        ) from error
    except (RuntimeError, OSError) as error:
        at = where if store else ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
        raise LostRankError(
            f"Rank {ranks.rank} of {ranks.size} could not connect to the others at {at} within {_timeout():.0f} s "
            f"({str(error).strip().splitlines()[0]}). Check that all {ranks.size} processes were started and can "
            "reach that address."
        ) from error


def _timeout() -> float:
    return float(os.environ.get(TIMEOUT_VARIABLE) or 300)


def check_devices(device: torch.device, ranks: Ranks) -> None:
    """Refuse a GPU that two processes would share. Each may see all GPUs of its machine, or its own alone."""
    if ranks.size == 1 or device.type == "cpu":
        return
    gpu: Any = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    taken = ranks.gather([socket.gethostname(), str(gpu and gpu.uuid)], "choosing devices")
    sharing = [str(rank) for rank, place in enumerate(taken) if place == taken[ranks.rank]]
    if len(sharing) > 1:
        raise InputError(
            f"The processes {' and '.join(sharing)} would share one GPU, and each needs its own. Start as many "
            "processes as there are GPUs, with --device cuda, or compute with --device cpu."
        )


def as_torchrun(environment: Mapping[str, str]) -> Mapping[str, str]:
    """The variables that torchrun sets for its processes, for one that SLURM's srun has started.

    >>> slurm = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}
    >>> found_in(slurm)
    Ranks(rank=3, size=8, local_rank=0, local_size=4, restarts=0)
    >>> found = as_torchrun({**slurm, "SLURM_STEP_NODELIST": "gpu[03-04,07],cpu1", "SLURM_JOB_ID": "41234"})
    >>> found["MASTER_ADDR"], found["MASTER_PORT"]
    ('gpu03', '21234')
    """
    # srun sets the number of a step's tasks; a batch script, which is one process, only has that of the job.
    size = environment.get("SLURM_STEP_NUM_TASKS")
    if size is None or ("RANK" in environment and "WORLD_SIZE" in environment):
        return environment
    each = re.match(r"\d+", environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node = re.match(r"([^\[,]*)(?:\[(\d+))?", environment.get("SLURM_STEP_NODELIST", ""))
    return {
        "MASTER_ADDR": "".join(filter(None, node.groups())) if node else "",  # the first host of the list
        "MASTER_PORT": str(20_000 + int(environment.get("SLURM_JOB_ID") or 0) % 10_000),
        **environment,
        "RANK": environment.get("SLURM_PROCID", "0"),
        "WORLD_SIZE": size,
        "LOCAL_RANK": environment.get("SLURM_LOCALID", "0"),
        "LOCAL_WORLD_SIZE": each[0] if each else size,
        "TORCHELASTIC_RESTART_COUNT": environment.get("SLURM_RESTART_COUNT", "0"),
    }


def found_in(environment: Mapping[str, str]) -> Ranks:
    """Who this process is, by what its launcher says.

    >>> found_in({}) == ALONE
    True
    """
    given = as_torchrun(environment)
    if "RANK" not in given or "WORLD_SIZE" not in given:
        return ALONE
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
    defaults = (0, 1, 0, given["WORLD_SIZE"] or 1, 0)
    return Ranks(*(int(given.get(name) or default) for name, default in zip(names, defaults, strict=True)))


def own_cores(environment: Mapping[str, str] = os.environ) -> int:
    """How many cores this process has: its share of those of the machine, unless SLURM has divided them already."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return found if "SLURM_CPUS_PER_TASK" in environment else max(1, found // found_in(environment).local_size)


class _Step(NamedTuple):
    ranks: Ranks
    n_rows: int
    generator: torch.Generator


_step: ContextVar[_Step | None] = ContextVar("step", default=None)


@contextmanager
def step_of(ranks: Ranks, n_rows: int, generator: torch.Generator) -> Iterator[None]:
    """A step on a batch of `n_rows` rows, of which this process has its own. All ranks have the same generator."""
    before = _step.set(_Step(ranks, n_rows, generator) if ranks.size > 1 else None)
    try:
        yield
    finally:
        _step.reset(before)


def all_rows(x: Tensor) -> Tensor:
    """What every rank computed for its rows [n, ...], as [B, ...] of the whole batch; x itself with one process.

    The gradient reaches this rank's rows.

    >>> all_rows(torch.tensor([3.0, 4.0]))
    tensor([3., 4.])
    """
    step = _step.get()
    gathered: Tensor = x if step is None else _AllRows.apply(x, step)  # type: ignore[no-untyped-call]
    return gathered


def own_rows(x: Tensor) -> Tensor:
    """This rank's rows of a tensor [B, ...] of the whole batch; x itself with one process.

    >>> own_rows(torch.tensor([3.0, 4.0]))
    tensor([3., 4.])
    """
    step = _step.get()
    return x if step is None else x[step.ranks.rows]


def shared_generator() -> torch.Generator | None:
    """What a method draws from if all ranks have to draw the same; None, for the global generator, with one process.

    >>> torch.randperm(3, generator=shared_generator()).shape
    torch.Size([3])
    """
    step = _step.get()
    return None if step is None else step.generator


def normal_rows(like: Tensor) -> Tensor:
    """Standard normal noise for this rank's rows [n, ...], as one process would have drawn it for them.

    >>> normal_rows(torch.zeros(2, 5)).shape
    torch.Size([2, 5])
    """
    step = _step.get()
    if step is None:
        return torch.randn_like(like)
    last = like.ndim == 4 and like.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if last else torch.contiguous_format
    whole = torch.empty((step.n_rows, *like.shape[1:]), dtype=like.dtype, device=like.device, memory_format=layout)
    return whole.normal_(generator=step.generator)[step.ranks.rows].contiguous(memory_format=layout)


def over_ranks(statistics: Tensor, ranks: Ranks) -> Tensor:
    """The sum of batch statistics over the ranks, with gradient."""
    total: Tensor = _Sum.apply(statistics, ranks)  # type: ignore[no-untyped-call]
    return total


class _AllRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, step: _Step) -> Tensor:
        ctx.step, ctx.shape = step, x.shape
        return step.ranks.gather_rows(x, step.n_rows, "gathering the outputs of a step")

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        blocks = gradient.reshape(-1, ctx.step.n_rows, *gradient.shape[1:])
        return blocks[:, ctx.step.ranks.rows].reshape(ctx.shape) * ctx.step.ranks.size, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks.summed(x, "adding up batch statistics")

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.ranks.summed(gradient, "adding up batch statistics"), None
