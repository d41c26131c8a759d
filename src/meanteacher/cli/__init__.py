"""The command line. Importing it does not import torch: help is instant."""

import sys

from meanteacher.core import MissingExtraError

__all__ = ["main"]


def main() -> None:
    """The program `meanteacher`."""
    try:
        from meanteacher.cli.app import main as run
    except ModuleNotFoundError as error:
        sys.exit(str(MissingExtraError("The command line", str(error.name).partition(".")[0], extra="cli")))
    run()
