"""What must hold between a person's files and what is learned from: whose pixels, whose label, which class."""

import os

import numpy as np
from catalogue import refused, temporary_folder
from fit_world import decoded
from PIL import Image

from meanteacher.core import UNLABELLED
from meanteacher.files.images import decode
from meanteacher.photos.folder.cache import decode_all
from meanteacher.photos.folder.find import Photos, find_photos
from meanteacher.photos.folder.tables import read_npz
from photo_support import folder_of, picture, save

_SIZE = 8


def _labelled(photos: Photos) -> dict[str, str | None]:
    """name -> class, None where there is no label."""
    return {
        name: None if label == UNLABELLED else photos.class_names[label]
        for name, label in zip(photos.names, photos.labels, strict=True)
    }


def a_photo_stands_upright_in_its_colours() -> None:
    """A picture of four colours, in every way that a camera may have held it, and over white where it is clear."""
    quarters = np.array([[[250, 0, 0], [0, 250, 0]], [[0, 0, 250], [250, 250, 0]]], np.uint8)
    upright = Image.fromarray(quarters.repeat(16, 0).repeat(16, 1))
    turns = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
    with temporary_folder() as folder:
        for orientation in (1, *turns):
            stored = upright.transpose(turns[orientation]) if orientation in turns else upright
            exif = Image.Exif()
            exif[0x0112] = orientation
            for kind, close in (("jpg", 12), ("png", 0)):
                path = folder / f"{orientation}.{kind}"
                stored.save(path, exif=exif, quality=98)
                found = decode(path, _SIZE).astype(int)[[1, 1, 6, 6], [1, 6, 1, 6]]
                assert abs(found - quarters.reshape(4, 3)).max() <= close, f"{path.name}: turned, or other colours"
        Image.new("RGBA", (16, 16), (10, 20, 30, 0)).save(folder / "clear.png")
        assert (decode(folder / "clear.png", _SIZE) == 255).all(), "what is transparent is not white"


def a_photo_keeps_the_detail_of_its_size() -> None:
    """A JPEG can be decoded at an eighth of its size, which is cheap, and too small here."""
    blocks = np.random.default_rng(0).integers(0, 256, (25, 25, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
    with temporary_folder() as folder:
        Image.fromarray(blocks).save(folder / "a.jpg", quality=95)
        away = abs(decode(folder / "a.jpg", 64).astype(int) - decoded(folder / "a.jpg", 64)).mean()
    assert away < 4, f"pixels are {away:.0f} away from those of the whole image"


def pixels_belong_to_their_names() -> None:
    """Also after a file was added, and another one has changed."""
    with temporary_folder() as folder:
        root = folder / "photos"
        for number, name in enumerate(("a/1.png", "a/2.png", "b/1.png", "b/2.png", "unlabelled/1.png")):
            save(root / name, number, 20, 14)
        for change in ("none", "added", "changed"):
            if change == "added":
                save(root / "a" / "0.png", 9, 20, 14)
            if change == "changed":
                save(root / "b" / "1.png", 10, 20, 14)
                later = (root / "b" / "1.png").stat().st_mtime_ns + 10**9
                os.utime(root / "b" / "1.png", ns=(later, later))
            photos = find_photos(root)
            images = decode_all(photos, _SIZE, folder / "cache").images
            for name, image in zip(photos.names, images, strict=True):
                expected = decoded(root / name, _SIZE).transpose(2, 0, 1)
                assert np.array_equal(image, expected), f"{change}: {name} has the pixels of another, or old ones"


def an_image_is_of_the_class_of_its_folder() -> None:
    with temporary_folder() as folder:
        names = ("zebra/0.png", "Zoo/1.png", "ant/2.png", "unlabelled/3.png", "4.png")
        photos = find_photos(folder_of(folder / "photos", *names))
    known = {"zebra/0.png": "zebra", "Zoo/1.png": "Zoo", "ant/2.png": "ant", "unlabelled/3.png": None, "4.png": None}
    assert _labelled(photos) == known, "an image is of another class than its folder says"
    assert photos.class_names == tuple(sorted(("zebra", "Zoo", "ant"))), "classes are in an order of their own"


def a_row_of_the_labels_file_labels_the_image_it_names() -> None:
    with temporary_folder() as folder:
        root = folder_of(folder / "photos", "1.png", "2.png", "3.png", "4.png", "5.png")
        said = {"4.png": "yew", "1.png": "oak", "2.png": "ash", "3.png": "yew"}
        rows = [f"{name},{label}\n" for name, label in said.items()]
        file = folder / "labels.csv"
        file.write_text("path,label\n" + "".join(rows))
        photos = find_photos(root, file)
        assert _labelled(photos) == {**said, "5.png": None}, "a label is lost, or another image's"
        for contradiction in ("1.png,yew\n", "./1.png,ash\n"):
            file.write_text("path,label\n" + "".join(rows) + contradiction)
            refused(lambda: find_photos(root, file), "a second label of an image")
        root = folder_of(folder / "more", "oak/1.png", "ash/2.png", "oak/3.png", "unlabelled/4.png")
        file.write_text("path,label\noak/1.png,ash\n")
        refused(lambda: find_photos(root, file), "a label that its folder contradicts")


def an_array_is_read_in_its_own_layout() -> None:
    pictures = np.stack([np.asarray(picture(seed, 12, 9)) for seed in range(4)])
    with temporary_folder() as folder:
        for name, images in (
            ("last", pictures),
            ("first", pictures.transpose(0, 3, 1, 2)),
            ("fractions", pictures / np.float64(255)),
        ):
            np.savez(folder / "a.npz", images=images, labels=np.array([2, -1, 0, 1]), class_names=["x", "b", "n"])
            found = read_npz(folder / "a.npz")
            assert np.array_equal(found.images, pictures), f"{name}: other pixels"
        photos = find_photos(folder / "a.npz")
    assert list(_labelled(photos).values()) == ["n", None, "x", "b"], "numbers of labels are those of other classes"


DETECTORS = (
    a_photo_stands_upright_in_its_colours,
    a_photo_keeps_the_detail_of_its_size,
    pixels_belong_to_their_names,
    an_image_is_of_the_class_of_its_folder,
    a_row_of_the_labels_file_labels_the_image_it_names,
    an_array_is_read_in_its_own_layout,
)
