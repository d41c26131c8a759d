"""Features of every photo and view in a file, computed once however often the work is interrupted."""

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from meanteacher.core import Augment, InputError, Interrupted
from meanteacher.photos.features import extraction as features
from meanteacher.photos.features.extraction import MAX_VIEWS, Extraction, Features, feature_views
from meanteacher.photos.fitting.budget import limited_threads
from meanteacher.views import Chain, Flip, RandAugment
from meanteacher.views.normalise import per_channel
from pretend_gpu import GPU, pretend_gpu

SIZE, N, N_CHUNKS = 16, 70, 3
"""Three chunks per view: 32, 32 and 6 photos."""
IMAGES = np.random.default_rng(0).integers(0, 256, (N, 3, SIZE, SIZE), dtype=np.uint8)


def front(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU()).eval()


def extraction(folder: Path, **changes: Any) -> Extraction:
    given = {
        "images": IMAGES,
        "normalise": per_channel((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)),
        "front": front(),
        "n_views": 3,
        "flip": True,
        "file": folder / "cache" / "features.npy",
        "key": "a",
    }
    return Extraction(**{**given, **changes})


def content(folder: Path) -> bytes:
    return (folder / "cache" / "features.npy").read_bytes()


def stop_after(n_chunks: int) -> Callable[[], bool]:
    left = iter([False] * (n_chunks - 1))
    return lambda: next(left, True)


def interrupt(given: Extraction) -> None:
    with pytest.raises(Interrupted, match=r"resume=True \(--resume\)"):
        given.run()


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
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


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Features]:
    """What an extraction without an interruption leaves and returns."""
    folder = tmp_path_factory.mktemp("whole")
    found = extraction(folder).run()
    return content(folder), found


# --- views ------------------------------------------------------------------------------------------------------------


def parts(view: Augment) -> set[type]:
    return {type(part) for part in (view.augments if isinstance(view, Chain) else (view,))}


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize(
    ("n_views", "expected"), [(1, 1), (2, 2), (3, 2), (4, 2), (5, 3), (6, 3), (7, 3), (MAX_VIEWS, 3)]
)
def test_the_first_view_is_the_photo_itself_and_the_strong_ones_are_last(
    n_views: int, expected: int, flip: bool
) -> None:
    views, n_weak = feature_views(SIZE, n_views, flip=flip)
    assert (len(views), n_weak) == (n_views, expected)
    images = torch.rand(5, 3, SIZE, SIZE)
    seen = [view(images, torch.Generator().manual_seed(0)) for view in views]
    assert torch.equal(seen[0], images)
    assert not any(torch.equal(other, images) for other in seen[1:])
    assert [RandAugment in parts(view) for view in views] == [False] * n_weak + [True] * (n_views - n_weak)


def test_no_view_is_mirrored_without_flip() -> None:
    """Of an image that becomes brighter to the right, a mirrored copy becomes darker."""
    images = torch.linspace(0, 1, SIZE).expand(40, 3, SIZE, SIZE)

    def n_mirrored(flip: bool) -> list[int]:
        views, n_weak = feature_views(SIZE, MAX_VIEWS, flip=flip)
        seen = [view(images, torch.Generator().manual_seed(0)) for view in views[:n_weak]]
        assert all((Flip in parts(view)) == flip for view in views[n_weak:])
        return [int((rows[..., -1] < rows[..., 0]).all(2).all(1).sum()) for rows in seen]

    assert n_mirrored(flip=False) == [0, 0, 0]
    none, every, some = n_mirrored(flip=True)
    assert (none, every) == (0, 40)
    assert 10 < some < 30


# --- values -----------------------------------------------------------------------------------------------------------


def test_features_are_those_of_torch_up_to_half_precision(whole: tuple[bytes, Features]) -> None:
    _, found = whole
    assert (found.values.shape, found.values.dtype) == ((N, 3, 4, 7, 7), torch.float16)
    assert (found.n_views, found.n_weak) == (3, 2)
    assert found.seconds_per_image > 0
    pixels = per_channel((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))(torch.from_numpy(IMAGES))
    with torch.no_grad():
        for view, images in enumerate((pixels, pixels.flip(3))):
            torch.testing.assert_close(found.values[:, view].float(), front()(images), rtol=2e-3, atol=2e-3)
    strong = found.values[:, 2].float()
    assert torch.isfinite(strong).all()
    assert (strong - found.values[:, 0].float()).abs().amax((1, 2, 3)).min() > 0.1


def test_each_photo_of_a_chunk_has_a_draw_of_its_own(tmp_path: Path) -> None:
    alike = np.repeat(IMAGES[:1], 64, axis=0)
    found = extraction(tmp_path, images=alike, n_views=4).run()
    assert len(found.values[:, 0].flatten(1).unique(dim=0)) == 1
    drawn = found.values[:, 2:].flatten(0, 1).flatten(1).unique(dim=0)
    assert len(drawn) == 2 * 64  # also between the two strong views, and between the two chunks


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_changes_no_byte(threads: int, whole: tuple[bytes, Features], tmp_path: Path) -> None:
    with limited_threads(threads):
        extraction(tmp_path).run()
        assert torch.get_num_threads() == threads
    assert content(tmp_path) == whole[0]


def test_values_beyond_half_precision_stay_finite(tmp_path: Path) -> None:
    large = front()
    with torch.no_grad():
        large[0].weight.mul_(1e6)
    found = extraction(tmp_path, front=large, n_views=1).run()
    assert torch.isfinite(found.values).all()
    assert found.values.max() == 60000


def test_a_gpu_computes_the_same_features(whole: tuple[bytes, Features], tmp_path: Path) -> None:
    with pretend_gpu():
        found = extraction(tmp_path, device=GPU).run()
    torch.testing.assert_close(found.values, whole[1].values, rtol=2e-3, atol=2e-3)


# --- interruptions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_chunks", [1, 3, 4, 8, 9])
def test_an_interrupted_extraction_goes_on_to_the_same_bytes_and_computes_nothing_twice(
    n_chunks: int, whole: tuple[bytes, Features], tmp_path: Path, computed: list[int]
) -> None:
    """Within a view, at its end, and after the last chunk of all."""
    interrupt(extraction(tmp_path, should_stop=stop_after(n_chunks)))
    computed.clear()
    found = extraction(tmp_path).run()
    assert len(computed) == 3 * N_CHUNKS - n_chunks
    assert content(tmp_path) == whole[0]
    assert torch.equal(found.values, whole[1].values)
    assert found.n_weak == whole[1].n_weak


def test_a_killed_extraction_computes_again_what_it_had_not_noted(
    whole: tuple[bytes, Features], tmp_path: Path, computed: list[int]
) -> None:
    """The note is older than the file, as when the process ends between two notes."""
    note = tmp_path / "cache" / "features.json"
    interrupt(extraction(tmp_path, should_stop=stop_after(2)))
    shutil.copy(note, tmp_path / "older.json")
    interrupt(extraction(tmp_path, should_stop=stop_after(3)))
    assert json.loads(note.read_text())["done"] == 5
    shutil.copy(tmp_path / "older.json", note)
    computed.clear()
    extraction(tmp_path).run()
    assert len(computed) == 3 * N_CHUNKS - 2
    assert content(tmp_path) == whole[0]


@pytest.mark.parametrize("damage", ["", "[]", '{"key": "a"}'])
def test_without_a_readable_note_everything_is_computed_anew(
    damage: str, whole: tuple[bytes, Features], tmp_path: Path
) -> None:
    interrupt(extraction(tmp_path, should_stop=stop_after(2), front=front(1)))
    (tmp_path / "cache" / "features.json").write_text(damage)
    extraction(tmp_path).run()
    assert content(tmp_path) == whole[0]


def test_a_finished_extraction_is_read_and_another_key_computes_anew(
    whole: tuple[bytes, Features], tmp_path: Path, computed: list[int]
) -> None:
    extraction(tmp_path, front=front(1), key="b").run()
    assert content(tmp_path) != whole[0]
    computed.clear()
    extraction(tmp_path, front=front(1), key="b").run()
    assert computed == []
    extraction(tmp_path, key="a").run()
    assert sum(computed) == 3 * N
    assert content(tmp_path) == whole[0]


def test_without_time_there_is_one_view_and_a_second_call_agrees(tmp_path: Path, computed: list[int]) -> None:
    first = extraction(tmp_path, ends=0.0).run()
    assert sum(computed) == N
    computed.clear()
    second = extraction(tmp_path).run()
    assert computed == []
    for found in (first, second):
        assert (found.n_views, found.n_weak) == (1, 1)
    assert torch.equal(first.values, second.values)
    assert first.seconds_per_image == second.seconds_per_image > 0


def test_a_view_that_was_begun_before_an_interruption_is_not_counted_without_time(tmp_path: Path) -> None:
    interrupt(extraction(tmp_path, should_stop=stop_after(N_CHUNKS + 1)))
    assert extraction(tmp_path, ends=0.0).run().n_views == 1


# --- following it -----------------------------------------------------------------------------------------------------


def test_progress_rises_to_the_end_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    note = lambda done, total: told.append((done, total))  # noqa: E731
    interrupt(extraction(tmp_path, progress=note, should_stop=stop_after(4)))
    assert told == [(32, 3 * N), (64, 3 * N), (N, 3 * N), (N + 32, 3 * N)]
    extraction(tmp_path, progress=note).run()
    done = [number for number, _ in told]
    assert done == sorted(set(done))
    assert (len(told), told[-1]) == (3 * N_CHUNKS, (3 * N, 3 * N))


@pytest.mark.parametrize("call", ["write", "flush"])
def test_a_full_disk_is_an_error_that_says_what_to_do(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.open

    def full(*given: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    class Full:
        """A file that takes no byte."""

        def __init__(self, file: Any) -> None:
            self.file = file
            setattr(self, call, full)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def __enter__(self) -> "Full":
            return self

        def __exit__(self, *error: object) -> None:
            self.file.close()

    def opened(path: Path, mode: str = "r", **options: Any) -> Any:
        file = real(path, mode, **options)
        return Full(file) if mode == "r+b" else file

    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(InputError, match=r"features\.npy \(No space left on device\)\. Free some space.*--out"):
        extraction(tmp_path).run()
