"""How to use the model that a fit leaves behind: the same words on the page and in the model card.

The page stays with its folder and names real paths, to be copied. The card travels with the model: the paths of one
machine would be wrong elsewhere, and tell whose it was.
"""

import shlex

from meanteacher.report.fit_answer import Fit

_MODEL, _PHOTOS = "DIR", "PHOTOS"
"""Stand for the paths where they are not known or not to be told."""

_PYTHON = """\
import torch
from pathlib import Path
from meanteacher.fit.bundle import load_bundle
from meanteacher.fit.decode import decode

bundle = load_bundle(Path(FOLDER))
image = torch.tensor(decode(Path("photo.jpg"), bundle.size)).permute(2, 0, 1)
probabilities = bundle.probabilities(image[None])[0]
print(bundle.class_names[probabilities.argmax()], f"{100 * probabilities.max():.1f} %")
"""


def commands(fit: Fit) -> list[tuple[str, str]]:
    """What each is for, and the command, with the real paths as far as fit.json has them."""
    folder, photos = _folder(fit), _photos(fit)
    model, images = _quoted(folder) or _MODEL, _quoted(photos) or _PHOTOS
    labels = _quoted(f"{folder}/labels.csv") if folder else f"{_MODEL}/labels.csv"
    use = [
        ("Classify other photographs", f"meanteacher predict {model} OTHER"),
        ("Judge the model with labels it has not seen", f"meanteacher evaluate {model} OTHER"),
    ]
    if (fit.get("data") or {}).get("source") == "npz":
        # Its labels are in the file itself, where the labelling page cannot add any.
        use += [("Learn again from more labels", f"meanteacher fit {images} --from {model} --out NEW")]
    else:
        use += [
            ("Label the images that teach it most", f"meanteacher label {images} --run {model}"),
            (
                "Learn again from more labels",
                f"meanteacher fit {images} --labels {labels} --from {model} --out NEW",
            ),
        ]
    return [*use, ("Take it elsewhere, without Python", f"meanteacher export {model} --onnx")]


def placeholders(fit: Fit, where: str) -> str:
    """What the words in capitals stand for."""
    unknown = [] if _folder(fit) else [f"{_MODEL} is the folder of this {where}"]
    unknown += [] if _photos(fit) else [f"{_PHOTOS} the photographs it was made from"]
    return ", ".join([*unknown, "OTHER is a folder of other photographs", "NEW a folder that is not there yet"]) + "."


def python_code(fit: Fit) -> str:
    """The same in Python."""
    return _PYTHON.replace("FOLDER", repr(_folder(fit) or _MODEL))


def _folder(fit: Fit) -> str:
    return str(fit.get("folder") or "")


def _photos(fit: Fit) -> str:
    return str((fit.get("data") or {}).get("photos") or "")


def _quoted(path: str) -> str:
    r"""As a shell takes it for one word. Bytes that are no text are written as bash and zsh read them.

    >>> print(_quoted("/home/ann/my photos"), _quoted("/photos"), _quoted("caf\udce9"))
    '/home/ann/my photos' /photos $'caf\xe9'
    """
    if not path or path.isprintable():
        return path and shlex.quote(path)
    escaped = [
        chr(byte) if chr(byte).isprintable() and byte < 128 and chr(byte) not in "'\\" else f"\\x{byte:02x}"
        for byte in path.encode("utf-8", "surrogateescape")
    ]
    return f"$'{''.join(escaped)}'"
