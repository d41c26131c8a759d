from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.io import savemat

from meanteacher.core import UNLABELLED, InputError
from meanteacher.data.svhn import Svhn
from source_support import a_web_page, cut_short, emptied, random_bytes


def write_svhn(folder: Path, part: str, n: int, **change: object) -> Path:
    """Image i of the training part has the label i % 10 + 1, as in the official files up to 10."""
    content = {
        "X": random_bytes(32, 32, 3, n, seed=n),
        "y": (np.arange(n, dtype=np.uint8) % 10 + 1)[:, None],
    }
    path = folder / f"{part}_32x32.mat"
    savemat(path, {name: value for name, value in {**content, **change}.items() if value is not None})
    return path


def svhn_images(n: int) -> NDArray[np.uint8]:
    """What `write_svhn` wrote, moved axis by axis instead of all at once."""
    stored = random_bytes(32, 32, 3, n, seed=n)
    return np.stack([np.stack([stored[:, :, c, i] for c in range(3)]) for i in range(n)])


@pytest.fixture
def svhn(tmp_path: Path) -> Path:
    write_svhn(tmp_path, "train", 12)
    write_svhn(tmp_path, "test", 7)
    return tmp_path


def test_svhn_keeps_every_pixel_upright_and_reads_ten_as_zero(svhn: Path) -> None:
    parts = Svhn().load(svhn)
    for part, n in ((parts.train, 12), (parts.test, 7)):
        assert np.array_equal(part.images.numpy(), svhn_images(n))
        assert part.images.dtype == torch.uint8
        assert part.images.is_contiguous()
        assert part.class_names == tuple("0123456789")
    assert parts.train.labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]


def test_svhn_downloads_only_what_is_missing_and_asked_for(
    tmp_path: Path, fetched: dict[str, tuple[Path, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def succeed(url: str, path: Path, *, sha256: str, progress: object) -> None:
        fetched[url] = (path, sha256)
        path.touch()

    monkeypatch.setattr("meanteacher.data.svhn.fetch", succeed)
    url = "https://ufldl.stanford.edu/housenumbers/{}_32x32.mat"
    checksums = {
        "train": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
        "test": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
        "extra": "a133a4beb38a00fcdda90c9489e0c04f900b660ce8a316a5e854838379a71eb3",
    }
    expected = {url.format(part): (tmp_path / f"{part}_32x32.mat", sha256) for part, sha256 in checksums.items()}
    Svhn().download(tmp_path)
    assert list(fetched) == [url.format("train"), url.format("test")]
    fetched.clear()
    Svhn(extra=1).download(tmp_path)
    assert list(fetched) == [url.format("extra")]
    assert fetched.items() <= expected.items()
    (tmp_path / "train_32x32.mat").unlink()
    (tmp_path / "test_32x32.mat").unlink()
    Svhn().download(tmp_path)
    assert fetched == expected


def test_svhn_extra_rows_follow_the_training_set_without_a_label(svhn: Path) -> None:
    # Labels that cannot be read prove that nobody reads them.
    write_svhn(svhn, "extra", 9, y=None)
    train = Svhn(extra=6).load(svhn).train
    assert np.array_equal(train.images[:12].numpy(), svhn_images(12))
    assert train.labels[12:].tolist() == [UNLABELLED] * 6
    assert train.images.is_contiguous()
    stored = {image.tobytes() for image in svhn_images(9)}
    drawn = {image.tobytes() for image in train.images[12:].numpy()}
    assert len(drawn) == 6
    assert drawn < stored


def test_svhn_extra_is_the_start_of_one_fixed_shuffle(svhn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_svhn(svhn, "extra", 9)
    everything = Svhn(extra=9).load(svhn).train.images[12:]
    assert {image.numpy().tobytes() for image in everything} == {image.tobytes() for image in svhn_images(9)}
    assert not np.array_equal(everything.numpy(), svhn_images(9)), "not shuffled"
    # Copying a few rows at a time must not show.
    monkeypatch.setattr("meanteacher.data.svhn._ROWS_AT_ONCE", 2)
    assert torch.equal(Svhn(extra=5).load(svhn).train.images[12:], everything[:5])


def test_svhn_refuses_more_extra_images_than_there_are(svhn: Path) -> None:
    write_svhn(svhn, "extra", 9)
    with pytest.raises(InputError, match=r"extra=10\b.*extra_32x32\.mat .*9 images"):
        Svhn(extra=10).load(svhn)


def test_svhn_refuses_a_negative_number_of_extra_images() -> None:
    with pytest.raises(InputError, match="extra=-1"):
        Svhn(extra=-1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"X": None}, "X .*missing"),
        ({"y": None}, "y .*missing"),
        ({"X": random_bytes(32, 32, 12)}, r"X .*uint8 \(32, 32, 12\).*uint8 \(32, 32, 3, N\)"),
        ({"X": random_bytes(32, 32, 3)}, r"X .*uint8 \(32, 32, 3\).*\(32, 32, 3, N\)"),
        ({"X": random_bytes(12, 32, 32, 3)}, r"X .*uint8 \(12, 32, 32, 3\).*\(32, 32, 3, N\)"),
        ({"X": random_bytes(32, 32, 3, 0)}, r"X .*uint8 \(32, 32, 3, 0\).*\(32, 32, 3, N\)"),
        ({"X": np.zeros((32, 32, 3, 12))}, r"X .*float64 .*uint8"),
        ({"y": np.ones((11, 1), np.uint8)}, r"y .*uint8 \(11, 1\).*whole numbers \(12, 1\)"),
        ({"y": np.ones((12, 1)) / 2}, r"y .*float64 .*whole numbers"),
        ({"y": np.zeros((12, 1), np.uint8)}, "y .*0 to 0.* 1 to 10"),
        ({"y": np.full((12, 1), 11, np.uint8)}, "y .*11 to 11.* 1 to 10"),
    ],
)
def test_svhn_names_the_file_with_foreign_content(svhn: Path, change: dict[str, object], words: str) -> None:
    write_svhn(svhn, "train", 12, **change)
    with pytest.raises(InputError, match=rf"/train_32x32\.mat .*{words}.*Delete it"):
        Svhn().load(svhn)


@pytest.mark.parametrize("part", ["train", "test", "extra"])
@pytest.mark.parametrize("damage", [cut_short, emptied, a_web_page, lambda path: path.write_bytes(b"\0" * 500)])
def test_svhn_names_the_damaged_file(svhn: Path, part: str, damage: Callable[[Path], None]) -> None:
    write_svhn(svhn, "extra", 9)
    damage(svhn / f"{part}_32x32.mat")
    with pytest.raises(InputError, match=rf"/{part}_32x32\.mat .*Delete it"):
        Svhn(extra=1).load(svhn)
