"""Options that several commands have."""

from typing import Annotated

import typer

DeviceOption = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="auto|cpu|cuda|cuda:N|mps",
        help="Where to compute; auto: on a GPU if there is one. Resuming takes the kind it was started on.",
    ),
]


def said_device(device: str) -> list[str]:
    """The words of a command that resumes: auto takes the same kind of device by itself."""
    return [] if device == "auto" else ["--device", device]
