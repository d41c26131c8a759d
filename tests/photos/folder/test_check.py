from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from meanteacher.files.images import Header, UnreadableError
from meanteacher.photos.folder.cache import Decoded, read_headers
from meanteacher.photos.folder.check import Finding, check
from meanteacher.photos.folder.duplicates import find_duplicates
from meanteacher.photos.folder.find import Photos
from meanteacher.photos.folder.flip import flip_evidence

SIZE = 16
CAT, DOG, FOX = range(3)
NONE = -1


def pictures(n: int) -> np.ndarray:
    coarse = np.random.default_rng(0).uniform(0, 255, (n, 3, 4, 4)).astype(np.uint8)
    return coarse.repeat(4, axis=2).repeat(4, axis=3)


def photos(
    labels: Sequence[int],
    class_names: Sequence[str] = ("cat", "dog"),
    names: Sequence[str] | None = None,
    n_ignored: int = 0,
) -> Photos:
    names = names or [f"{k}.jpg" for k in range(len(labels))]
    return Photos(Path("photos"), tuple(names), np.array(labels), tuple(class_names), None, n_ignored)


def found(
    photos: Photos,
    images: np.ndarray | None = None,
    unreadable: dict[int, str] | None = None,
    shapes: np.ndarray | None = None,
) -> dict[str, Finding]:
    """kind -> finding, but for those of several sentences."""
    images = pictures(len(photos)) if images is None else images
    findings = check(photos, Decoded(images, unreadable or {}), shapes)
    assert all(finding.sentence.endswith(".") for finding in findings)
    assert len({finding.kind for finding in findings}) == len(findings)
    return {finding.kind: finding for finding in findings}


def says(finding: Finding, *words: str) -> bool:
    missing = [word for word in words if word not in finding.sentence]
    assert not missing, f"{finding.sentence!r} does not say {missing}"
    return True


GOOD = [CAT] * 6 + [DOG] * 6 + [NONE] * 20


def test_good_images_give_no_finding_but_how_they_are_mirrored():
    shapes = np.tile([640, 480], (len(GOOD), 1))
    findings = found(photos(GOOD), shapes=shapes)
    assert list(findings) == ["flip"]


def test_what_cannot_be_read_is_told_by_reason():
    unreadable = {20: "truncated", 3: "truncated", 4: "not an image", 21: "truncated", 22: "truncated"}
    findings = check(photos(GOOD), Decoded(pictures(len(GOOD)), unreadable))
    truncated, other = [finding for finding in findings if finding.kind == "unreadable"]
    assert truncated.severity == other.severity == "problem"
    assert truncated.names == ("3.jpg", "20.jpg", "21.jpg", "22.jpg")
    assert other.names == ("4.jpg",)
    assert says(truncated, "4 images ", "(truncated)", "3.jpg, 20.jpg, 21.jpg and 1 more")
    assert says(other, "1 image ", "(not an image)", "4.jpg")


def test_what_is_too_large_to_be_read_should_be_made_smaller():
    finding = found(photos(GOOD), unreadable={1: "too large: 20000x20000 pixels", 2: "too large: 2.0 GB"})["huge"]
    assert finding.severity == "problem"
    assert finding.names == ("1.jpg", "2.jpg")
    assert says(finding, "1.jpg and 2.jpg", "smaller", "16 by 16 pixels")


def test_what_cannot_be_read_is_no_copy_no_plain_image_and_no_label():
    images = pictures(len(GOOD))
    images[[0, 6, 7, 8]] = 0
    findings = found(photos(GOOD), images, dict.fromkeys([0, 6, 7, 8], "gone"))
    assert set(findings) == {"unreadable", "tiny-class", "flip"}
    assert findings["tiny-class"].names == ("dog",)


@pytest.mark.parametrize("other", [NONE, CAT])
def test_exact_copies_are_a_note(other: int):
    images = pictures(len(GOOD))
    images[[14, 30]] = images[2]
    images[15] = images[3]
    labels = list(GOOD)
    labels[14] = other
    finding = found(photos(labels), images)["duplicate"]
    assert finding.severity == "note"
    assert finding.names == ("2.jpg", "14.jpg", "30.jpg", "3.jpg", "15.jpg")
    assert says(finding, "3 images are exact copies", "2.jpg, 14.jpg and 30.jpg")


def test_one_copy_is_told_in_the_singular():
    images = pictures(len(GOOD))
    images[31] = images[30]
    findings = found(photos(GOOD), images)
    assert says(findings["duplicate"], "1 image is an exact copy", "30.jpg and 31.jpg")
    assert "near-duplicate" not in findings


def test_near_copies_are_told_once_beside_exact_ones():
    images = pictures(len(GOOD))
    images[30] = images[31] = np.minimum(images[2], 249) + 4
    findings = found(photos(GOOD), images)
    assert findings["duplicate"].names == ("30.jpg", "31.jpg")
    assert findings["near-duplicate"].names == ("2.jpg", "30.jpg")
    assert says(findings["near-duplicate"], "1 image looks almost the same", "2.jpg and 30.jpg")


def test_a_picture_with_two_labels_is_a_problem_with_names_and_labels():
    images = pictures(len(GOOD))
    images[[1, 7, 30]] = images[0]
    findings = found(photos(GOOD), images)
    assert "duplicate" not in findings
    finding = findings["conflict"]
    assert (finding.severity, finding.names) == ("problem", ("0.jpg", "1.jpg", "7.jpg"))
    assert says(finding, '0.jpg ("cat"), 7.jpg ("dog") and 1.jpg ("cat")', "the same picture with different labels")


def test_pictures_that_look_almost_the_same_should_be_looked_at():
    images = pictures(len(GOOD))
    images[7] = np.minimum(images[0], 249) + 4
    finding = found(photos(GOOD), images)["conflict"]
    assert finding.severity == "problem"
    assert says(finding, '0.jpg ("cat") and 7.jpg ("dog")', "almost the same", "different labels")


def test_copies_of_a_nearly_empty_page_can_be_in_conflict():
    images = pictures(len(GOOD))
    images[0] = 255
    images[0, :, 5, 5] = 0
    images[7] = images[0]
    assert found(photos(GOOD), images)["conflict"].names == ("0.jpg", "7.jpg")


def test_the_ends_of_a_film_may_have_different_labels():
    """A chain of unlabelled images makes its ends one group, not one picture."""
    images = pictures(len(GOOD))
    first, last = images[0].astype(int), images[7].astype(int)
    for t, k in enumerate(range(12, 25), start=1):
        images[k] = first + (last - first) * t // 14
    assert "conflict" not in found(photos(GOOD), images)
    labels = list(GOOD)
    labels[18], labels[19] = CAT, DOG
    assert found(photos(labels), images)["conflict"].names == ("18.jpg", "19.jpg")


def test_many_conflicts_share_a_sentence():
    labels = [CAT] * 20 + [DOG] * 20 + [NONE] * 50
    images = pictures(len(labels))
    images[20:27] = images[:7]
    conflicts = [each for each in check(photos(labels), Decoded(images, {})) if each.kind == "conflict"]
    assert len(conflicts) == 6
    assert conflicts[4].names == ("4.jpg", "24.jpg")
    assert conflicts[5].names == ("5.jpg", "25.jpg", "6.jpg", "26.jpg")
    assert says(conflicts[5], "2 more pictures", '5.jpg ("cat"), 25.jpg ("dog"), 6.jpg ("cat") and 1 more')


def test_plain_images_are_told_as_such_and_not_as_copies():
    images = pictures(len(GOOD))
    images[[0, 7, 8]] = 255
    findings = found(photos(GOOD), images)
    assert set(findings) == {"plain", "flip"}
    assert findings["plain"].severity == "warning"
    assert says(findings["plain"], "3 images ", "0.jpg, 7.jpg and 8.jpg")


def test_a_class_without_a_label_is_a_problem():
    finding = found(photos(GOOD, ["cat", "dog", "fox"]))["no-label-class"]
    assert (finding.severity, finding.names) == ("problem", ("fox",))
    assert says(finding, 'the class "fox"')


@pytest.mark.parametrize(("n", "severity"), [(1, "problem"), (2, "warning"), (4, "warning"), (5, None)])
def test_a_class_with_few_labels_is_told(n: int, severity: str | None):
    findings = found(photos([CAT] * 5 + [DOG] * n + [NONE] * 20))
    assert ("tiny-class" in findings) == (severity is not None)
    if severity:
        assert findings["tiny-class"].severity == severity
        assert findings["tiny-class"].names == ("dog",)


def test_tiny_classes_share_a_sentence():
    class_names = [f"kind {k}" for k in "abcdefg"]
    finding = found(photos([*range(5), *[5] * 9, *[6] * 9, *[NONE] * 40], class_names))["tiny-class"]
    assert finding.names == tuple(class_names[:5])
    assert says(finding, "only one labelled image", 'classes "kind a", "kind b", "kind c" and 2 more')


@pytest.mark.parametrize(("n", "is_told"), [(50, False), (51, True)])
def test_very_unequal_classes_are_a_warning(n: int, is_told: bool):
    findings = found(photos([CAT] * n + [DOG] * 5 + [NONE] * 100, ["cat", "dog", "none of this"]))
    assert ("unequal-classes" in findings) == is_told
    if is_told:
        finding = findings["unequal-classes"]
        assert (finding.severity, finding.names) == ("warning", ("dog",))
        assert says(finding, "51 labelled images", 'the class "dog"')


@pytest.mark.parametrize(
    ("shape", "kind", "severity", "words"),
    [
        ((300, 900), "shape", "warning", ["another shape", "about 1.3 times as wide as high"]),
        ((1200, 310), "shape", "warning", ["another shape"]),
        ((14, 10), "small", "warning", ["fewer than 16 pixels", "about 300"]),
        ((9000, 7000), "huge", "note", ["more than 50 million pixels"]),
    ],
)
def test_an_image_that_stands_out_is_told(shape: tuple[int, int], kind: str, severity: str, words: list[str]):
    shapes = np.tile([400, 300], (len(GOOD), 1))
    shapes[[4, 5]] = 600, 400
    shapes[9] = shape
    findings = found(photos(GOOD), shapes=shapes)
    assert set(findings) == {kind, "flip"}
    assert (findings[kind].severity, findings[kind].names) == (severity, ("9.jpg",))
    assert says(findings[kind], "1 image has ", *words)


def test_shapes_that_are_all_over_the_place_are_a_note():
    shapes = np.array([[160, 90], [90, 160]]).repeat(len(GOOD) // 2, axis=0)
    finding = found(photos(GOOD), shapes=shapes)["shape"]
    assert finding.severity == "note"
    assert "very different shapes" in finding.sentence


@pytest.mark.parametrize(("most", "one"), [(14, 12), (300, 20)])
def test_a_small_image_among_small_ones_or_one_that_is_large_enough_does_not_stand_out(most: int, one: int):
    shapes = np.full((len(GOOD), 2), most)
    shapes[5] = one
    assert list(found(photos(GOOD), shapes=shapes)) == ["flip"]


def test_an_image_that_cannot_be_read_has_no_shape():
    shapes = np.tile([400, 300], (len(GOOD), 1))
    shapes[20] = 300, 900
    assert set(found(photos(GOOD), unreadable={20: "truncated"}, shapes=shapes)) == {"unreadable", "flip"}


def test_unknown_shapes_are_not_judged():
    shapes = np.zeros((len(GOOD), 2), np.int64)
    assert list(found(photos(GOOD), shapes=shapes)) == ["flip"]
    shapes[:20], shapes[3] = (400, 300), (100, 300)
    finding = found(photos(GOOD), shapes=shapes)["shape"]
    assert says(finding, "Of 20 images", "1 image has another shape")


@pytest.mark.parametrize(
    ("rows", "names", "words"),
    [
        ([2, 30], ("2.jpg", "30.jpg"), ["2 images are grey", "30 others", "2.jpg and 30.jpg"]),
        (range(1, 32), ("0.jpg",), ["1 image is in colour", "31 others", "0.jpg"]),
        (range(32), None, []),
    ],
)
def test_grey_among_colours_is_a_note(rows: Sequence[int], names: tuple[str, ...] | None, words: list[str]):
    images = pictures(len(GOOD))
    images[rows] = images[rows][:, :1]
    findings = found(photos(GOOD), images)
    assert ("grey" in findings) == (names is not None)
    if words:
        assert (findings["grey"].severity, findings["grey"].names) == ("note", names)
        assert says(findings["grey"], *words)


@pytest.mark.parametrize(
    ("n", "words"),
    [
        (0, "0 images are unlabelled and 12 labelled"),
        (1, "1 image is unlabelled and 12 labelled"),
        (11, "11 images are unlabelled and 12 labelled"),
        (12, None),
    ],
)
def test_few_unlabelled_images_promise_little(n: int, words: str | None):
    findings = found(photos(GOOD[:12] + [NONE] * n))
    assert ("few-unlabelled" in findings) == (words is not None)
    if words:
        assert findings["few-unlabelled"].severity == "note"
        assert says(findings["few-unlabelled"], words)


def test_files_that_are_passed_over_are_counted():
    assert says(found(photos(GOOD, n_ignored=3))["ignored"], "3 files are ignored")


def test_photos_of_an_unsupported_format_are_listed_with_advice():
    finding = found(photos(GOOD), unreadable={0: "unsupported format .nef", 3: "unsupported format .nef"})["unreadable"]
    assert says(finding, "2 images cannot be read (unsupported format .nef)", "0.jpg and 3.jpg", "Save them as .jpg")


@pytest.mark.parametrize("name", ["unsorted", "Rest", "new", "misc"])
def test_a_folder_that_seldom_is_a_class_is_asked_about(name: str):
    finding = found(photos(GOOD, class_names=("cat", name)))["unsorted"]
    assert says(finding, f'"{name}" is taken for a class', 'name the folder "unlabelled"')
    assert finding.severity == "warning"
    assert "unsorted" not in found(photos(GOOD, class_names=("cat", "newt")))


def test_a_folder_that_was_entered_is_named():
    finding = found(replace(photos(GOOD), root=Path("archive/photos"), is_wrapped=True))["wrapped"]
    assert says(finding, '"photos" is the only one in archive')


ANIMALS = ("cat", "dog", "fish", "hen")
SHOWN, NOT_SHOWN = "Images are also shown mirrored during training", "Images are not mirrored during training"


@pytest.mark.parametrize(
    ("class_names", "flip", "beginning", "words"),
    [
        (ANIMALS, None, SHOWN, ["no class name suggests writing or sides", "add --no-flip"]),
        (
            (*ANIMALS, "stop_sign"),
            None,
            SHOWN,
            ["1 of 5 class names suggests writing", '"stop_sign"', "--no-flip"],
        ),
        (
            ("stop sign", "text", "cat"),
            None,
            NOT_SHOWN,
            ["2 of 3 class names suggest writing", '"stop sign" and "text"', "add --flip"],
        ),
        ((*ANIMALS, "hand_L", "hand_R"), None, NOT_SHOWN, ['a mirror turns "hand_L" into "hand_R"', "add --flip"]),
        (
            ("b", "d", "p", "q"),
            None,
            NOT_SHOWN,
            ['a mirror turns "b" into "d", and likewise for 1 more pair', "add --flip"],
        ),
        (ANIMALS, False, NOT_SHOWN, ["as requested by --no-flip"]),
        (ANIMALS, True, SHOWN, ["as requested by --flip"]),
        (("b", "d"), True, SHOWN, ["as requested by --flip", "Note that 2 of 2 class names suggest"]),
    ],
)
def test_mirroring_is_told_with_its_reason_and_the_way_to_change_it(
    class_names: tuple[str, ...], flip: bool | None, beginning: str, words: list[str]
):
    told = photos(GOOD, class_names)
    (finding,) = [f for f in check(told, Decoded(pictures(len(GOOD)), {}), flip=flip) if f.kind == "flip"]
    assert finding.sentence.startswith(beginning)
    assert says(finding, *words)
    assert (beginning == SHOWN) is (flip_evidence(class_names).is_safe if flip is None else flip)


def test_duplicates_that_are_known_are_not_searched_again(monkeypatch: pytest.MonkeyPatch):
    images = pictures(len(GOOD))
    images[31], images[7] = images[30], images[0]
    decoded = Decoded(images, {})
    expected, known = check(photos(GOOD), decoded), find_duplicates(images)
    monkeypatch.setattr("meanteacher.photos.folder.check.find_duplicates", lambda _: pytest.fail("searched again"))
    assert check(photos(GOOD), decoded, duplicates=known) == expected


def test_problems_come_first_and_notes_last():
    images = pictures(20)
    images[1], images[16] = images[0], images[2]
    findings = check(photos([CAT] * 16 + [DOG] * 3 + [NONE]), Decoded(images, {18: "gone"}))
    told = ["unreadable", "conflict", "tiny-class", "duplicate", "few-unlabelled", "flip"]
    assert [finding.kind for finding in findings] == told


def test_strange_names_can_be_printed():
    names = [f"{k}\udcff\n.jpg" for k in range(len(GOOD))]
    images = pictures(len(GOOD))
    images[30] = images[29]
    unreadable = dict.fromkeys(range(1, 6), "gone")
    findings = found(photos(GOOD, ["cat\n", "dog{0}"], names=names), images, unreadable)
    assert findings["unreadable"].names[0] == "1\\xff\\x0a.jpg"
    assert findings["duplicate"].names == ("29\\xff\\x0a.jpg", "30\\xff\\x0a.jpg")
    assert findings["tiny-class"].names == ("cat\\x0a",)
    for finding in findings.values():
        assert "\n" not in finding.sentence
        finding.sentence.encode()


def test_without_any_class_there_is_still_something_to_check():
    assert "flip" in found(photos([NONE] * 4, ()))


def test_shapes_are_read_from_the_headers(tmp_path: Path):
    Image.new("RGB", (7, 5)).save(tmp_path / "a.png")
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.new("RGB", (9, 4)).save(tmp_path / "b.jpg", exif=turned)
    (tmp_path / "c.jpg").write_bytes(b"no image")
    names = ("a.png", "b.jpg", "c.jpg", "gone.jpg")
    files = Photos(tmp_path, names, np.array([0, 1, NONE, NONE]), ("cat", "dog"), None)
    shapes = read_headers(files)[:, :2]
    assert shapes[:2].tolist() == [[7, 5], [4, 9]]
    assert np.isnan(shapes[2:]).all()


def test_shapes_of_an_array_are_all_the_same():
    arrays = np.zeros((3, 5, 8, 3), np.uint8)
    content = Photos(Path("a.npz"), ("image 0", "image 1", "image 2"), np.array([0, 1, NONE]), ("cat", "dog"), arrays)
    assert read_headers(content)[:, :2].tolist() == [[8, 5]] * 3


def test_of_very_many_files_labelled_ones_and_some_from_first_to_last_are_looked_at(monkeypatch: pytest.MonkeyPatch):
    looked_at = []

    def header(path: Path) -> Header:
        looked_at.append(path.name)
        if len(looked_at) == 2:
            raise UnreadableError("truncated")
        return Header(4, 3, "RGB", np.nan)

    monkeypatch.setattr("meanteacher.photos.folder.cache.header", header)
    monkeypatch.setattr("meanteacher.photos.folder.cache._MAX_HEADERS", 4)
    shapes = read_headers(photos([NONE] * 7 + [0, 1] + [NONE]))[:, :2]
    assert looked_at == ["0.jpg", "3.jpg", "6.jpg", "7.jpg", "8.jpg", "9.jpg"]
    assert np.flatnonzero(np.isfinite(shapes).all(axis=1)).tolist() == [0, 6, 7, 8, 9]
