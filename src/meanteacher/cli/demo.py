"""`meanteacher demo`."""

from pathlib import Path


def run_demo(out: Path, draws: int) -> None:
    raise NotImplementedError
