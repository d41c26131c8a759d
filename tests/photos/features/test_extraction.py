"""Features of every photo and view in a file, computed once however often the work is interrupted."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backbone_support import small_networks
from meanteacher.core import InputError, Interrupted
from meanteacher.photos.features import extraction as features
from meanteacher.photos.features.backbones import find_backbone
from meanteacher.photos.features.extraction import VIEWS, Extraction, computed, views
from meanteacher.views import Chain, Crop, Cutout, RandAugment
from meanteacher.views.normalise import per_channel
from pretend_gpu import GPU, pretend_gpu

SIZE, N, N_CHUNKS = 32, 40, 3
"""Three chunks per view: 16, 16 and 8 photos."""
IMAGES = np.random.default_rng(0).integers(0, 256, (N, 3, SIZE, SIZE), dtype=np.uint8)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_networks(monkeypatch, SIZE)


def extraction(folder: Path, **changes: Any) -> Extraction:
    given = {
        "images": IMAGES,
        "backbone": find_backbone("lite0"),
        "view": "strong-1",
        "flip": True,
        "file": folder / "cache" / "pixels",
        "order": np.arange(N)[::-1],
    }
    return Extraction(**{**given, **changes})


def stop_after(n: int) -> Callable[[], bool]:
    left = iter([False] * n)
    return lambda: next(left, True)


@pytest.fixture
def n_computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of photos of each chunk that goes through the network."""
    real, seen = features.computing, []

    def counting(*given: Any) -> Any:
        compute = real(*given)

        def counted(batch: np.ndarray) -> np.ndarray:
            seen.append(len(batch))
            return compute(batch)

        return counted

    monkeypatch.setattr(features, "computing", counting)
    return seen


# --- views ------------------------------------------------------------------------------------------------------------


def test_the_first_view_is_the_photo_itself_and_none_is_mirrored_without_flip() -> None:
    """Of an image that becomes brighter to the right, a mirrored copy becomes darker."""
    images = torch.linspace(0, 1, SIZE).expand(40, 3, SIZE, SIZE)

    def seen(name: str, *, flip: bool) -> torch.Tensor:
        return features._view(name, SIZE, flip=flip)(images, torch.Generator().manual_seed(0))

    def n_mirrored(name: str, *, flip: bool) -> int:
        rows = seen(name, flip=flip)
        return int((rows[..., -1] < rows[..., 0]).all(2).all(1).sum())

    assert views(flip=True) == VIEWS
    assert views(flip=False) == tuple(name for name in VIEWS if name != "mirrored")
    assert torch.equal(seen("plain", flip=True), images)
    assert n_mirrored("mirrored", flip=True) == 40
    assert 10 < n_mirrored("crop", flip=True) < 30
    assert n_mirrored("crop", flip=False) == 0


def test_strong_views_crop_more_change_colours_and_cut_a_quarter_of_the_side_out() -> None:
    strong = Chain((Crop(scale=(0.3, 1.0)), RandAugment(), Cutout(SIZE // 4)))
    assert {features._view(f"strong-{k}", SIZE, flip=False) for k in (1, 2, 3)} == {strong}
    assert features._view("crop", SIZE, flip=False) == Chain((Crop(scale=(0.6, 1.0)),))


# --- values -----------------------------------------------------------------------------------------------------------


def test_features_are_those_of_torch_up_to_half_precision(tmp_path: Path) -> None:
    backbone = find_backbone("lite0")
    pixels = per_channel(backbone.mean, backbone.deviation)(torch.from_numpy(IMAGES))
    for view, images in (("plain", pixels), ("mirrored", pixels.flip(3))):
        found = extraction(tmp_path, view=view).run()
        assert (found.shape, found.dtype) == ((N, backbone.n_features), np.float16)
        with torch.no_grad():
            expected = backbone.network()(images).numpy()
        scale = float(np.abs(expected).max())
        np.testing.assert_allclose(found.astype(np.float32), expected, atol=2e-3 * scale)


def test_each_photo_has_a_draw_of_its_own_and_no_other_photo_changes_it(tmp_path: Path) -> None:
    alike = np.repeat(IMAGES[:1], N, axis=0)
    found = extraction(tmp_path / "a", images=alike).run()
    assert len(np.unique(np.asarray(found), axis=0)) == N
    some = extraction(tmp_path / "b", images=alike, order=np.array([7, 3])).run()
    assert np.array_equal(some[[3, 7]], found[[3, 7]])
    assert computed(some).sum() == 2


def test_a_gpu_computes_the_same_features(tmp_path: Path) -> None:
    here = extraction(tmp_path / "a").run()
    with pretend_gpu():
        there = extraction(tmp_path / "b", device=GPU).run()
    np.testing.assert_allclose(there.astype(np.float32), here.astype(np.float32), rtol=1e-2, atol=1e-2)


def test_a_network_whose_features_vanish_in_half_precision_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new network that normalises has features of about 2e-9, and half precision has nothing below 6e-8."""
    computing = features.computing

    def scaled(factor: float) -> Extraction:
        def smaller(*given: Any) -> Callable[[np.ndarray], np.ndarray]:
            compute = computing(*given)
            return lambda batch: np.float32(factor) * compute(batch)

        monkeypatch.setattr(features, "computing", smaller)
        return extraction(tmp_path / str(factor))

    assert computed(scaled(0.01).run()).all()
    with pytest.raises(InputError, match="All features of lite0 are zero in half precision"):
        scaled(1e-9).run()


# --- interruptions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 2])
def test_a_stopped_extraction_continues_to_the_same_bytes_and_computes_nothing_twice(
    n: int, tmp_path: Path, n_computed: list[int]
) -> None:
    whole = extraction(tmp_path / "whole").run()
    with pytest.raises(Interrupted, match=r"resume=True \(--resume\)"):
        extraction(tmp_path / "part").run(should_stop=stop_after(n))
    n_computed.clear()
    found = extraction(tmp_path / "part").run()
    assert len(n_computed) == N_CHUNKS - n
    assert found.tobytes() == whole.tobytes()


def test_a_chunk_of_which_a_row_was_half_written_is_computed_again(tmp_path: Path, n_computed: list[int]) -> None:
    whole = extraction(tmp_path).run()
    bytes_before = whole.tobytes()
    whole[20, 700:] = np.nan
    whole.flush()
    n_computed.clear()
    assert extraction(tmp_path).run().tobytes() == bytes_before
    assert len(n_computed) == 1


@pytest.mark.parametrize("row", [3, 20], ids=["first chunk", "second chunk"])
@pytest.mark.parametrize("damage", ["zeros", "one bit", "another row"])
def test_a_row_that_is_not_as_it_was_written_is_computed_again(
    damage: str, row: int, tmp_path: Path, n_computed: list[int]
) -> None:
    whole = extraction(tmp_path).run()
    expected = whole.tobytes()
    if damage == "zeros":
        whole[row] = 0
    elif damage == "one bit":
        whole[row].view(np.uint16)[11] ^= 1
    else:
        whole[row] = whole[row + 1]
    whole.flush()
    n_computed.clear()
    assert extraction(tmp_path).run().tobytes() == expected
    assert len(n_computed) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"'shape': (", b"'shape': (9"),
        (b"'<f2'", b"'<f8'"),
        (b"'descr'", b"'desc\xff'"),
        (b"False", b"True "),
        (b"{", b"["),
    ],
)
def test_a_file_with_a_damaged_header_is_replaced_and_never_enlarged(
    old: bytes, new: bytes, tmp_path: Path, n_computed: list[int]
) -> None:
    expected = extraction(tmp_path).run().tobytes()
    path = extraction(tmp_path).path
    content = path.read_bytes()
    header, rest = content[:128], content[128:]
    assert old in header
    path.write_bytes(header.replace(old, new)[:128].ljust(128) + rest)
    n_computed.clear()
    assert extraction(tmp_path).run().tobytes() == expected
    assert len(n_computed) == N_CHUNKS
    assert path.stat().st_size == len(content)


def test_the_most_important_photos_are_computed_before_the_time_is_over(tmp_path: Path) -> None:
    assert not computed(extraction(tmp_path / "a").run(ends=0.0)).any()
    seen: list[int] = []
    with pytest.raises(Interrupted):
        extraction(tmp_path / "b").run(progress=lambda done, total: seen.append(done), should_stop=stop_after(1))
    found = extraction(tmp_path / "b").run(ends=0.0)
    assert np.flatnonzero(computed(found)).tolist() == list(range(N - 16, N))
    assert seen == [0, 16]


def test_other_pixels_networks_views_and_sizes_have_other_files(tmp_path: Path) -> None:
    paths = {
        extraction(tmp_path, **changes).path
        for changes in (
            {},
            {"file": tmp_path / "cache" / "other"},
            {"backbone": find_backbone("lite2")},
            {"view": "crop"},
            {"flip": False},
            {"images": IMAGES[..., :16, :16]},
        )
    }
    assert len(paths) == 6


def test_a_file_of_another_shape_is_replaced_and_a_link_is_not_followed(tmp_path: Path) -> None:
    path = extraction(tmp_path).path
    path.parent.mkdir()
    np.save(path, np.zeros((3, 4), np.float16))
    assert computed(extraction(tmp_path).run()).all()
    path.unlink()
    np.save(tmp_path / "elsewhere.npy", np.zeros((N, 1280), np.float16))
    path.symlink_to(tmp_path / "elsewhere.npy")
    assert not path.is_symlink() or computed(extraction(tmp_path).run()).all()
    assert not np.load(tmp_path / "elsewhere.npy").any()


def test_a_full_disk_is_an_error_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    with pytest.raises(InputError, match=r"\.npy \(No space left on device\)\. Free some space.*--out"):
        extraction(tmp_path).run()
