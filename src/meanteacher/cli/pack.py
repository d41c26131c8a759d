"""`meanteacher pack`: photos to tar shards."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from meanteacher.cli.console import graceful_stop, progress_bar, say
from meanteacher.cli.options import LabelsOption, OverwriteOption, PhotosArgument, ResumeOption
from meanteacher.formats import count

_NAMED = 5


def pack(
    photos: PhotosArgument,
    shards: Annotated[Path, typer.Option(help="Folder for the shards, whose names begin with its name.")],
    labels: LabelsOption = None,
    images_per_shard: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Images in a shard, instead of a size.", show_default=False)
    ] = None,
    megabytes: Annotated[float, typer.Option(metavar="N", help="Size of a shard.")] = 500,
    max_broken: Annotated[
        int, typer.Option(min=0, metavar="N", help="Photos that may be left out as unreadable.")
    ] = 100,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
) -> None:
    """Write photos to tar shards in WebDataset's format, with an index beside each.

    JPEG and PNG files are copied unchanged, other images become PNG. A recipe reads the shards with the source
    `Shards`, in constant memory: see docs/scale.md. Exit codes: 0 complete, 2 invalid input, 75 interrupted.
    """
    from meanteacher.photos.folder import packing

    console = Console()
    with progress_bar(console) as show, graceful_stop(console) as should_stop:
        packed = packing.pack(
            photos,
            shards,
            labels=labels,
            images_per_shard=images_per_shard,
            megabytes=megabytes,
            max_broken=max_broken,
            overwrite=overwrite,
            resume=resume,
            progress=partial(show, "Packing"),
            should_stop=should_stop,
        )
    say(
        console,
        f"{count(packed.n_images)} in {count(len(packed.shards), 'shard')}, {packed.n_bytes / 1e6:,.1f} MB: "
        f"{packed.n_labelled:,} labelled in {count(len(packed.class_names), 'class', 'classes')}, "
        f"{packed.n_images - packed.n_labelled:,} unlabelled.",
    )
    if packed.not_packed:
        named = "; ".join(f"{name!r} ({reason})" for name, reason in packed.not_packed[:_NAMED])
        say(console, f"{count(len(packed.not_packed))} cannot be read and were left out: {named}.")
    first, last = packed.shards[0], packed.shards[-1]
    say(console, f"Written: {first}" + (f" to {last.name}" if last != first else ""))
