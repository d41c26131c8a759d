from pathlib import Path

import pytest

from meanteacher.core import InputError


@pytest.fixture(autouse=True)
def fetched(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Path, str]]:
    """No test reaches the network; what would have been downloaded is noted here."""
    requests: dict[str, tuple[Path, str]] = {}

    def note(url: str, path: Path, *, sha256: str, progress: object = None) -> None:
        requests[url] = (path, sha256)
        raise InputError("offline")

    monkeypatch.setattr("meanteacher.data.cifar10.fetch", note)
    monkeypatch.setattr("meanteacher.data.svhn.fetch", note)
    return requests
