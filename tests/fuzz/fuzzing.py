"""`make fuzz`: mutated files for every reader. Each is read, or refused in one sentence, within seconds and memory.

A case is a function of (seed, target, number): with --target and --first it is seen again.
"""

import argparse
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS = 10
"""Of processor time, for one case."""
MEMORY = 1 << 30
"""Bytes by which a target may grow over all of its cases."""
LONGEST = 20_000
"""Characters of a message, which a command shortens. A longer one repeats the file."""
INTERESTING = (0, 1, 2, 7, 8, 127, 128, 255, 256, 1 << 15, 1 << 16, 1 << 24, 1 << 31, (1 << 32) - 1)
JUNK: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**30,
    1e308,
    "",
    "\ud800",
    "x" * 1000,
    [],
    {},
    [[1]],
    {"a": {}},
    0.5,
    "../..",
)


def mutated(valid: Sequence[bytes], draws: random.Random) -> bytes:
    """One of the contents, damaged in one to four ways."""
    data = draws.choice(valid)
    for _ in range(draws.randint(1, 4)):
        data = draws.choice(_WAYS)(data, draws, valid)
    return data


def _flip(data: bytes, draws: random.Random, _: Sequence[bytes]) -> bytes:
    changed = bytearray(data)
    for _ in range(draws.randint(1, 4) if changed else 0):
        # Early bytes decide more.
        changed[int(len(changed) * draws.random() ** 3)] ^= 1 << draws.randrange(8)
    return bytes(changed)


def _number(data: bytes, draws: random.Random, _: Sequence[bytes]) -> bytes:
    size = draws.choice((1, 2, 4, 8))
    at = int(max(0, len(data) - size) * draws.random() ** 2)
    number = draws.choice(INTERESTING) % (1 << 8 * size)
    return data[:at] + number.to_bytes(size, draws.choice(("little", "big"))) + data[at + size :]


def _cut(data: bytes, draws: random.Random, _: Sequence[bytes]) -> bytes:
    return data[: draws.randint(0, len(data))]


def _repeat(data: bytes, draws: random.Random, _: Sequence[bytes]) -> bytes:
    start = draws.randint(0, len(data))
    end = min(len(data), start + draws.randint(0, 200))
    return data[:end] + draws.choice((0, 1, 2, 100)) * data[start:end] + data[end:]


def _splice(data: bytes, draws: random.Random, valid: Sequence[bytes]) -> bytes:
    other = draws.choice(valid)
    return data[: draws.randint(0, len(data))] + other[draws.randint(0, len(other)) :]


def _nest(data: bytes, draws: random.Random, _: Sequence[bytes]) -> bytes:
    at = draws.randint(0, len(data))
    return data[:at] + draws.choice((b"[", b"(", b'{"a":', b"-", b"9", b"\xff", b"\0", b'"', b"\n")) * 3000 + data[at:]


def _value(data: bytes, draws: random.Random, valid: Sequence[bytes]) -> bytes:
    """JSON stays JSON: another value, a missing one, or one more."""
    lines = data.split(b"\n") if data.count(b"\n{") or data.count(b"\n[") else [data]
    at = draws.randrange(len(lines))
    try:
        content = json.loads(lines[at])
    except (ValueError, RecursionError):
        return _flip(data, draws, valid)
    lines[at] = json.dumps(_with_junk(content, draws)).encode()
    return b"\n".join(lines)


def _with_junk(value: Any, draws: random.Random) -> Any:
    if not isinstance(value, dict | list) or not value or draws.random() < 0.15:
        return draws.choice(JUNK)
    keys = list(value) if isinstance(value, dict) else range(len(value))
    key = draws.choice(keys)
    if draws.random() < 0.1:
        del value[key]
    else:
        value[key] = _with_junk(value[key], draws)
    return value


_WAYS = (_flip, _flip, _number, _number, _cut, _repeat, _splice, _nest, _value, _value, _value)


@contextmanager
def _limited_time() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {SECONDS} s of processor time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def run_cases(name: str, seed: int, cases: range, folder: Path) -> tuple[int, list[str]]:
    """How many of the cases were refused, and what is wrong with the others that were not read."""
    from targets import EXPECTED, TARGETS

    target, refused, defects = TARGETS[name], 0, []
    valid = target.valid()
    for content in valid:
        _read(target, content, folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for case in cases:
        (folder / "case").write_text(str(case))
        data = mutated(valid, random.Random(f"{seed}/{name}/{case}"))
        try:
            with _limited_time(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _read(target, data, folder)
        except EXPECTED as error:
            refused += 1
            if len(str(error)) > LONGEST:
                defects.append(f"case {case}: a message of {len(str(error)):,} characters")
        except Exception as error:
            defects.append(f"case {case}: {type(error).__name__}: {str(error)[:200]}")
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    if grown > MEMORY:
        defects.append(f"memory grew by {grown:,} bytes")
    beside = [path.name for path in folder.parent.iterdir() if path != folder]
    if beside:
        defects.append(f"{beside} was written outside the folder")
    return refused, defects


def _read(target: Any, data: bytes, folder: Path) -> None:
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    try:
        target.read(data, scratch)
    finally:
        for path in scratch.glob(".*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def main() -> int:
    """Each target in a process of its own, whose death is a defect."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--target", default="")
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    from targets import TARGETS

    failed, began = 0, time.perf_counter()
    print(f"{'target':18}{'cases':>8}{'refused':>9}{'seconds':>9}  seed {given.seed}")  # noqa: T201
    for name, target in TARGETS.items():
        if given.target and name != given.target:
            continue
        n = given.cases if given.target else max(1, round(given.cases * target.share))
        target.valid()  # made once, before the process is copied
        failed += _in_child(name, given.seed, range(given.first, given.first + n))
    print(f"{failed} defects, {time.perf_counter() - began:.0f} s")  # noqa: T201
    return int(failed > 0)


def _in_child(name: str, seed: int, cases: range) -> int:
    """Run the cases in a copy of this process, which has imported everything."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as said:
        inside = Path(folder) / "inside"
        inside.mkdir()
        receive, send = multiprocessing.Pipe(duplex=False)
        if not (child := os.fork()):
            os.dup2(said.fileno(), sys.stderr.fileno())
            send.send(run_cases(name, seed, cases, inside))
            os._exit(0)
        send.close()
        try:
            refused, defects = receive.recv()
        except EOFError:
            case = (inside / "case").read_text() if (inside / "case").exists() else "none"
            refused, defects = 0, [f"case {case}: the process has died"]
        os.waitpid(child, 0)
        said.seek(0)
        if words := said.read():
            defects.append(f"written to standard error: {words[:300]!r}")
    print(f"{name:18}{len(cases):8,}{refused:9,}{time.perf_counter() - began:9.1f}", flush=True)  # noqa: T201
    for defect in defects:
        print(f"  {defect}", flush=True)  # noqa: T201
    return len(defects)


if __name__ == "__main__":
    sys.exit(main())
