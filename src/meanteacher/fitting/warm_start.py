"""An earlier fit to start from: its model, and the images that evaluated it."""

from dataclasses import dataclass
from pathlib import Path

from meanteacher.classifier.bundle import Seen, load_bundle
from meanteacher.classifier.manifest import read_manifest
from meanteacher.core import InputError
from meanteacher.fitting.plan import Continued
from meanteacher.fitting.results import read_fit
from meanteacher.models import FastNetSpec


@dataclass(frozen=True, slots=True)
class Previous:
    """What of an earlier fit matters to the next."""

    folder: Path
    network: FastNetSpec
    size: int
    sha256: str
    held_out: frozenset[str]
    """Names of the images that judged it and have not taught it; empty where folds took turns."""
    seen: Seen
    """What has taught it."""

    def continued(self, class_names: tuple[str, ...]) -> Continued:
        return Continued(network=self.network, start=str(self.folder), sha256=self.sha256, class_names=class_names)


def read_previous(folder: Path) -> Previous:
    """Read the folder that an earlier fit left.

    Raises:
        InputError: it is none, or not complete.
    """
    held_out = frozenset(read_fit(folder)["held_out"])
    # Says what is wrong with a damaged model now, not after minutes.
    seen = load_bundle(folder).seen or Seen(complete=False)
    manifest = read_manifest(folder / "model" / "model.json")
    if not isinstance(manifest.spec, FastNetSpec):
        raise InputError(f"The model in {folder} is no FastNet, so that fit cannot go on from it.")
    return Previous(folder, manifest.spec, manifest.size, manifest.sha256, held_out, seen)
