"""SVHN from files whose sha256 is known to the test, and from arrays in their place."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.io import loadmat, savemat

from meanteacher.core import UNLABELLED, InputError
from meanteacher.data.svhn import Svhn
from source_support import a_web_page, cut_short, emptied, random_bytes


def stored(n: int) -> NDArray[np.uint8]:
    """[32, 32, 3, n], as MATLAB has them."""
    return random_bytes(32, 32, 3, n, seed=n)


def svhn_images(n: int) -> NDArray[np.uint8]:
    """The same images, moved axis by axis instead of all at once."""
    return np.stack([np.stack([stored(n)[:, :, c, i] for c in range(3)]) for i in range(n)])


def write_mat(folder: Path, part: str, n: int) -> Path:
    """Image i has the label i % 10 + 1, as in the official files up to 10."""
    path = folder / f"{part}_32x32.mat"
    savemat(path, {"X": stored(n), "y": (np.arange(n, dtype=np.uint8) % 10 + 1)[:, None]}, do_compression=True)
    return path


def write_official(monkeypatch: pytest.MonkeyPatch, folder: Path, **n_images: int) -> None:
    """Files that are taken for the official ones, because the table of known hashes has theirs."""
    digests = {
        part: hashlib.sha256(write_mat(folder, part, n).read_bytes()).hexdigest() for part, n in n_images.items()
    }
    monkeypatch.setattr(Svhn, "sha256", {"train": "", "test": "", "extra": ""} | digests)


def arrays(**change: object) -> dict[str, object]:
    content = {
        f"{part}_{kind}": value
        for part, n in (("train", 12), ("test", 7), ("extra", 9))
        for kind, value in (("images", stored(n).transpose(3, 0, 1, 2)), ("labels", (np.arange(n) + 1) % 10))
    }
    del content["extra_labels"]
    return {name: value for name, value in {**content, **change}.items() if value is not None}


@pytest.fixture(params=["official", "arrays"])
def svhn(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.param == "official":
        write_official(monkeypatch, tmp_path, train=12, test=7, extra=9)
    else:
        np.savez(tmp_path / "svhn.npz", **arrays())
    return tmp_path


def test_svhn_keeps_every_pixel_upright_and_reads_ten_as_zero(svhn: Path) -> None:
    parts = Svhn().load(svhn)
    for part, n in ((parts.train, 12), (parts.test, 7)):
        assert np.array_equal(part.images.numpy(), svhn_images(n))
        assert part.images.dtype == torch.uint8
        assert part.images.is_contiguous()
        assert part.class_names == tuple("0123456789")
    assert parts.train.labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    assert parts.official is not (svhn / "svhn.npz").exists()


def test_svhn_downloads_only_what_is_missing_and_asked_for(
    tmp_path: Path, fetched: dict[str, tuple[Path, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    official = dict(Svhn.sha256)

    def succeed(url: str, path: Path, *, sha256: str, progress: object) -> None:
        fetched[url] = (path, sha256)
        path.write_bytes((written / path.name).read_bytes())

    written = tmp_path / "server"
    written.mkdir()
    write_official(monkeypatch, written, train=12, test=7, extra=9)
    monkeypatch.setattr("meanteacher.data.svhn.fetch", succeed)
    url = "https://ufldl.stanford.edu/housenumbers/{}_32x32.mat"
    expected = {url.format(part): (tmp_path / f"{part}_32x32.mat", sha256) for part, sha256 in Svhn.sha256.items()}
    Svhn().load(tmp_path)
    assert list(fetched) == [url.format("train"), url.format("test")]
    fetched.clear()
    Svhn(extra=1).load(tmp_path)
    assert list(fetched) == [url.format("extra")]
    (tmp_path / "train_32x32.mat").unlink()
    (tmp_path / "test_32x32.mat").unlink()
    Svhn().load(tmp_path)
    assert fetched == expected
    assert official == {
        "train": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
        "test": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
        "extra": "a133a4beb38a00fcdda90c9489e0c04f900b660ce8a316a5e854838379a71eb3",
    }


def test_svhn_extra_rows_follow_the_training_set_without_a_label(svhn: Path) -> None:
    train = Svhn(extra=6).load(svhn).train
    assert np.array_equal(train.images[:12].numpy(), svhn_images(12))
    assert train.labels[12:].tolist() == [UNLABELLED] * 6
    assert train.images.is_contiguous()
    known = {image.tobytes() for image in svhn_images(9)}
    drawn = {image.tobytes() for image in train.images[12:].numpy()}
    assert len(drawn) == 6
    assert drawn < known


def test_svhn_extra_is_the_start_of_one_fixed_shuffle(svhn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = Svhn(extra=9).load(svhn).train.images[12:]
    assert {image.numpy().tobytes() for image in everything} == {image.tobytes() for image in svhn_images(9)}
    assert not np.array_equal(everything.numpy(), svhn_images(9)), "not shuffled"
    # Copying a few rows at a time must not show.
    monkeypatch.setattr("meanteacher.data.svhn._ROWS_AT_ONCE", 2)
    assert torch.equal(Svhn(extra=5).load(svhn).train.images[12:], everything[:5])


def test_svhn_refuses_more_extra_images_than_there_are(svhn: Path) -> None:
    with pytest.raises(InputError, match=r"extra=10\b.* 9 images"):
        Svhn(extra=10).load(svhn)


def test_svhn_refuses_a_negative_number_of_extra_images() -> None:
    with pytest.raises(InputError, match="extra=-1"):
        Svhn(extra=-1)


@pytest.mark.parametrize("part", ["train", "test", "extra"])
@pytest.mark.parametrize("damage", [cut_short, emptied, a_web_page, "other images"])
def test_svhn_refuses_a_file_that_is_not_the_official_one(
    tmp_path: Path, part: str, damage: Callable[[Path], None] | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything but its hash is read, and also if arrays lie beside it."""
    write_official(monkeypatch, tmp_path, train=120, test=120, extra=120)
    np.savez(tmp_path / "svhn.npz", **arrays())
    if callable(damage):
        damage(tmp_path / f"{part}_32x32.mat")
    else:
        write_mat(tmp_path, part, 121)
    monkeypatch.setattr("scipy.io.loadmat", lambda file: pytest.fail("read") if part in opened[-1] else loadmat(file))
    opened: list[str] = []
    monkeypatch.setattr(
        "meanteacher.data.official.open_regular", lambda path: opened.append(path.name) or path.open("rb")
    )
    sha256 = Svhn.sha256[part]
    with pytest.raises(
        InputError, match=rf"/{part}_32x32\.mat is not .*sha256 .*instead of {sha256}.*delete.*svhn\.npz"
    ):
        Svhn(extra=1).load(tmp_path)
    assert part in opened[-1]


def test_svhn_reads_arrays_only_if_no_official_file_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fetched: dict[str, tuple[Path, str]]
) -> None:
    np.savez(tmp_path / "svhn.npz", **arrays())
    assert Svhn().load(tmp_path).official is False
    assert not fetched
    write_official(monkeypatch, tmp_path, train=20)
    with pytest.raises(InputError, match="offline"):
        Svhn().load(tmp_path)
    write_official(monkeypatch, tmp_path, train=20, test=20)
    parts = Svhn().load(tmp_path)
    assert parts.official
    assert len(parts.train) == 20


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"train_images": None}, "no array named train_images"),
        ({"test_labels": None}, "no array named test_labels"),
        ({"extra_images": None}, "no array named extra_images"),
        ({"train_images": random_bytes(12, 32, 32)}, r"train_images is uint8 \(12, 32, 32\), .*\(N, 32, 32, 3\)"),
        ({"train_images": random_bytes(12, 3, 32, 32)}, r"train_images is uint8 \(12, 3, 32, 32\)"),
        ({"test_images": random_bytes(0, 32, 32, 3)}, r"test_images is uint8 \(0, 32, 32, 3\)"),
        ({"train_images": np.zeros((12, 32, 32, 3))}, "train_images is float64 .*uint8"),
        ({"train_labels": np.ones(11, np.uint8)}, r"train_labels is uint8 \(11,\), expected whole numbers \(12,\)"),
        ({"train_labels": np.ones(12) / 2}, "train_labels is float64 .*whole numbers"),
        ({"test_labels": np.full(7, 10)}, "test_labels runs from 10 to 10, expected 0 to 9"),
        ({"test_labels": np.full(7, -1)}, "test_labels runs from -1 to -1"),
        ({"train_images": np.array([print])}, r"cannot be read .*allow_pickle"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_svhn_says_which_array_is_wrong(tmp_path: Path, change: dict[str, object], words: str) -> None:
    np.savez(tmp_path / "svhn.npz", **arrays(**change))
    with pytest.raises(InputError, match=rf"svhn\.npz.*{words}"):
        Svhn(extra=1).load(tmp_path)
