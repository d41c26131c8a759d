"""Photos to shards."""

import gc
import json
import os
import signal
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import meanteacher as mt
from forking import run_script
from meanteacher.cli.app import app
from meanteacher.core import UNLABELLED, InputError, Interrupted
from meanteacher.data import EncodedDataset
from meanteacher.data.shards import Shards
from meanteacher.data.shards.index import index_path, load_index
from meanteacher.photos.folder.packing import Packed, pack
from shard_support import picture


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of four, and three without a label."""
    for k in range(11):
        folder = ("cat", "dog", "unlabelled")[k % 3 if k < 9 else k - 9]
        file = tmp_path / "photos" / folder / (f"{k}.jpg" if k % 2 else f"{k}.png")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(picture(k, kind="JPEG" if k % 2 else "PNG"))
    return tmp_path / "photos"


def read_back(packed: Packed) -> dict[str, tuple[bytes, int]]:
    """name -> bytes and label, as a recipe reads them."""
    pattern = str(packed.shards[0].parent / "*.tar")
    dataset = Shards(train=pattern, test=pattern, max_broken=1000).load(packed.shards[0].parent).train
    assert isinstance(dataset, EncodedDataset)
    assert dataset.class_names == packed.class_names
    names = enumerate(dataset.files.names)
    return {name: (dataset.files.read(k), int(dataset.labels[k])) for k, name in names}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != ".lock"}


def run_command(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["pack", *map(str, words)])
    return result.exit_code, " ".join(result.output.split())


def test_images_are_copied_byte_by_byte_with_their_labels(photos: Path, tmp_path: Path):
    packed = mt.pack(photos, tmp_path / "train", images_per_shard=4)
    assert [path.name for path in packed.shards] == [f"train-00000{k}.tar" for k in range(3)]
    assert (packed.n_images, packed.n_labelled, packed.class_names) == (11, 8, ("cat", "dog"))
    labels = {"cat": 0, "dog": 1, "unlabelled": UNLABELLED}
    files = [path for path in photos.rglob("*") if path.is_file()]
    assert read_back(packed) == {
        path.relative_to(photos).as_posix(): (path.read_bytes(), labels[path.parent.name]) for path in files
    }


def test_the_command_says_what_it_wrote(photos: Path, tmp_path: Path):
    (photos / "cat" / "junk.jpg").write_bytes(b"no image")
    code, shown = run_command(photos, "--shards", tmp_path / "train", "--images-per-shard", 6)
    assert code == 0
    assert "11 images in 2 shards" in shown
    assert "8 labelled in 2 classes, 3 unlabelled" in shown
    assert "1 image cannot be read and were left out: 'cat/junk.jpg' (not an image)" in shown
    assert "train-000000.tar to train-000001.tar" in shown


def test_the_same_photos_become_the_same_bytes_in_mixed_order(photos: Path, tmp_path: Path):
    for name in ("a", "b"):
        pack(photos, tmp_path / name / "train")
    assert contents(tmp_path / "a" / "train") == contents(tmp_path / "b" / "train")
    classes = [
        name.partition("/")[0] for name in load_index(tmp_path / "a" / "train" / "train-000000.index.jsonl").names
    ]
    assert classes != sorted(classes)


def test_shards_have_about_the_size_that_is_asked_for(photos: Path, tmp_path: Path):
    packed = pack(photos, tmp_path / "train", megabytes=0.01)
    assert len(packed.shards) > 2
    assert max(path.stat().st_size for path in packed.shards) <= 10_000 + 1024
    assert sum(len(load_index(index_path(path))) for path in packed.shards) == 11


def test_names_that_would_be_ambiguous_are_changed(tmp_path: Path):
    for k, name in enumerate(["cat/a.png", "cat/a.jpg", "cat/b.c.png", "dog/caf\udce9 \n.png", "dog/wrong.jpg"]):
        file = tmp_path / "photos" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(picture(k))
    found = read_back(pack(tmp_path / "photos", tmp_path / "train"))
    names = {"cat/a.png": 1, "cat/a_2.png": 0, "cat/b_c.png": 2, "dog/caf\udce9 \n.png": 3, "dog/wrong.png": 4}
    assert found.keys() == {name if k != 1 else "cat/a.png" for name, k in names.items()}
    assert {content for content, _ in found.values()} == {picture(k) for k in range(5)}


def test_other_formats_become_png_without_loss(photos: Path, tmp_path: Path):
    pixels = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    for extension in ("bmp", "webp", "tif"):
        Image.fromarray(pixels).save(photos / "cat" / f"x_{extension}.{extension}", lossless=True)
    found = read_back(pack(photos, tmp_path / "train"))
    for extension in ("bmp", "webp", "tif"):
        content, label = found[f"cat/x_{extension}.png"]
        (tmp_path / "x.png").write_bytes(content)
        with Image.open(tmp_path / "x.png", formats=["PNG"]) as image:
            assert np.array_equal(np.asarray(image), pixels)
        assert label == 0


def test_labels_can_be_a_table_and_there_may_be_none(photos: Path, tmp_path: Path):
    flat = tmp_path / "flat"
    flat.mkdir()
    for k in range(4):
        (flat / f"{k}.png").write_bytes(picture(k))
    (tmp_path / "labels.csv").write_text("path,label\n0.png,cat\n1.png,dog\n")
    labelled = pack(flat, tmp_path / "train", labels=tmp_path / "labels.csv")
    assert {name: label for name, (_, label) in read_back(labelled).items()} == {
        "0.png": 0,
        "1.png": 1,
        "2.png": UNLABELLED,
        "3.png": UNLABELLED,
    }
    unlabelled = pack(flat, tmp_path / "more")
    assert (unlabelled.n_images, unlabelled.n_labelled, unlabelled.class_names) == (4, 0, ())
    data = Shards(train="train/*.tar", unlabelled="more/*.tar", test="train/*.tar").load(tmp_path)
    assert len(data.train) == 8
    assert data.train.class_names == ("cat", "dog")


def test_arrays_become_png(tmp_path: Path):
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "photos.npz", images=images, labels=np.array([0, 1, -1, 0]))
    packed = pack(tmp_path / "photos.npz", tmp_path / "train")
    assert (packed.n_images, packed.n_labelled) == (4, 3)
    assert all(content.startswith(b"\x89PNG") for content, _ in read_back(packed).values())


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # it leaves its files open
def test_what_pack_writes_is_read_by_webdataset(photos: Path, tmp_path: Path):
    webdataset = pytest.importorskip("webdataset")
    packed = pack(photos, tmp_path / "train", images_per_shard=6)
    urls = str(tmp_path / "train" / "train-{000000..000001}.tar")
    samples = list(webdataset.WebDataset(urls, shardshuffle=False).decode("rgb8"))
    assert len(samples) == packed.n_images
    for sample in samples:
        folder = sample["__key__"].partition("/")[0]
        assert sample.get("cls", UNLABELLED) == {"cat": 0, "dog": 1}.get(folder, UNLABELLED)
        assert (sample["png"] if "png" in sample else sample["jpg"]).shape == (12, 12, 3)
    gc.collect()


def test_the_index_has_the_sha256_of_the_shard(photos: Path, tmp_path: Path):
    from hashlib import sha256

    for shard in pack(photos, tmp_path / "train", images_per_shard=6).shards:
        assert load_index(index_path(shard)).sha256 == sha256(shard.read_bytes()).hexdigest()
        with tarfile.open(shard) as tar:
            assert all(member.isreg() for member in tar)


# --- folders that are not empty, and interruptions --------------------------------------------------------------------


def test_a_folder_that_is_not_empty_is_refused_unless_it_is_to_be_replaced(photos: Path, tmp_path: Path):
    out = tmp_path / "train"
    pack(photos, out, images_per_shard=2)
    (out / "notes.txt").write_text("mine")
    before = contents(out)
    code, shown = run_command(photos, "--shards", out)
    assert code == 2
    assert "--overwrite" in shown
    assert contents(out) == before
    assert run_command(photos, "--shards", out, "--overwrite")[0] == 0
    assert sorted(contents(out)) == ["notes.txt", "train-000000.index.jsonl", "train-000000.tar"]
    assert (out / "notes.txt").read_text() == "mine"


def interrupted_after(n_images: int) -> Callable[[], bool]:
    asked = iter(range(n_images))
    return lambda: next(asked, None) is None


def test_an_interrupted_call_is_resumed_with_the_same_result(photos: Path, tmp_path: Path):
    (photos / "cat" / "junk.jpg").write_bytes(b"no image")
    pack(photos, tmp_path / "straight" / "train", images_per_shard=3)
    out = tmp_path / "train"
    with pytest.raises(Interrupted):
        pack(photos, out, images_per_shard=3, should_stop=interrupted_after(8))
    assert sorted(path.name for path in out.glob("*.tar")) == ["train-000000.tar", "train-000001.tar"]
    assert not list(out.glob(".*.part"))
    kept = (out / "train-000001.tar").stat().st_mtime_ns
    told: list[tuple[int, int]] = []
    packed = pack(photos, out, images_per_shard=3, resume=True, progress=lambda *done: told.append(done))
    assert (out / "train-000001.tar").stat().st_mtime_ns == kept
    assert contents(out) == contents(tmp_path / "straight" / "train")
    assert [name for name, _ in packed.not_packed] == ["cat/junk.jpg"]
    assert told[-1] == (12, 12)


@pytest.mark.parametrize("change", ["photo", "replaced", "label", "fewer", "cut", "flipped", "index"])
def test_resuming_writes_what_has_changed(photos: Path, tmp_path: Path, change: str):
    out = tmp_path / "train"
    pack(photos, out, images_per_shard=3)
    if change == "photo":
        (photos / "cat" / "new.png").write_bytes(picture(50))
    elif change == "replaced":  # by another one of the same name and size
        path = next(iter(sorted((photos / "cat").iterdir())))
        content = path.read_bytes()
        at = content.index(b"IDAT") - 9  # a byte of the header's check sum, which the decoder ignores or refuses
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    elif change == "flipped":
        shard = out / "train-000001.tar"
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
    elif change == "label":
        (photos / "cat").rename(photos / "bird")
    elif change == "fewer":
        for path in list((photos / "unlabelled").iterdir()):
            path.unlink()
    elif change == "cut":
        os.truncate(out / "train-000001.tar", 1000)
    else:
        (out / "train-000001.index.jsonl").unlink()
    pack(photos, out, images_per_shard=3, resume=True)
    pack(photos, tmp_path / "straight" / "train", images_per_shard=3)
    assert contents(out) == contents(tmp_path / "straight" / "train")


def test_a_killed_call_leaves_nothing_half_written_under_its_name(photos: Path, tmp_path: Path):
    out = tmp_path / "train"
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from meanteacher.photos.folder.packing import pack\n"
        "kill = lambda done, total: done == 8 and os.kill(os.getpid(), signal.SIGKILL)\n"
        "pack(Path(sys.argv[1]), Path(sys.argv[2]), images_per_shard=3, progress=kill)\n"
    )
    killed = run_script(script, photos, out)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert sorted(path.name for path in out.glob("*.tar")) == ["train-000000.tar", "train-000001.tar"]
    pack(photos, out, images_per_shard=3, resume=True)
    pack(photos, tmp_path / "straight" / "train", images_per_shard=3)
    found, expected = contents(out), contents(tmp_path / "straight" / "train")
    assert {name: content for name, content in found.items() if not name.startswith(".")} == expected


def test_too_many_unreadable_photos_are_an_error_that_names_them(photos: Path, tmp_path: Path):
    (photos / "cat" / "junk.jpg").write_bytes(b"no image")
    (photos / "cat" / "empty.png").write_bytes(b"")
    code, shown = run_command(photos, "--shards", tmp_path / "train", "--max-broken", 1)
    assert code == 2
    assert "2 images are broken, and at most 1 may be" in shown
    assert "cat/junk.jpg" in shown
    assert "cat/empty.png" in shown


@pytest.mark.parametrize("wrong", [{"images_per_shard": 0}, {"megabytes": 0.0}, {"megabytes": float("nan")}])
def test_sizes_are_checked(photos: Path, tmp_path: Path, wrong: dict[str, float]):
    with pytest.raises(InputError, match=next(iter(wrong))):
        pack(photos, tmp_path / "train", **wrong)  # type: ignore[arg-type]


def test_two_calls_do_not_write_to_one_folder(photos: Path, tmp_path: Path):
    from support import held_by_another_process

    (tmp_path / "train").mkdir()
    with held_by_another_process(tmp_path / "train" / ".lock"), pytest.raises(InputError, match="Another process"):
        pack(photos, tmp_path / "train")


def test_the_index_is_plain_json_lines(photos: Path, tmp_path: Path):
    (shard,) = pack(photos, tmp_path / "train").shards
    first, *rows = index_path(shard).read_text().splitlines()
    assert json.loads(first)["classes"] == ["cat", "dog"]
    assert len(rows) == json.loads(first)["images"] == 11
