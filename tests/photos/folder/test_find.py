"""A folder of images with few labels, in every way that people keep one."""

import io
import os
from pathlib import Path

import numpy as np
import pytest

from meanteacher.core import InputError
from meanteacher.formats import escape_name
from meanteacher.photos.folder.find import EXTENSIONS, Photos, find_photos
from photo_support import folder_of, save


def labelled(photos: Photos) -> dict[str, str]:
    """name -> class, empty for none."""
    return {
        name: "" if label < 0 else photos.class_names[label]
        for name, label in zip(photos.names, photos.labels.tolist(), strict=True)
    }


def csv(root: Path, *rows: str, name: str = "labels.csv") -> Path:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("\n".join(("path,label", *rows)) + "\n", encoding="utf-8", errors="surrogateescape")
    return root / name


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two classes, and an image of neither."""
    return folder_of(tmp_path / "photos", "cat/1.png", "cat/2.png", "dog/1.png", "unlabeled/1.png")


def test_folders_are_classes(two: Path) -> None:
    photos = find_photos(two)
    assert photos.names == ("cat/1.png", "cat/2.png", "dog/1.png", "unlabeled/1.png")
    assert photos.labels.tolist() == [0, 0, 1, -1]
    assert photos.labels.dtype == np.int64
    assert photos.class_names == ("cat", "dog")
    assert photos.arrays is None
    assert len(photos) == 4
    assert photos.path(2) == two / "dog" / "1.png"


@pytest.mark.parametrize("name", ["unlabeled", "unlabelled", "Unlabelled", "UNLABELED"])
def test_the_folder_without_a_class_has_two_spellings(name: str, tmp_path: Path) -> None:
    photos = find_photos(folder_of(tmp_path, "a/1.png", "b/1.png", f"{name}/deep/1.png"))
    assert photos.class_names == ("a", "b")
    assert labelled(photos)[f"{name}/deep/1.png"] == ""


def test_folders_below_a_class_belong_to_it_and_images_in_no_folder_to_none(tmp_path: Path) -> None:
    photos = find_photos(folder_of(tmp_path, "a/x/y/1.png", "a/unlabeled/1.png", "b/1.png", "0.png"))
    assert labelled(photos) == {"0.png": "", "a/unlabeled/1.png": "a", "a/x/y/1.png": "a", "b/1.png": "b"}


def test_names_are_in_the_plain_order_of_strings(tmp_path: Path) -> None:
    names = ["a/10.png", "a/9.png", "a-b/1.png", "a/b/1.png", "B/1.png", "ä/1.png"]
    assert list(find_photos(folder_of(tmp_path, *names)).names) == sorted(names)


def test_only_images_count_by_their_extension_and_none_that_is_hidden(two: Path) -> None:
    for name in ("cat/.hidden.png", ".trash/1.png", "cat/._1.png"):
        save(two / name)
    for name in ("notes.txt", "cat/Thumbs.db", "dog/png", "docs/readme.md"):
        (two / name).parent.mkdir(exist_ok=True)
        (two / name).touch()
    (two / "cat" / "folder.jpg").mkdir()
    os.mkfifo(two / "cat" / "pipe.jpg")
    photos = find_photos(two)
    assert len(photos) == 4
    assert photos.class_names == ("cat", "dog")
    assert photos.n_ignored == 5


@pytest.mark.parametrize("extension", [*sorted(EXTENSIONS), "JPG", "Jpeg", "TIFF"])
def test_the_extensions_of_images(extension: str, two: Path) -> None:
    assert len(EXTENSIONS) == 13
    (two / "dog" / f"x.{extension}").touch()
    assert f"dog/x.{extension}" in find_photos(two).names


def test_classes_may_be_many_and_unequal(tmp_path: Path) -> None:
    folder_of(tmp_path, "photos/0000/1.png", *(f"photos/0001/{k}.png" for k in range(9)))
    for k in range(2, 1000):
        (tmp_path / "photos" / f"{k:04}").mkdir()
        (tmp_path / "photos" / f"{k:04}" / "x.png").touch()
    photos = find_photos(tmp_path / "photos")
    assert len(photos.class_names) == 1000
    assert np.bincount(photos.labels)[:3].tolist() == [1, 9, 1]
    (tmp_path / "photos" / "one too many").mkdir()
    (tmp_path / "photos" / "one too many" / "x.png").touch()
    with pytest.raises(InputError, match="has 1001 classes: at most 1000"):
        find_photos(tmp_path / "photos")


def test_a_csv_names_the_classes_and_folders_mean_nothing(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "photos", "2023/1.png", "2023/2.png", "2024/x/1.png", "3.png")
    photos = find_photos(root, csv(tmp_path, "2023/1.png,cat", "3.png,dog", "2023/2.png,"))
    assert labelled(photos) == {"2023/1.png": "cat", "2023/2.png": "", "2024/x/1.png": "", "3.png": "dog"}


def test_a_csv_adds_to_class_folders_where_some_images_are_unlabelled(two: Path) -> None:
    save(two / "unlabeled" / "2.png")
    photos = find_photos(two, csv(two, "unlabeled/1.png,bird", "cat/1.png,cat", "cat/2.png,"))
    assert labelled(photos) == {
        "cat/1.png": "cat",
        "cat/2.png": "cat",
        "dog/1.png": "dog",
        "unlabeled/1.png": "bird",
        "unlabeled/2.png": "",
    }


def test_a_csv_may_not_contradict_the_class_folders(two: Path) -> None:
    rows = csv(two, "unlabeled/1.png,dog", "cat/2.png,dog")
    with pytest.raises(InputError, match=r"row 3 labels 'cat/2.png' as 'dog', but .* the class 'cat'"):
        find_photos(two, rows)


def test_paths_in_a_csv_may_start_at_the_photos_the_csv_or_the_top(two: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(two)
    for root in (two, link, Path(os.path.relpath(two))):
        for rows in (
            ("unlabeled/1.png,a", "unlabeled/2.png,b"),
            ("./unlabeled//1.png,a", "cat/../unlabeled/2.png,b"),
            ("photos/unlabeled/1.png,a", "./photos/unlabeled/2.png,b"),
            (f"{two}/unlabeled/1.png,a", f"{root.absolute()}/unlabeled/2.png,b"),
            ("unlabeled\\1.png,a", " unlabeled/2.png ,b"),
        ):
            save(two / "unlabeled" / "2.png")
            found = labelled(find_photos(root, csv(tmp_path, *rows)))
            assert (found["unlabeled/1.png"], found["unlabeled/2.png"]) == ("a", "b")
    inside = csv(two, "../unlabeled/1.png,a", name="tables/labels.csv")
    assert labelled(find_photos(two, inside))["unlabeled/1.png"] == "a"


def test_a_path_as_it_stands_goes_before_any_other_reading_of_it(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "photos", "a\\1.png", "a/1.png", " b.png", "b.png")
    photos = find_photos(root, csv(tmp_path, "a\\1.png,x", " b.png,y"))
    assert labelled(photos) == {"a\\1.png": "x", "a/1.png": "", " b.png": "y", "b.png": ""}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["cat/1.png,a", "cat/9.png,b"], r"row 3: there is no image 'cat/9.png' in .*photos"),
        (["cat/1.png,a", "notes.txt,b"], r"row 3: there is no image 'notes.txt'"),
        (["cat/1.png,a", "../secret.png,b"], r"row 3: '../secret.png' is outside .*photos"),
        (["cat/1.png,a", "/etc/passwd,b"], r"row 3: '/etc/passwd' is outside"),
        (["cat/1.png,a", "cat/caf\udce9.png,b"], r"row 3 has a path that is not UTF-8 .* \"CSV UTF-8\""),
        (["cat/1.png,a", "dog/1.png,a", "cat/1.png,b"], r"has 'cat/1.png' twice: 'a' in row 2 and 'b' in row 4"),
        (["cat/1.png,a", "./cat/1.png,b"], r"has 'cat/1.png' twice: 'a' in row 2 and 'b' in row 3"),
        (["cat/1.png,", "cat/2.png,  "], r"No image of .*photos has a label"),
        (["cat/1.png,a", "cat/2.png, a "], r"All labels of .*photos are 'a': label images of at least one more class"),
        ([], r"No image of .*photos has a label"),
    ],
)
def test_a_wrong_row_is_refused_by_its_number(rows: list[str], words: str, tmp_path: Path) -> None:
    root = folder_of(tmp_path / "photos", "cat/1.png", "cat/2.png", "dog/1.png")
    (root / "notes.txt").touch()
    save(tmp_path / "secret.png")
    file = csv(tmp_path, *rows)
    with pytest.raises(InputError, match=words):
        find_photos(root, file)


def test_the_same_row_twice_is_no_contradiction(two: Path) -> None:
    file = csv(two, "unlabeled/1.png,cat", "unlabeled/1.png,", "unlabeled/1.png,cat")
    assert labelled(find_photos(two, file))["unlabeled/1.png"] == "cat"


def test_a_folder_that_is_none_is_said_to_be(tmp_path: Path) -> None:
    file = save(tmp_path / "1.png")
    with pytest.raises(InputError, match=r"There is no folder .*nowhere: give a folder of images"):
        find_photos(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"1.png is a file: give a folder of images, or an .npz file"):
        find_photos(file)
    with pytest.raises(InputError, match=r"There is no file .*labels.csv"):
        find_photos(tmp_path, tmp_path / "labels.csv")


def test_a_folder_without_images_or_labels_or_classes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is empty: give a folder with images \(bmp, gif"):
        find_photos(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InputError, match=r"1 file but no image"):
        find_photos(tmp_path)
    save(tmp_path / "unlabeled" / "1.png")
    save(tmp_path / "2.png")
    with pytest.raises(InputError, match=r"No image of .* has a label: .* folders named after the classes"):
        find_photos(tmp_path)
    save(tmp_path / "cat" / "1.png")
    with pytest.raises(InputError, match=r"All labels of .* are 'cat'"):
        find_photos(tmp_path)


def test_a_folder_that_may_not_be_read_is_named(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = os.scandir

    def refuse(path: Path) -> object:
        if path.name == "dog":
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr("meanteacher.photos.folder.find.os.scandir", refuse)
    with pytest.raises(InputError, match=r"Cannot read the folder .*photos/dog \(Permission denied\)"):
        find_photos(two)


def test_loops_of_links_end_and_each_image_is_found_where_it_lies(two: Path, tmp_path: Path) -> None:
    (two / "cat" / "again").symlink_to(two)
    (two / "a link to dog").symlink_to(two / "dog")
    (two / "self").symlink_to("self")
    (two / "self.png").symlink_to("self.png")
    folder_of(tmp_path / "elsewhere", "deep/7.png")
    (two / "unlabeled" / "more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(two / "unlabeled")
    assert labelled(find_photos(two)) == {
        "cat/1.png": "cat",
        "cat/2.png": "cat",
        "dog/1.png": "dog",
        "self.png": "",
        "unlabeled/1.png": "",
        "unlabeled/more/deep/7.png": "",
    }


def test_links_to_files_are_followed_and_those_to_nowhere_are_kept_as_unreadable(two: Path, tmp_path: Path) -> None:
    save(tmp_path / "real.png")
    (two / "cat" / "link.png").symlink_to(tmp_path / "real.png")
    (two / "cat" / "broken.png").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    (two / "cat" / "pipe.png").symlink_to(tmp_path / "pipe")
    names = find_photos(two).names
    assert {"cat/link.png", "cat/broken.png"} < set(names)
    assert "cat/pipe.png" not in names


@pytest.mark.parametrize("target", ["/", "..", "."])
def test_a_link_to_a_folder_that_contains_the_photos_is_not_followed(target: str, two: Path) -> None:
    before = find_photos(two).names
    (two / "cat" / "everything").symlink_to(target if target == "/" else two / target)
    assert find_photos(two).names == before


def test_photos_that_cannot_be_read_are_found_by_their_names(two: Path) -> None:
    for name in ("cat/a.HEIC", "dog/b.nef", "dog/c.avif"):
        (two / name).write_bytes(b"?")
    (two / "dog/d.mov").write_bytes(b"?")
    found = find_photos(two)
    assert {"cat/a.HEIC", "dog/b.nef", "dog/c.avif"} < set(found.names)
    assert found.n_ignored == 1


def test_a_folder_within_a_folder_is_entered(tmp_path: Path) -> None:
    names = ("cat/1.png", "dog/2.png", "unlabelled/3.png")
    folder_of(tmp_path / "archive", *(f"photos/{name}" for name in names), "photos/._x.png", "photos/cat/more/4.png")
    found = find_photos(tmp_path / "archive")
    assert found.root == tmp_path / "archive" / "photos"
    assert found.names == ("cat/1.png", "cat/more/4.png", "dog/2.png", "unlabelled/3.png")
    assert found.is_wrapped
    assert found.path(0).is_file()


@pytest.mark.parametrize(
    "names",
    [("cat/1.png", "dog/2.png"), ("cat/1.png", "0.png"), ("cat/1.png", "cat/2.png"), ("cat/a/1.png", "cat/2.png")],
    ids=["two classes", "beside", "one class", "one deep"],
)
def test_other_folders_are_not_entered(names: tuple[str, ...], tmp_path: Path) -> None:
    found = find_photos(folder_of(tmp_path, *names), min_classes=1)
    assert (found.root, found.is_wrapped) == (tmp_path, False)


def test_names_that_are_not_utf8_open_and_can_be_printed(two: Path) -> None:
    raw = os.fsencode(two) + b"/caf\xe9"
    os.mkdir(raw)  # noqa: PTH102 - a path of bytes
    save(two / "x.png").rename(os.fsdecode(raw + b"/1\xff.png"))
    photos = find_photos(two)
    name = "caf\udce9/1\udcff.png"
    assert name in photos.names
    assert photos.path(photos.names.index(name)).stat().st_size > 0
    assert escape_name(name) == "caf\\xe9/1\\xff.png"
    assert photos.class_names == ("caf\\xe9", "cat", "dog")
    "".join(photos.class_names).encode()
    file = csv(two, "unlabeled/1.png,cat", f"{name},caf\\xe9")
    assert labelled(find_photos(two, file))[name] == "caf\\xe9"


@pytest.mark.parametrize("name", ["a.jpg", "ä b'\".jpg", "日本\u202f.png"])
def test_a_name_that_can_be_printed_stays(name: str) -> None:
    assert escape_name(name) == name


def test_nothing_in_a_name_can_command_a_terminal() -> None:
    assert escape_name("\x1b[2J\r\n\x9b\ud800") == "\\x1b[2J\\x0d\\x0a\\x9b\\ud800"


def npz(root: Path, **arrays: object) -> Path:
    given = {"images": np.zeros((4, 6, 5), np.uint8), "labels": np.array([0, 1, -1, 1])} | arrays
    np.savez(root / "photos.npz", **{name: array for name, array in given.items() if array is not None})
    return root / "photos.npz"


def test_arrays_are_images_with_labels(tmp_path: Path) -> None:
    photos = find_photos(npz(tmp_path))
    assert photos.names == ("image 0", "image 1", "image 2", "image 3")
    assert photos.labels.tolist() == [0, 1, -1, 1]
    assert photos.class_names == ("0", "1")
    assert photos.arrays is not None
    assert photos.arrays.shape == (4, 6, 5, 3)


@pytest.mark.parametrize("shape", [(4, 6, 5), (4, 6, 5, 1), (4, 1, 6, 5), (4, 6, 5, 3), (4, 3, 6, 5)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
def test_every_layout_of_arrays_becomes_one(shape: tuple[int, ...], dtype: type, tmp_path: Path) -> None:
    levels = np.arange(4 * 6 * 5 * 3).reshape(4, 6, 5, 3) % 256
    levels = levels if 3 in shape else levels[..., :1].repeat(3, axis=3)
    given = levels.transpose(0, 3, 1, 2) if shape[1] in (1, 3) else levels
    given = given[:, :1] if shape[1] == 1 else given[..., :1] if shape[-1] == 1 else given
    given = given[..., 0] if len(shape) == 3 else given
    assert given.shape == shape
    given = given.astype(np.uint8) if dtype is np.uint8 else (given / 255).astype(dtype)
    arrays = find_photos(npz(tmp_path, images=given)).arrays
    assert arrays is not None
    assert arrays.dtype == np.uint8
    assert np.array_equal(arrays, levels)


def test_arrays_may_bring_names_and_classes(tmp_path: Path) -> None:
    file = npz(tmp_path, names=["d", "c", "b", "a"], class_names=["dog", "cat", "bird"])
    photos = find_photos(file)
    assert photos.names == ("d", "c", "b", "a")
    assert photos.class_names == ("bird", "cat", "dog")
    assert labelled(photos) == {"d": "dog", "c": "cat", "b": "", "a": "cat"}


def test_labels_in_arrays_may_be_text(tmp_path: Path) -> None:
    photos = find_photos(npz(tmp_path, labels=["dog", " cat ", "", "  "]))
    assert list(labelled(photos).values()) == ["dog", "cat", "", ""]


def test_ten_classes_or_more_are_ordered_as_text_and_keep_their_meaning(tmp_path: Path) -> None:
    photos = find_photos(npz(tmp_path, labels=np.array([2, 10, 2, 1])))
    assert photos.class_names == ("1", "10", "2")
    assert list(labelled(photos).values()) == ["2", "10", "2", "1"]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"images": None}, r"contains labels but no array named images"),
        ({"labels": None}, r"No image of .* has a label: .* the array labels"),
        ({"images": np.zeros((4, 6))}, r"images has the shape \(4, 6\), expected \[N, H, W\]"),
        ({"images": np.zeros((4, 6, 5, 2), np.uint8)}, r"images has the shape \(4, 6, 5, 2\)"),
        ({"images": np.zeros((0, 6, 5), np.uint8)}, r"images has the shape \(0, 6, 5\)"),
        ({"images": np.zeros((4, 6, 5), np.int64)}, r"images is int64, expected uint8, or float from 0 to 1"),
        ({"images": np.full((4, 6, 5), 255.0)}, r"images is float from 255 to 255, expected 0 to 1"),
        ({"images": np.full((4, 6, 5), np.nan)}, r"images is float from nan to nan"),
        ({"labels": np.array([0, 1])}, r"labels has the shape \(2,\), expected \(4,\)"),
        ({"labels": np.array([0, 1, -2, 1])}, r"labels\[2\] is -2, expected -1 for none, or 0 to 1"),
        ({"class_names": ["a"]}, r"labels\[1\] is 1, expected -1 for none, or 0 to 0"),
        ({"class_names": ["a", "a"]}, r"class_names contains 'a' 2 times"),
        ({"class_names": ["a", " "]}, r"class_names contains an empty name"),
        (
            {"labels": ["a", "b", "", "c"], "class_names": ["a", "b"]},
            r"labels contains 'c', which is not in class_names",
        ),
        ({"labels": np.array([0.0, 1, -1, 1])}, r"labels is float64 .* expected a list of str"),
        ({"labels": np.array([0, 1, None, 1], object)}, r"photos.npz cannot be read .* write it with numpy.savez"),
        ({"names": ["a", "b", "a", "c"]}, r"names contains 'a' 2 times"),
        ({"names": ["a"]}, r"names has the shape \(1,\), expected \(4,\)"),
        ({"labels": np.full(4, -1)}, r"No image of .* has a label: .* the array labels"),
        ({"labels": np.zeros(4, int)}, r"All labels of .* are '0'"),
    ],
)
def test_wrong_arrays_are_refused_by_name(arrays: dict[str, object], words: str, tmp_path: Path) -> None:
    file = npz(tmp_path, **arrays)
    with pytest.raises(InputError, match=words):
        find_photos(file)


def test_a_file_that_is_no_npz_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"There is no file .*photos.npz"):
        find_photos(tmp_path / "photos.npz")
    whole = npz(tmp_path).read_bytes()
    one = io.BytesIO()
    np.save(one, np.zeros(3))
    for data in (b"", b"nonsense", whole[: len(whole) // 2], one.getvalue()):
        (tmp_path / "photos.npz").write_bytes(data)
        with pytest.raises(InputError, match=r"photos.npz cannot be read"):
            find_photos(tmp_path / "photos.npz")


def test_arrays_hold_their_labels_themselves(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"photos.npz contains its labels: leave out .*labels.csv"):
        find_photos(npz(tmp_path), tmp_path / "labels.csv")
