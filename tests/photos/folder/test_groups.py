"""Photos that belong together end in one group, and others do not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from meanteacher.core import UNLABELLED, InputError
from meanteacher.photos.folder.cache import read_headers
from meanteacher.photos.folder.find import Photos, find_photos
from meanteacher.photos.folder.groups import find_groups, times_of, together
from photo_support import folder_of, picture

N_SHOTS = 6


def photos_of(names: list[str], labels: list[int], n_classes: int = 2) -> Photos:
    return Photos(Path("photos"), tuple(names), np.array(labels), ("cat", "dog", "owl")[:n_classes], None)


def grouped(photos: Photos, features: np.ndarray | None = None, times: list[float] | None = None) -> list[int]:
    n = len(photos)
    return together(photos, np.arange(n), np.full(n, np.nan) if times is None else np.array(times), features).tolist()


def things(n_things: int, spread: float, n_shots: int = N_SHOTS, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features of shots [n, 256] of things of two classes, and their labels; the things of a class are neighbours."""
    draws = np.random.default_rng(seed)
    labels = np.arange(n_things) % 2
    things = 0.5 * draws.normal(size=(2, 256))[labels] + draws.normal(size=(n_things, 256))
    shots = np.repeat(things, n_shots, axis=0) + spread * draws.normal(size=(n_things * n_shots, 256))
    return shots, np.repeat(labels, n_shots)


def exif(time: str, fraction: str = "") -> bytes:
    data = Image.Exif()
    details = data.get_ifd(0x8769)
    details[0x9003] = time
    if fraction:
        details[0x9291] = fraction
    return data.tobytes()


def save(path: Path, time: str, fraction: str = "", seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(seed).save(path, exif=exif(time, fraction))


def test_six_shots_of_each_thing_are_one_group_by_their_features_alone():
    shots, labels = things(12, spread=0.3)
    # Odd numbers alone: no name follows another.
    photos = photos_of([f"{2 * k}.jpg" for k in range(len(shots))], labels.tolist())
    assert grouped(photos, shots) == np.repeat(np.arange(0, 72, 6), 6).tolist()


def test_distinct_photos_of_a_class_are_not_merged():
    photos, labels = things(60, spread=0, n_shots=1)
    names = [f"IMG_{k:04}.jpg" for k in range(60)]
    assert grouped(photos_of(names, labels.tolist()), photos) == list(range(60))


@pytest.mark.parametrize("evidence", ["numbers", "times"])
def test_shots_that_vary_more_are_one_group_if_they_follow_each_other(evidence: str):
    shots, labels = things(8, spread=0.9)
    names = [f"IMG_{k if evidence == 'numbers' else 7 * k}.jpg" for k in range(48)]
    times = [1000 * (k // 6) + 20.0 * (k % 6) for k in range(48)]
    photos = photos_of(names, labels.tolist())
    alone = grouped(photos_of([f"{2 * k}.jpg" for k in range(48)], labels.tolist()), shots)
    found = grouped(photos, shots, times if evidence == "times" else None)
    assert found == np.repeat(np.arange(0, 48, 6), 6).tolist()
    assert alone != found


def test_a_burst_needs_no_features_and_a_walk_is_no_burst():
    photos = photos_of([f"{name}.jpg" for name in "adbecf"], [0, 0, 0, 1, 1, 1])
    # By time: a, b and c within two seconds each, then d, e and f half a minute apart.
    assert grouped(photos, times=[0.0, 40.0, 1.5, 70.0, 2.9, 100.0]) == [0, 1, 0, 3, 0, 5]


def test_unlabelled_shots_join_the_nearest_labelled_one_and_connect_no_others():
    shots, labels = things(12, spread=0.3)
    labels[np.arange(72) % 6 > 1] = UNLABELLED
    photos = photos_of([f"{2 * k}.jpg" for k in range(72)], labels.tolist())
    assert grouped(photos, shots) == np.repeat(np.arange(0, 72, 6), 6).tolist()
    # A crowd of unlabelled photos between two things of one class does not connect them.
    ends = np.flatnonzero(labels == 0)[[0, 2]]
    between = shots[ends[0]] + np.linspace(0, 1, 50)[:, None] * (shots[ends[1]] - shots[ends[0]])
    crowded = photos_of([*photos.names, *(f"between/{2 * k}.jpg" for k in range(50))], [*labels, *[UNLABELLED] * 50])
    found = grouped(crowded, np.concatenate([shots, between]))
    assert found[ends[0]] != found[ends[1]]


def test_features_never_connect_different_labels_and_may_be_missing():
    features = np.array([[1.0, 0.0], [1.0, 0.001], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    photos = photos_of([f"{k}.jpg" for k in range(5)], [0, 1, 1, 0, UNLABELLED])
    assert grouped(photos, features) == [0, 1, 2, 3, 4]


def test_copies_are_always_together():
    photos = photos_of(["1.jpg", "2.jpg", "3.jpg", "4.jpg"], [0, 0, 1, UNLABELLED])
    assert together(photos, np.array([0, 1, 2, 0]), np.full(4, np.nan)).tolist() == [0, 1, 2, 0]


def test_classes_that_are_far_apart_are_not_one_group_each():
    photos, labels = things(40, spread=0, n_shots=1)
    photos[:, :4] += 18 * (labels[:, None] - 0.5)
    assert grouped(photos_of([f"{k}.jpg" for k in range(40)], labels.tolist()), photos) == list(range(40))


def test_a_class_of_one_thing_is_one_group():
    shots, labels = things(2, spread=0.3)
    assert grouped(photos_of([f"{2 * k}.jpg" for k in range(12)], labels.tolist()), shots) == [0] * 6 + [6] * 6


def test_folders_of_things_within_each_class_are_groups(tmp_path: Path):
    names = [f"{kind}/{thing}/{shot}.png" for kind in ("cat", "dog") for thing in "xyz" for shot in "12"]
    photos = find_photos(folder_of(tmp_path / "a", *names, "unlabelled/1.png", "unlabelled/2.png"))
    assert grouped(photos) == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 13]
    # Two folders, such as sharp and blurred, are no list of things.
    few = find_photos(folder_of(tmp_path / "b", *(name for name in names if "z" not in name)))
    assert grouped(few) == list(range(8))


def test_the_time_of_a_shot_is_read_from_every_kind_of_file_and_from_names(tmp_path: Path):
    save(tmp_path / "cat/1.jpg", "2024:05:13 10:11:12", "250")
    save(tmp_path / "cat/2.png", "2024:05:13 10:11:13")
    save(tmp_path / "dog/3.webp", "2024:05:13 10:11:14")
    save(tmp_path / "dog/IMG_20240513_101115.jpg", "not a time")
    save(tmp_path / "dog/20240513_101116.jpg", "2024:05:13 10:11:17")
    folder_of(tmp_path, "dog/IMG_20241399_101115.png")
    (tmp_path / "dog/broken.jpg").write_bytes(b"\xff\xd8\xff\xe1\x00\x10Exif\0\0II*\0\xff\xff\xff\xff")
    photos = find_photos(tmp_path)
    found = dict(zip(photos.names, times_of(photos.names, read_headers(photos)[:, 2]), strict=True))
    start = found["cat/1.jpg"] - 0.25
    assert start == 1715595072
    assert [found[name] - start for name in ("cat/2.png", "dog/3.webp", "dog/IMG_20240513_101115.jpg")] == [1, 2, 3]
    assert found["dog/20240513_101116.jpg"] - start == 5
    assert np.isnan([found["dog/IMG_20241399_101115.png"], found["dog/broken.jpg"]]).all()


def test_a_second_that_many_photos_share_is_no_time(tmp_path: Path):
    for k in range(31):
        save(tmp_path / f"cat/{k}.jpg", "2000:01:01 00:00:00", seed=k)
    save(tmp_path / "dog/a.jpg", "2000:01:01 00:00:05")
    photos = find_photos(tmp_path)
    times = times_of(photos.names, read_headers(photos)[:, 2])
    assert np.isnan(times[:31]).all()
    assert np.isfinite(times[31])


def test_groups_by_folder_time_or_a_column(tmp_path: Path):
    root = folder_of(tmp_path / "photos", "a/1.png", "a/2.png", "b/3.png", "c/4.png", "5.png")
    file = tmp_path / "labels.csv"
    file.write_text("path,plant,label\na/1.png,7,cat\na/2.png,8,cat\nb/3.png,7,dog\nc/4.png,,dog\n")
    photos = find_photos(root, file)
    assert photos.names == ("5.png", "a/1.png", "a/2.png", "b/3.png", "c/4.png")
    near, taken = np.arange(5), np.full(5, np.nan)
    assert find_groups(photos, near, taken, group_by="folder").tolist() == [0, 1, 1, 3, 4]
    assert find_groups(photos, near, taken, group_by="Plant").tolist() == [0, 1, 2, 1, 4]
    # Copies stay together whatever the groups are.
    assert find_groups(photos, np.array([0, 1, 2, 3, 2]), taken, group_by="plant").tolist() == [
        0,
        1,
        2,
        1,
        2,
    ]
    with pytest.raises(InputError, match=r"No photo of .* has the time of its shot .* Group them by folder"):
        find_groups(photos, near, taken, group_by="time")
    with pytest.raises(InputError, match=r"has the columns 'path,plant,label' instead of path,label,tree"):
        find_groups(photos, near, taken, group_by="tree")
    with pytest.raises(InputError, match=r"'tree' is none of the first two, and there is no labels file"):
        find_groups(replace(photos, labels_file=None), near, taken, group_by="tree")


def test_groups_by_time_are_series_with_gaps_of_at_most_a_minute(tmp_path: Path):
    for k, (second, kind) in enumerate([("00", "cat"), ("50", "cat"), ("59", "dog")]):
        save(tmp_path / f"{kind}/{k}.jpg", f"2024:05:13 10:11:{second}", seed=k)
    save(tmp_path / "dog/3.jpg", "2024:05:13 10:13:01", seed=3)
    photos = find_photos(tmp_path)
    assert find_groups(photos, np.arange(4), read_headers(photos)[:, 2], group_by="time").tolist() == [0, 0, 0, 3]


def test_classes_that_are_one_group_each_cannot_be_tested(tmp_path: Path):
    photos = find_photos(folder_of(tmp_path, "cat/1.png", "cat/2.png", "dog/1.png"))
    with pytest.raises(InputError, match=r"Grouped by folder, all labelled photos of each class belong together"):
        find_groups(photos, np.arange(3), np.full(3, np.nan), group_by="folder")
