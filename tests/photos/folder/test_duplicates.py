import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from meanteacher.photos.folder import duplicates
from meanteacher.photos.folder.duplicates import digest, find_duplicates, same_picture

SIZE = 32


def pictures(n: int, seed: int = 0, size: int = SIZE) -> np.ndarray:
    """Different smooth images, with some detail in them."""
    draw = np.random.default_rng(seed)
    coarse = draw.uniform(0, 255, (n, 6, 6, 3)).astype(np.uint8)
    smooth = [np.asarray(Image.fromarray(each).resize((size, size), Image.Resampling.BICUBIC)) for each in coarse]
    detail = draw.normal(0, 6, (n, 3, size, size))
    return (np.stack(smooth).transpose(0, 3, 1, 2) + detail).clip(0, 255).astype(np.uint8)


def as_image(pixels: np.ndarray) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))


def as_pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image).transpose(2, 0, 1)


def saved_again(pixels: np.ndarray) -> np.ndarray:
    file = io.BytesIO()
    as_image(pixels).save(file, "JPEG", quality=75)
    return as_pixels(Image.open(file))


def resized(pixels: np.ndarray) -> np.ndarray:
    larger = as_image(pixels).resize((45, 45), Image.Resampling.BILINEAR)
    return as_pixels(larger.resize((SIZE, SIZE), Image.Resampling.BOX))


def shifted(pixels: np.ndarray, levels: int) -> np.ndarray:
    return (pixels.astype(int) + levels).clip(0, 255).astype(np.uint8)


def brighter(pixels: np.ndarray) -> np.ndarray:
    return shifted(pixels, 12)


def mirrored(pixels: np.ndarray) -> np.ndarray:
    return pixels[:, :, ::-1]


def recoloured(pixels: np.ndarray) -> np.ndarray:
    return pixels[[2, 1, 0]]


def with_a_bird(pixels: np.ndarray) -> np.ndarray:
    changed = pixels.copy()
    bird = changed[:, 9:14, 17:22]
    bird[:] = 255 if bird.mean() < 128 else 0
    return changed


def with_other_detail(pixels: np.ndarray) -> np.ndarray:
    """The same when seen from afar, as two pages of print are."""
    blocks = as_image(pixels).resize((8, 8), Image.Resampling.BOX).resize((SIZE, SIZE), Image.Resampling.NEAREST)
    checked = np.indices((SIZE, SIZE)).sum(axis=0) % 2 * 80 - 40
    return (as_pixels(blocks).astype(int) + checked).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("change", [saved_again, resized, brighter])
def test_a_copy_that_was_worked_on_is_found(change: Callable[[np.ndarray], np.ndarray]):
    originals = pictures(40)
    images = np.concatenate([originals, [change(each) for each in originals]])
    found = find_duplicates(images)
    assert found.near.tolist() == [*range(40), *range(40)]
    assert found.exact.tolist() == list(range(80))
    assert same_picture(images, np.arange(40), np.arange(40, 80)).all()


@pytest.mark.parametrize("change", [mirrored, recoloured, with_a_bird, with_other_detail])
def test_another_picture_is_not_accused(change: Callable[[np.ndarray], np.ndarray]):
    originals = pictures(40)
    images = np.concatenate([originals, [change(each) for each in originals]])
    assert find_duplicates(images).near.tolist() == list(range(80))
    assert not same_picture(images, np.arange(40), np.arange(40, 80)).any()


def test_exact_copies_are_led_by_the_first():
    images = pictures(5)[[3, 1, 3, 0, 1, 1]]
    found = find_duplicates(images)
    assert found.exact.tolist() == [0, 1, 0, 3, 1, 1]
    assert found.near.tolist() == [0, 1, 0, 3, 1, 1]
    assert found.digests == tuple(digest(image) for image in images)


def test_plain_images_are_alike_only_where_they_are_equal():
    levels = [0, 1, 250, 128, 128, 255]
    images = np.stack([np.full((3, SIZE, SIZE), level, np.uint8) for level in levels])
    assert find_duplicates(images).near.tolist() == [0, 1, 2, 3, 3, 5]


def test_noise_on_plain_images_does_not_make_them_same_picture():
    draw = np.random.default_rng(0)
    images = draw.integers(120, 125, (50, 3, SIZE, SIZE)).astype(np.uint8)
    assert find_duplicates(images).near.tolist() == list(range(50))


def test_what_is_all_but_plain_is_too_little_to_be_told_apart_by():
    wall = np.broadcast_to(np.linspace(200, 205, SIZE), (3, SIZE, SIZE)).astype(np.uint8)
    steep = (wall - 190) * 8
    assert find_duplicates(np.stack([wall, wall + 1])).near.tolist() == [0, 1]
    assert find_duplicates(np.stack([steep, steep + 1])).near.tolist() == [0, 0]


def test_a_copy_is_found_where_noise_on_a_background_is_most_of_the_image():
    draw = np.random.default_rng(0)
    images = np.full((60, 3, SIZE, SIZE), 240, np.uint8)
    images[:, :, 8:24, 8:24] = pictures(60, size=16) // 2 + 60
    images = np.concatenate([images, images + draw.integers(0, 3, images.shape, np.uint8)])
    assert find_duplicates(images).near.tolist() == [*range(60), *range(60)]


def test_being_alike_is_passed_on_but_is_asked_of_each_pair_too():
    first, last = pictures(2).astype(int)
    film = np.stack([first + (last - first) * t / 12 for t in range(13)]).astype(np.uint8)
    assert find_duplicates(film).near.tolist() == [0] * 13
    assert same_picture(film, np.array([0, 5, 0]), np.array([1, 6, 12])).tolist() == [True, True, False]


def test_the_order_of_the_images_changes_nothing_but_who_leads():
    originals = pictures(150)
    images = np.concatenate([originals, [saved_again(each) for each in originals[:50]], originals[50:70]])
    order = np.random.default_rng(1).permutation(len(images))
    groups, moved = find_duplicates(images).near, find_duplicates(images[order]).near
    assert len(np.unique(groups)) == 150
    assert ((moved[:, None] == moved) == (groups[order][:, None] == groups[order])).all()
    assert (groups <= np.arange(len(groups))).all()


def test_few_differing_bits_are_found_wherever_they_are():
    draw = np.random.default_rng(0)
    hashes = draw.integers(0, 2**64, 400, dtype=np.uint64)
    flips = np.array([sum(1 << int(bit) for bit in draw.choice(64, 6, replace=False)) for _ in hashes], np.uint64)
    found = {
        frozenset(pair)
        for a, b in duplicates._candidates(np.concatenate([hashes, hashes ^ flips]))
        for pair in zip(a.tolist(), b.tolist(), strict=True)
    }
    assert found == {frozenset((k, k + 400)) for k in range(400)}


@pytest.mark.parametrize("hashes", [np.zeros(500, np.uint64), np.arange(500, dtype=np.uint64)])
def test_no_images_lead_to_comparing_all_pairs(hashes: np.ndarray):
    n_pairs = sum(len(a) for a, _ in duplicates._candidates(hashes))
    assert n_pairs <= 4 * duplicates._WINDOW * len(hashes)


@pytest.mark.parametrize("size", [5, 8, 9, 33])
def test_any_size_will_do(size: int):
    images = pictures(6, size=size)[[0, 1, 2, 3, 4, 5, 2]]
    assert find_duplicates(images).near.tolist() == [0, 1, 2, 3, 4, 5, 2]
    images[6] = shifted(images[6], 2)
    assert find_duplicates(images).near.tolist() == [0, 1, 2, 3, 4, 5, 2]


@pytest.mark.parametrize("n", [0, 1])
def test_nothing_to_compare_is_no_error(n: int):
    assert find_duplicates(pictures(1)[:n]).near.tolist() == list(range(n))


def test_images_are_read_from_disk_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    images = np.concatenate([pictures(20), [brighter(each) for each in pictures(20)]])
    np.save(tmp_path / "images.npy", images)
    monkeypatch.setattr(duplicates, "_PIXELS", 7 * SIZE**2)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    assert find_duplicates(mapped).near.tolist() == [*range(20), *range(20)]
    assert not same_picture(mapped, np.arange(20), np.arange(39, 19, -1)).any()
