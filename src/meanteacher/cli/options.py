"""Options that several commands have, and what the shell proposes for them."""

from importlib.resources import files
from typing import Annotated

import typer


def recipe_names() -> list[str]:
    """Every recipe's name, for the shell: from a list, because the recipes themselves import torch."""
    return files("meanteacher").joinpath("recipes", "names.txt").read_text(encoding="utf-8").split()


DeviceOption = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="auto|cpu|cuda|cuda:N|mps",
        help="Where to compute; auto: a GPU if there is one (or what MEANTEACHER_DEVICE says), to resume the kind it "
        "was started on.",
        autocompletion=lambda: ["auto", "cpu", "cuda", "mps"],
    ),
]


def said_device(device: str) -> list[str]:
    """The words of a command that resumes: auto takes the same kind of device by itself."""
    return [] if device == "auto" else ["--device", device]
