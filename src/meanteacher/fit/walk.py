"""The image files below a folder, links and all, each found once."""

import os
from pathlib import Path

from meanteacher.core import InputError

EXTENSIONS = frozenset({"jpg", "jpeg", "png", "bmp", "gif", "webp", "tif", "tiff", "ppm", "pgm"})


def images_below(root: Path) -> tuple[list[str], int]:
    """The sorted names of the image files at any depth, and the number of other files; hidden ones are passed over.

    Raises:
        InputError: this is no folder, or one in it cannot be read.
    """
    names: list[str] = []
    n_ignored = 0
    seen = set()
    folders: list[str] = [""]
    links: list[str] = []
    while folders or links:
        # Links come last, so that what lies in the folder is found where it lies; each folder once, or a loop of
        # links had no end.
        links.sort(reverse=True)
        prefix = folders.pop() if folders else links.pop()
        try:
            status = (root / prefix).stat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(root / prefix) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if _is_folder(entry):
                        (links if entry.is_symlink() else folders).append(f"{prefix}{entry.name}/")
                    elif _is_image(entry):
                        names.append(prefix + entry.name)
                    else:
                        n_ignored += 1
        except FileNotFoundError as error:
            raise InputError(
                f"There is no folder {root / prefix}: give a folder of images, or an .npz file."
            ) from error
        except NotADirectoryError as error:
            raise InputError(f"{root / prefix} is a file: give a folder of images, or an .npz file.") from error
        except OSError as error:
            raise InputError(
                f"Cannot read the folder {root / prefix} ({error.strerror}): allow it, or move it."
            ) from error
    return sorted(names), n_ignored


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_image(entry: "os.DirEntry[str]") -> bool:
    _, dot, extension = entry.name.rpartition(".")
    if not dot or extension.lower() not in EXTENSIONS:
        return False
    # A link that leads nowhere is an image that cannot be read, and is reported as one; a pipe is none.
    try:
        return entry.is_file() or (entry.is_symlink() and not Path(entry.path).exists())
    except OSError:
        return True
