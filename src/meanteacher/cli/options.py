"""Options and arguments that several commands share, each declared once."""

from pathlib import Path
from typing import Annotated, Literal

import typer

PhotosArgument = Annotated[
    Path,
    typer.Argument(
        help="A folder with one folder per class and one named `unlabelled`; or any folder, with --labels; or an "
        ".npz file of arrays."
    ),
]
ModelArgument = Annotated[Path, typer.Argument(help="The folder of a fit, or the folder `model` in it.")]
LabelsOption = Annotated[
    Path | None, typer.Option("--labels", help="CSV file of path,label; an empty label means unlabelled.")
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Continue the interrupted work in the folder.")]
StartOrResumeOption = Annotated[
    bool,
    typer.Option(
        "--start-or-resume",
        help="Start, or continue the work that was started in the folder: the same command for every try of a "
        "scheduler.",
    ),
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace existing results.")]
DeviceOption = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="NAME",
        help="Where to compute: auto, cpu, cuda, cuda:N or mps. auto: $MEANTEACHER_DEVICE, or a GPU if there is one; "
        "to resume, the same kind of device as before.",
        autocompletion=lambda: ["auto", "cpu", "cuda", "mps"],
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        envvar="MEANTEACHER_DATA",
        help="Folder of the data files; missing files are downloaded.",
        show_default="~/.cache/meanteacher",
    ),
]
NprocOption = Annotated[
    int,
    typer.Option(
        min=1,
        metavar="N",
        help="Processes that train together on this machine: one for each GPU, or for some of the cores each. They "
        "share the batches of one process, and give its result without batch norm and dropout.",
    ),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Change a field of the recipe or of its training, at any depth: data.n_labelled=100, steps=300, "
        "method.weight.value=50. Repeatable. Several values for `run`, method.weight.value=1,3,10, are a sweep.",
    ),
]
PrecisionOption = Annotated[
    Literal["float32", "bfloat16", "float16"] | None,
    typer.Option(
        help="Number format of the networks; float16 is for GPUs without bfloat16.",
        show_default="bfloat16 on CUDA GPUs that support it, else float32",
    ),
]
MicroBatchOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Rows that a process computes at a time. Their activations are computed again in the backward pass: a "
        "batch of any size fits into memory, and gradients are those of the whole batch.",
        show_default="all",
    ),
]
LogOption = Annotated[
    Literal["tensorboard", "wandb"] | None,
    typer.Option(
        "--log", help="Also send the numbers to this logger, an extra; tensorboard writes to OUT/tensorboard."
    ),
]
