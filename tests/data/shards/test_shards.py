"""Images in tar shards: what is read, in which order, in how much memory, and what is refused."""

import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from forking import run_script
from meanteacher.core import UNLABELLED, InputError
from meanteacher.data import EncodedDataset, Fixed, ImageStream, Split, TrainTest, make_split
from meanteacher.data.shards import Shards
from meanteacher.data.shards.index import ShardIndex, index_path, load_index, make_index
from meanteacher.experiment import DataSpec, Outcome, run
from meanteacher.models import MlpSpec
from meanteacher.photos.folder.packing import pack
from meanteacher.views import Chain
from shard_support import CLASSES, Members, numbered, picture, write_shards, write_tar
from support import PATIENCE, child_environment, error_rate
from support import recipe as made_up_recipe

BLOCK = 512
AS_IT_IS = Chain()


def source(**changes: object) -> Shards:
    return Shards(**{"train": "train-*.tar", "test": "test-*.tar", "resize": 12, "size": 12, **changes})


def train_part(folder: Path, **changes: object) -> EncodedDataset:
    dataset = source(**changes).load(folder).train
    assert isinstance(dataset, EncodedDataset)
    return dataset


def shard_of(tmp_path: Path, *members: tuple[str, bytes]) -> ShardIndex:
    return make_index(write_tar(tmp_path / "shard.tar", members))


def stream_of(dataset: EncodedDataset, *, seed: int = 0, split: Split | None = None) -> ImageStream:
    split = split or make_split(dataset.labels, n_classes=2, n_labelled=8, seed=0, validation=0.25)
    return ImageStream(
        dataset,
        Fixed(size=8, labelled=2, unlabelled_pool="unlabelled").sampler(split, seed),
        views={"student": AS_IT_IS, "teacher": AS_IT_IS},
        normalise=Tensor.float,
        seed=seed,
    )


# --- what is in a shard -----------------------------------------------------------------------------------------------


def test_an_example_is_an_image_and_its_label(tmp_path: Path):
    index = shard_of(
        tmp_path,
        ("a/0.jpg", picture(0, kind="JPEG")),
        ("a/0.cls", b"3"),
        ("1.json", b'{"label": 2, "width": 5}'),
        ("1.PNG", picture(1)),
        ("2.png", picture(2)),
        ("3.png", picture(3)),
        ("3.json", b'{"width": 5}'),
        ("3.txt", b"a caption"),
        ("4.cls", b" 7\n"),
        ("4.json", b'{"label": "9"}'),
        ("4.jpeg", picture(4, kind="JPEG")),
        ("5.png", picture(5)),
        ("5.cls", b"-1"),
    )
    assert list(index.names) == ["a/0.jpg", "1.PNG", "2.png", "3.png", "4.jpeg", "5.png"]
    assert index.labels.tolist() == [3, 2, UNLABELLED, UNLABELLED, 7, UNLABELLED]
    assert index.class_names is None
    assert not index.broken


def test_an_image_is_the_bytes_at_its_place(tmp_path: Path):
    dataset = train_part(write_shards(tmp_path))
    assert len(dataset) == 40
    for position in (0, 7, 19, 20, 39):
        assert dataset.files.names[position] == f"{position:04}.png"
        assert dataset.files.read(position) == picture(position)
    assert dataset.labels[:8].tolist() == [0, 1, 0, 1, 0, 1, 0, 1]
    assert set(dataset.labels[8:20].tolist()) == {UNLABELLED}


def test_classes_are_sorted_names_or_numbers(tmp_path: Path):
    write_tar(tmp_path / "train-0.tar", [("0.png", picture(0)), ("0.cls", b"dog")])
    write_tar(tmp_path / "train-1.tar", [("1.png", picture(1)), ("1.cls", b"cat")])
    write_tar(tmp_path / "test-0.tar", [("2.png", picture(2)), ("2.cls", b"dog")])
    named = source().load(tmp_path)
    assert named.train.class_names == ("cat", "dog")
    assert named.train.labels.tolist() == [1, 0]
    assert named.test.labels.tolist() == [1]
    write_tar(tmp_path / "train-0.tar", [("0.png", picture(0)), ("0.cls", b"2")])
    with pytest.raises(InputError, match="names of classes"):
        source().load(tmp_path)
    for name in ("train-1", "test-0"):
        write_tar(tmp_path / f"{name}.tar", [("1.png", picture(1)), ("1.cls", b"0")])
    numbered_classes = source().load(tmp_path)
    assert numbered_classes.train.class_names == ("0", "1", "2")
    assert numbered_classes.train.labels.tolist() == [2, 0]
    write_tar(tmp_path / "test-0.tar", [("1.png", picture(1)), ("1.cls", b"3")])
    with pytest.raises(InputError, match=r"class '3'"):
        source().load(tmp_path)


def test_more_images_can_come_without_their_labels(tmp_path: Path):
    write_shards(tmp_path)
    write_tar(tmp_path / "more.tar", [("0.png", picture(0)), ("0.cls", b"17")])
    dataset = train_part(tmp_path, unlabelled="more.tar")
    assert len(dataset) == 41
    assert dataset.labels[40] == UNLABELLED
    assert dataset.class_names == CLASSES


def test_every_test_image_has_a_label(tmp_path: Path):
    write_shards(tmp_path)
    write_tar(tmp_path / "test-0.tar", [*numbered(0, 3), ("x.png", picture(9))])
    data = source().load(tmp_path)
    assert data.test.labels.tolist() == [0, 1, 0]
    assert data.test.broken.described() == [f"'x.png' in {tmp_path / 'test-0.tar'}: no label"]


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_of_every_format_are_read(tmp_path: Path, tar_format: int):
    names = [f"{'folder/' * depth}{'x' * length}.png" for depth, length in ((0, 1), (12, 80), (20, 90))]
    if tar_format != tarfile.USTAR_FORMAT:
        names += ["ä" * 200 + ".png", "caf\udce9.png"]
    index = make_index(write_tar(tmp_path / "s.tar", [(name, picture(0)) for name in names], tar_format))
    assert list(index.names) == names
    content = (tmp_path / "s.tar").read_bytes()
    for offset, size in zip(index.offsets, index.sizes, strict=True):
        assert content[offset : offset + size] == picture(0)


def test_shards_of_webdatasets_own_writer_are_read(tmp_path: Path):
    webdataset = pytest.importorskip("webdataset")
    with webdataset.ShardWriter(str(tmp_path / "train-%06d.tar"), maxcount=3, verbose=0) as writer:
        for k in range(7):
            labelled = {"cls": k % 2} if k != 4 else {}
            writer.write({"__key__": f"{k:04}", "png": picture(k), "json": {"width": 12}, **labelled})
    write_tar(tmp_path / "test-0.tar", [("0.png", picture(0)), ("0.cls", b"1")])
    dataset = train_part(tmp_path, train="train-{000000..000002}.tar")
    assert dataset.labels.tolist() == [0, 1, 0, 1, UNLABELLED, 1, 0]
    assert [dataset.files.read(k) for k in range(7)] == [picture(k) for k in range(7)]


# --- where shards are -------------------------------------------------------------------------------------------------


def test_shards_are_named_by_path_wildcard_range_and_file_url(tmp_path: Path):
    folder = tmp_path / "a [b]"
    expected = train_part(write_shards(folder)).fingerprint()
    for train in ("train-{0..1}.tar", "train-?.tar", f"{folder}/train-*.tar", f"file://{folder}/train-*.tar"):
        assert train_part(folder, train=train).fingerprint() == expected
    assert len(train_part(folder, train="train-1.tar")) == 20
    (folder / "both").mkdir()
    for name in ("train-0.tar", "train-1.tar"):
        (folder / name).rename(folder / "both" / name)
    assert train_part(folder, train="both").fingerprint() == expected
    for missing in ("train-2.tar", "both/train-{0..2}.tar", "nowhere/*.tar", "shards"):
        with pytest.raises(InputError, match="meanteacher pack"):
            source(train=missing).load(folder)
    for backwards in ("train-{1..0}.tar", "train-{0..999999999}.tar"):
        with pytest.raises(InputError, match="range"):
            source(train=backwards).load(folder)


def test_a_shard_that_cannot_be_read_is_named(tmp_path: Path):
    write_shards(tmp_path)
    (tmp_path / "train-2.tar").mkdir()
    with pytest.raises(InputError, match=r"train-2\.tar"):
        source().load(tmp_path)


def test_an_index_is_made_once_and_again_when_the_shard_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shards, data = write_shards(tmp_path / "shards"), tmp_path / "data"
    where = {"train": f"{shards}/train-*.tar", "test": f"{shards}/test-0.tar"}
    before = train_part(data, **where)
    assert sorted(path.name for path in shards.iterdir()) == ["test-0.tar", "train-0.tar", "train-1.tar"]
    made = []
    monkeypatch.setattr(
        "meanteacher.data.shards.source.make_index", lambda path: made.append(path.name) or make_index(path)
    )
    assert train_part(data, **where).fingerprint() == before.fingerprint()
    assert made == []
    write_tar(shards / "train-1.tar", numbered(500, 20))
    assert train_part(data, **where).fingerprint() != before.fingerprint()
    assert made == ["train-1.tar"]


def test_a_folder_that_cannot_be_written_only_costs_time(tmp_path: Path):
    shards = write_shards(tmp_path / "shards")
    data = tmp_path / "data"
    data.write_text("a file where a folder would be")
    where = {"train": f"{shards}/train-*.tar", "test": f"{shards}/test-0.tar"}
    assert len(train_part(data, **where)) == 40


def test_an_index_that_does_not_fit_its_shard_is_refused(tmp_path: Path):
    shard = write_shards(tmp_path) / "train-0.tar"
    make_index(shard).save(index_path(shard))
    assert len(train_part(tmp_path)) == 40
    with shard.open("ab") as file:
        file.write(bytes(BLOCK))
    with pytest.raises(InputError, match="by its index"):
        source().load(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[",
        b"{}",
        b'["0.png", 512, 99999999, 0]',
        b'["0.png", -512, 100, 0]',
        b'["0.png", 512, 100, 2]',
        b'["0.png", 512, 100, -2]',
        b'["0.png", 512, true, 0]',
        b'["0.png", 5e2, 100, 0]',
        b'["0.png", 100000000000000000000000000000, 100, 0]',
        b"[5, 512, 100, 0]",
        b'["\\ud800", 512, 100, 0]',
        b"[" * 100_000,
    ],
)
def test_a_damaged_index_is_refused_with_its_line(tmp_path: Path, line: bytes):
    path = tmp_path / "x.index.jsonl"
    index = ShardIndex(n_bytes=5000, class_names=CLASSES)
    for k in range(3):
        index.add(f"{k}.png", 512, 100, 1)
    index.save(path)
    assert load_index(path).labels.tolist() == [1, 1, 1]
    lines = path.read_bytes().splitlines()
    lines[2] = line
    path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(InputError, match="line 3"):
        load_index(path)


def test_an_index_of_astronomic_numbers_is_refused(tmp_path: Path):
    path = tmp_path / "x.index.jsonl"
    index = ShardIndex(n_bytes=5000, class_names=CLASSES)
    index.add("0.png", 512, 100, 1)
    index.save(path)
    header, row = path.read_text().splitlines()
    huge = 10**29
    path.write_text(header.replace("5000", str(2 * huge)) + "\n" + row.replace("512", str(huge)) + "\n")
    with pytest.raises(InputError, match="line 1"):
        load_index(path)


def test_a_local_shard_is_compared_with_the_sha256_of_its_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    packed_for_the_web(tmp_path)
    where = {"train": f"{tmp_path}/train/*.tar", "test": f"{tmp_path}/test/*.tar"}
    data = tmp_path / "data"
    fingerprint = train_part(data, **where).fingerprint()
    with monkeypatch.context() as patch:  # a shard that has not changed is not read again
        patch.setattr("meanteacher.data.shards.source.file_sha256", lambda path: pytest.fail(f"{path} is read"))
        assert train_part(data, **where).fingerprint() == fingerprint
    shard = tmp_path / "train" / "train-000001.tar"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(InputError, match=r"train-000001\.tar is not the shard of its index: its sha256"):
        train_part(data, **where)


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str, list[str]]]:
    """A folder, the URL that it is served at, and the requests so far."""
    monkeypatch.setenv("no_proxy", "*")
    requests: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            requests.append(self.path)

    folder = tmp_path / "web"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{http.server_port}", requests
        http.shutdown()
        thread.join()


def packed_for_the_web(folder: Path) -> None:
    for part, n in (("train", 6), ("test", 2)):
        for k in range(2 * n):
            file = folder / "photos" / part / CLASSES[k % 2] / f"{k}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(picture(k))
        pack(folder / "photos" / part, folder / part, images_per_shard=n)


def test_shards_of_the_web_are_downloaded_once_and_verified(tmp_path: Path, web: tuple[Path, str, list[str]]):
    folder, url, requests = web
    packed_for_the_web(folder)
    where = {"train": f"{url}/train/train-{{000000..000001}}.tar", "test": f"{url}/test/test-{{000000..000001}}.tar"}
    seen = []
    dataset = source(**where).load(tmp_path / "data", lambda done, total: seen.append((done, total))).train
    assert isinstance(dataset, EncodedDataset)
    local = train_part(folder, train=f"{folder}/train/*.tar", test=f"{folder}/test/*.tar")
    assert dataset.fingerprint() == local.fingerprint()
    assert dataset.files.read(5) == local.files.read(5)
    assert seen[0][1] == (folder / "train" / "train-000000.tar").stat().st_size
    assert len(requests) == 8  # four shards and their indexes
    assert train_part(tmp_path / "data", **where).fingerprint() == local.fingerprint()
    assert len(requests) == 8

    shard = folder / "train" / "train-000001.tar"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    with pytest.raises(InputError, match="sha256"):
        source(**where).load(tmp_path / "elsewhere")
    assert not list((tmp_path / "elsewhere").rglob("train-000001.tar"))


def test_a_shard_of_the_web_needs_its_index(tmp_path: Path, web: tuple[Path, str, list[str]]):
    folder, url, _ = web
    write_shards(folder)
    with pytest.raises(InputError, match="meanteacher pack"):
        source(train=f"{url}/train-0.tar").load(tmp_path / "data")
    for strange in ("train-0.tar.gz", "..%2F..%2Fx.tar", "a?b.tar", ""):
        with pytest.raises(InputError, match=r"NAME\.tar"):
            source(train=f"{url}/{strange}").load(tmp_path / "data")


# --- what is refused --------------------------------------------------------------------------------------------------


def special(kind: bytes, name: str = "0.png", target: str = "/etc/passwd") -> bytes:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member.tobuf(tarfile.PAX_FORMAT)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (tarfile.LNKTYPE, "a link"),
        (tarfile.SYMTYPE, "a link"),
        (tarfile.CHRTYPE, "a device"),
        (tarfile.BLKTYPE, "a device"),
        (tarfile.FIFOTYPE, "a pipe"),
        (b"A", "not a plain file"),
    ],
)
def test_only_plain_files_are_read(tmp_path: Path, kind: bytes, why: str):
    shard = write_tar(tmp_path / "s.tar", numbered(1, 2))
    shard.write_bytes(special(kind) + special(tarfile.DIRTYPE, "folder") + shard.read_bytes())
    index = make_index(shard)
    assert list(index.names) == ["0001.png", "0002.png"]
    assert index.broken == [("0.png", f"'0.png' is {why}")]


def test_a_name_is_no_path(tmp_path: Path):
    names = ["../../outside.png", "/etc/0.png", "a/../../b.png", "c\x1b[31m.png"]
    write_tar(tmp_path / "train-0.tar", [member for k, name in enumerate(names) for member in labelled(name, k)])
    write_tar(tmp_path / "test-0.tar", numbered(0, 2))
    before = sorted(tmp_path.rglob("*"))
    dataset = train_part(tmp_path)
    assert list(dataset.files.names) == names
    assert [dataset.files.read(k) for k in range(4)] == [picture(k) for k in range(4)]
    assert "\x1b" not in dataset.files.where(3)
    new = {path.parent.name for path in set(tmp_path.rglob("*")) - set(before) if path.is_file()}
    assert new == {"shards"}  # the indexes


def labelled(name: str, k: int) -> Members:
    return [(name, picture(k)), (name.replace(".png", ".cls"), CLASSES[k % 2].encode())]


def header(size: bytes, kind: bytes = b"0", name: bytes = b"0.png") -> bytes:
    """A header whose checksum is right, whatever it says."""
    block = bytearray(tarfile.TarInfo("x").tobuf(tarfile.USTAR_FORMAT))
    block[:100], block[124:136], block[156:157] = name.ljust(100, b"\0"), size, kind
    block[148:156] = b" " * 8
    block[148:156] = f"{sum(block):06o}\0 ".encode()
    return bytes(block)


def extended(records: bytes) -> bytes:
    return header(f"{len(records):011o}\0".encode(), b"x") + records.ljust(BLOCK, b"\0")


END = bytes(2 * BLOCK)
PLAIN = header(b"00000000004\0") + b"data".ljust(BLOCK, b"\0")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "end is missing"),
        (PLAIN, "end is missing"),
        (PLAIN[:-1], "end is missing"),
        (b"<html>" * 200, "invalid header"),
        (b"\x1f\x8b" + bytes(range(256)) * 4, "Compressed"),
        (header(b"77777777777\0") + END, "end is missing"),
        (header(b"\x80" + b"\xff" * 11) + END, "end is missing"),
        (header(b"\xff" * 12) + END, "negative size"),
        (header(b"-0000000512\0") + END, "negative size"),
        (header(b"00000000004\0").replace(b"0.png", b"1.png") + END, "checksum"),
        (header(b"-0000000512\0", b"x") + END, "negative size"),
        (extended(b"13 size=five\n") + PLAIN + END, "literal"),
        (header(b"77777777777\0", b"x") + END, "header of"),
        (header(b"77777777777\0", b"L") + END, "header of"),
        (header(b"77777777777\0", b"K") + END, "end is missing"),
        (extended(b"13 size=-512\n") + PLAIN + END, "negative size"),
        (extended(b"999999999 path=x\n") + PLAIN + END, "damaged"),
        (extended(b"0 path=x\n") + PLAIN + END, "damaged"),
        (extended(b"9 path=x") + PLAIN + END, "damaged"),
        (extended(b"22 GNU.sparse.major=1\n") + PLAIN + END, "sparse"),
        (header(b"00000000004\0", b"S") + END, "sparse"),
        (header(b"00000000011\0", b"g") + b"9 path=x\n".ljust(BLOCK, b"\0") + PLAIN + END, "for all"),
    ],
)
def test_what_is_no_complete_tar_file_is_refused(tmp_path: Path, content: bytes, why: str):
    (tmp_path / "s.tar").write_bytes(content)
    with pytest.raises(InputError, match=f"not a complete tar file.*({why})"):
        make_index(tmp_path / "s.tar")


def test_a_copy_that_was_cut_short_is_refused_at_every_length(tmp_path: Path):
    whole = write_tar(tmp_path / "s.tar", numbered(0, 2)).read_bytes()
    n_used = len(whole.rstrip(b"\0")) // BLOCK * BLOCK + BLOCK
    for n in range(0, n_used + 1, 256):
        (tmp_path / "s.tar").write_bytes(whole[:n])
        with pytest.raises(InputError, match="not a complete tar file"):
            make_index(tmp_path / "s.tar")
    (tmp_path / "s.tar").write_bytes(whole[: n_used + BLOCK])
    assert len(make_index(tmp_path / "s.tar")) == 2


# --- broken images ----------------------------------------------------------------------------------------------------

BROKEN_MEMBERS: list[tuple[str, Members]] = [
    ("empty", [("x.png", b"")]),
    ("neither JPEG nor PNG", [("x.png", b"GIF89a" + bytes(99))]),
    ("no JPEG or PNG image", [("x.cls", b"cat")]),
    ("no JPEG or PNG image", [("x.webp", b"RIFF")]),
    ("more than one image", [("x.png", picture(0)), ("x.jpg", picture(0, kind="JPEG"))]),
    ("no label", [("x.png", picture(0)), ("x.cls", b"")]),
    ("no label", [("x.png", picture(0)), ("x.cls", b"\xff\xfe")]),
    ("no label", [("x.png", picture(0)), ("x.cls", b"-2")]),
    ("no label", [("x.png", picture(0)), ("x.cls", b"999999999999")]),
    ("no label", [("x.png", picture(0)), ("x.json", b'{"label": ')]),
    ("no label", [("x.png", picture(0)), ("x.json", b'{"label": [1]}')]),
    ("no label", [("x.png", picture(0)), ("x.json", b"[" * 100_000)]),
]


@pytest.mark.parametrize(("reason", "members"), BROKEN_MEMBERS)
def test_a_broken_example_is_named_and_left_out_up_to_a_limit(tmp_path: Path, reason: str, members: Members):
    write_shards(tmp_path)
    write_tar(tmp_path / "train-2.tar", [*members, *numbered(500, 2)])
    dataset = train_part(tmp_path, max_broken=1)
    assert len(dataset) == 42
    (found,) = dataset.broken.described()
    assert found.startswith("'x.")
    assert reason in found
    assert str(tmp_path / "train-2.tar") in found
    with pytest.raises(InputError, match=r"at most 0 may be \(max_broken\).*'x\."):
        train_part(tmp_path, max_broken=0)


def test_a_shard_of_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("meanteacher.data.shards.index.MAX_BROKEN", 3)
    with pytest.raises(InputError, match="not a shard of images"):
        shard_of(tmp_path, *[(f"{k}.txt", b"text") for k in range(5)])


def test_a_later_row_of_the_same_kind_takes_the_place_of_a_broken_image(tmp_path: Path):
    broken = [2, 5, 12, 23, 33]  # three with a label
    dataset = train_part(write_shards(tmp_path, broken=broken))
    split = make_split(dataset.labels, n_classes=2, n_labelled=8, seed=0, validation=0.25)
    stream = stream_of(dataset, split=split)
    replaced = 0
    for step in range(30):
        drawn, shows_label = stream.sampler.draw(step)
        batch = stream[step]
        assert set(batch.index.tolist()).isdisjoint(broken)
        assert set(batch.index[shows_label].tolist()) <= set(split.labelled.tolist())
        assert set(batch.index[~shows_label].tolist()) <= set(split.unlabelled.tolist())
        assert torch.equal(batch.labels, torch.where(shows_label, dataset.labels[batch.index], UNLABELLED))
        intact = torch.tensor([position not in broken for position in drawn.tolist()])
        assert torch.equal(batch.index[intact], drawn[intact])
        replaced += int((~intact).sum())
    assert replaced
    met = {k for k in broken if k not in split.validation}
    assert dataset.broken.positions == met
    assert len(dataset.broken.reasons) == len(met)
    assert all(f"'{k:04}.png'" in "".join(dataset.broken.reasons) for k in met)


def test_what_takes_its_place_is_the_same_whenever_and_with_any_threads(tmp_path: Path):
    folder = write_shards(tmp_path, broken=[2, 5, 12, 23, 33])
    straight = stream_of(train_part(folder))
    seen = [straight[step] for step in range(12)]
    other = stream_of(dataclasses.replace(train_part(folder), threads=3))
    for step in (11, 3, 4, 0, 9):
        batch = other[step]
        assert torch.equal(batch.index, seen[step].index)
        for role, images in seen[step].views.items():
            assert torch.equal(batch.views[role], images)


def test_too_many_broken_images_end_the_run_by_name(tmp_path: Path):
    folder = write_shards(tmp_path, broken=[2, 5, 12, 23, 33])
    stream = stream_of(train_part(folder, max_broken=1))
    with pytest.raises(InputError, match=r"at most 1 may be.*'00\d\d\.png' in .*train-\d\.tar"):
        [stream[step] for step in range(30)]


def test_where_nothing_is_readable_the_search_ends(tmp_path: Path):
    dataset = train_part(write_shards(tmp_path, broken=range(40)))
    with pytest.raises(InputError, match="No image can take the place"):
        stream_of(dataset)[0]


def test_a_shard_that_shrinks_is_no_broken_image(tmp_path: Path):
    dataset = train_part(write_shards(tmp_path))
    os.truncate(tmp_path / "train-1.tar", 3000)
    with pytest.raises(InputError, match=r"the shard is truncated: [\d,]+ bytes of this image are missing.*resume"):
        dataset.centres(torch.arange(20, 40))
    assert not dataset.broken.reasons


class Brightest(nn.Module):
    """Every image is of the second class."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor([[0.0, 1.0]]).expand(len(x), 2)


def test_an_error_leaves_broken_images_out(tmp_path: Path):
    # Of eight test images the even ones are of the first class: two of those four are broken.
    data = source().load(write_shards(tmp_path, broken=[1000, 1002]))
    assert error_rate(Brightest(), data.test, normalise=Tensor.float) == 2 / 6
    assert data.test.broken.positions == {0, 2}


# --- order, ranks, resuming -------------------------------------------------------------------------------------------


def test_the_order_is_a_function_of_the_seed(tmp_path: Path):
    folder = write_shards(tmp_path)
    orders = [
        [stream_of(train_part(folder), seed=seed)[step].index.tolist() for step in range(9)] for seed in (0, 0, 1)
    ]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


@pytest.mark.parametrize("n_ranks", [2, 4])
def test_ranks_see_disjoint_parts_of_every_image_once_per_epoch(tmp_path: Path, n_ranks: int):
    dataset = train_part(write_shards(tmp_path, n_train=40, n_labelled=16))
    split = make_split(dataset.labels, n_classes=2, n_labelled=16, seed=0)
    sampler = Fixed(size=8, labelled=2, unlabelled_pool="unlabelled").sampler(split, 0)
    seen: list[list[int]] = [[] for _ in range(n_ranks)]
    for step in range(len(split.unlabelled) // 6):
        index, shows_label = sampler.draw(step)
        for rank in range(n_ranks):
            seen[rank] += index[rank::n_ranks][~shows_label[rank::n_ranks]].tolist()
    assert sorted(position for part in seen for position in part) == split.unlabelled.tolist()


def logged_run(folder: Path, out: Path, log: Path, *, resume: bool = False, kill_at: int = -1) -> Outcome:
    """A run of 14 steps, of which 4 are an epoch, that notes what every step was given."""
    recipe = made_up_recipe().varied(
        data=DataSpec(source=source(), n_labelled=8),
        model=MlpSpec(hidden=(8,)),
        batch=Fixed(size=8, labelled=2, unlabelled_pool="unlabelled"),
        steps=14,
        evaluate_every=5,
    )
    original = ImageStream.__getitem__

    def noted(stream: ImageStream, step: int) -> object:
        batch = original(stream, step)
        pixels = hashlib.sha256(batch.views["student"].contiguous().numpy().tobytes()).hexdigest()
        with log.open("a") as file:
            file.write(json.dumps([step, batch.index.tolist(), pixels]) + "\n")
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    ImageStream.__getitem__ = noted  # type: ignore[method-assign,assignment]
    try:
        data: TrainTest = recipe.data.source.load(folder)
        return run(recipe, seed=1, out=out, data=data, resume=resume)
    finally:
        ImageStream.__getitem__ = original  # type: ignore[method-assign]


def test_a_run_killed_in_mid_epoch_sees_what_the_undisturbed_one_sees(tmp_path: Path):
    folder = write_shards(tmp_path / "data", broken=[5, 23])
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_shards\n"
        "from pathlib import Path\n"
        "test_shards.logged_run(*map(Path, sys.argv[2:5]), kill_at=7)\n"
    )
    arguments = (Path(__file__).parent, folder, tmp_path / "killed", tmp_path / "killed.log")
    killed = run_script(script, *arguments)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = logged_run(folder, tmp_path / "killed", tmp_path / "resumed.log", resume=True)
    straight = logged_run(folder, tmp_path / "straight", tmp_path / "straight.log")
    before, after, whole = (
        {step: rest for step, *rest in map(json.loads, (tmp_path / f"{name}.log").read_text().splitlines())}
        for name in ("killed", "resumed", "straight")
    )
    assert list(before) == list(range(8))
    assert list(after) == list(range(5, 14))  # from the checkpoint on, which is in the middle of an epoch
    assert list(whole) == list(range(14))
    assert {**before, **after} == whole
    assert {step: after[step] for step in (5, 6, 7)} == {step: before[step] for step in (5, 6, 7)}
    assert resumed.record is not None
    assert straight.record is not None
    assert resumed.record.curve == straight.record.curve
    assert straight.record.data.broken["train"].n == 2


_MEMORY = """
import sys, torch
from pathlib import Path
from meanteacher.data import Fixed, ImageStream, make_split
from meanteacher.data.shards import Shards
from meanteacher.views import Chain

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

def stream(train):
    data = Shards(train=train, test="test-0.tar", resize=8, size=8).load(Path(sys.argv[1]))
    split = make_split(data.train.labels, n_classes=2, n_labelled=None, seed=0)
    sampler = Fixed(size=200, labelled=20, unlabelled_pool="unlabelled").sampler(split, 0)
    views = {"student": Chain(), "teacher": Chain()}
    return ImageStream(data.train, sampler, views=views, normalise=torch.Tensor.float, seed=0)

small = stream("train-0.tar")
for step in range(20):  # everything is imported, and threads have their memory
    small[step]
start = resident()
large = stream("many-*.tar")
large.dataset.fingerprint()
seen, most = set(), start
for step in range(int(sys.argv[2])):
    seen.update(large[step].index.tolist())
    most = max(most, resident())
for position in range(len(large.dataset)):
    large.dataset.files.read(position)
most = max(most, resident())
print(len(large.dataset), len(seen), most - start)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux says how much memory is resident")
def test_200000_images_are_streamed_in_constant_memory(tmp_path: Path):
    """Many names for few images: on the disk 200,000 would take too long to write for a test."""
    write_shards(tmp_path)
    distinct = [(f"{k}.png", picture(k, side=16)) for k in range(20)]
    assert min(len(content) for _, content in distinct) > 700  # so that keeping all of them would show
    for number in range(4):
        shard = write_tar(tmp_path / f"many-{number}.tar", distinct)
        few = make_index(shard)
        many = ShardIndex(n_bytes=few.n_bytes, class_names=CLASSES)
        for k in range(50_000):
            label = k % 2 if k < 1000 else UNLABELLED
            many.add(f"unlabelled/{number}{k:06}.png", few.offsets[k % 20], few.sizes[k % 20], label)
        many.save(index_path(shard))
    script = [sys.executable, "-c", _MEMORY, str(tmp_path), "25"]
    done = subprocess.run(
        script,
        env=child_environment(OMP_NUM_THREADS="1"),
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    n_images, n_seen, grown = done.stdout.split()
    assert int(n_images) == 200_000
    assert int(n_seen) == 25 * 200
    assert float(grown) < 50


# --- in a recipe ------------------------------------------------------------------------------------------------------


def test_the_fields_are_checked(tmp_path: Path):
    for wrong in (-1, 10_001):
        with pytest.raises(InputError, match="max_broken"):
            source(max_broken=wrong)
    write_tar(tmp_path / "train-0.tar", [("0.png", picture(0))])
    write_tar(tmp_path / "test-0.tar", numbered(0, 2))
    with pytest.raises(InputError, match="nothing to learn"):
        source().load(tmp_path)
    write_tar(tmp_path / "train-0.tar", numbered(0, 2))
    write_tar(tmp_path / "test-0.tar", [("0.png", picture(0))])
    with pytest.raises(InputError, match="nothing to measure"):
        source().load(tmp_path)
