"""ImageNet's folders, made small, and what is decoded from them."""

import dataclasses
import hashlib
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from meanteacher.cli.run import list_recipes
from meanteacher.cli.run import run as run_command
from meanteacher.core import UNLABELLED, InputError, Problem
from meanteacher.data import EncodedDataset, Fixed, ImageStream, make_split, read_label_list
from meanteacher.data.encoded import ASPECT, TRIES, random_box
from meanteacher.data.imagenet import FolderFiles, ImageNet
from meanteacher.evaluate import error_rates, predict_logits
from meanteacher.experiment import Claim, DataSpec, Recipe, run
from meanteacher.experiment.describe import fingerprint
from meanteacher.formats import percent
from meanteacher.models import MlpSpec
from meanteacher.records import load_record
from meanteacher.seeding import generator
from meanteacher.train import StopWhen
from meanteacher.views import Chain, Flip, Jitter, PerChannel, PerImage, Rotate
from pretend_gpu import GPU, OnGpu, pretend_gpu
from shard_support import InMemory
from support import error_rate, prepared_of
from support import recipe as made_up_recipe

WNIDS = ("n01", "n02", "n03")
AS_IT_IS = Chain()


def noise_image(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Smooth noise, which JPEG keeps."""
    small = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    return small.resize((width, height), Image.Resampling.BICUBIC)


def make_folder(root: Path, wnids: Sequence[str] = WNIDS, *, train: int = 6, val: int = 2) -> Path:
    """The data folder: so many photos per class, each of another size."""
    rng = np.random.default_rng(0)
    for part, n in (("train", train), ("val", val)):
        for wnid in wnids:
            folder = root / "imagenet" / part / wnid
            folder.mkdir(parents=True)
            for k in range(n):
                image = noise_image(rng, int(rng.integers(30, 60)), int(rng.integers(30, 60)))
                image.save(folder / f"{wnid}_{part}_{k}.JPEG")
    return root


def source(n_classes: int = 3, *, train: int = 6, val: int = 2, **changes: object) -> ImageNet:
    fields: dict[str, object] = {"resize": 16, "size": 14, **changes}
    return ImageNet(n_classes=n_classes, n_train=n_classes * train, n_test=n_classes * val, **fields)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("data"))


@pytest.fixture
def train(folder: Path) -> EncodedDataset:
    return loaded(folder)


def loaded(folder: Path, **changes: object) -> EncodedDataset:
    dataset = source(**changes).load(folder).train
    assert isinstance(dataset, EncodedDataset)
    return dataset


@dataclasses.dataclass(frozen=True, eq=False)
class Counting:
    """Files that count how often each is read."""

    files: FolderFiles
    reads: Counter[int] = dataclasses.field(default_factory=Counter)

    @property
    def names(self) -> Sequence[str]:
        return self.files.names

    @property
    def sizes(self) -> Sequence[int]:
        return self.files.sizes

    def read(self, position: int) -> bytes:
        self.reads[position] += 1
        return self.files.read(position)

    def where(self, position: int) -> str:
        return self.files.where(position)


def dataset_of(*images: Image.Image, resize: int, size: int, kind: str = "PNG", **options: object) -> EncodedDataset:
    contents = []
    for image in images:
        file = io.BytesIO()
        image.save(file, kind, **options)
        contents.append(file.getvalue())
    labels = torch.zeros(len(images), dtype=torch.int64)
    return EncodedDataset(InMemory(contents), labels, ("one",), resize=resize, size=size)


def crops(dataset: EncodedDataset, index: Tensor, *roles: str, seed: int = 0, step: int = 0) -> dict[str, Tensor]:
    return dataset.begin_crops(index, {role: generator(seed, f"crop/{role}", step) for role in roles})()[1]


def stream_of(dataset: EncodedDataset, *, seed: int = 0, device: str = "cpu") -> ImageStream:
    split = make_split(dataset.labels, n_classes=dataset.n_classes, n_labelled=3, seed=0)
    return ImageStream(
        dataset,
        Fixed(size=5, labelled=2, unlabelled_pool="unlabelled").sampler(split, seed),
        views={"student": AS_IT_IS, "teacher": AS_IT_IS},
        normalise=Tensor.float,
        seed=seed,
        device=device,
    )


# --- the folders ------------------------------------------------------------------------------------------------------


def test_classes_are_the_sorted_folders_and_files_their_images(folder: Path) -> None:
    data = source().load(folder)
    assert data.train.class_names == data.test.class_names == WNIDS
    assert data.train.labels.tolist() == [0] * 6 + [1] * 6 + [2] * 6
    assert data.test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert isinstance(data.train, EncodedDataset)
    assert data.train.files.names[6] == "n02/n02_train_0.JPEG"
    assert tuple(data.train.images.shape) == (18, 3, 14, 14)


def test_the_official_counts_and_sizes_are_the_defaults(folder: Path) -> None:
    official = ImageNet()
    assert (official.n_classes, official.n_train, official.n_test) == (1000, 1_281_167, 50_000)
    assert (official.resize, official.size) == (256, 224)
    with pytest.raises(InputError, match=r"3 classes, expected 1,000.*n_classes=3"):
        official.load(folder)


@pytest.mark.parametrize("field", ["n_train", "n_test"])
def test_other_counts_than_stated_are_refused(folder: Path, field: str) -> None:
    stated = source()
    wrong = dataclasses.replace(stated, **{field: getattr(stated, field) + 1})
    with pytest.raises(InputError, match=f"{field}={getattr(stated, field)}"):
        wrong.load(folder)


@pytest.mark.parametrize("missing", ["train", "val", ""])
def test_a_missing_folder_says_what_is_expected_and_why_it_is_not_downloaded(tmp_path: Path, missing: str) -> None:
    make_folder(tmp_path)
    (tmp_path / "imagenet" / missing).rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"train/CLASS.*val/CLASS.*licence"):
        source().load(tmp_path)


def test_both_parts_need_the_same_classes(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "imagenet" / "val" / "n03").rename(tmp_path / "imagenet" / "val" / "n04")
    with pytest.raises(InputError, match="n03 and n04"):
        source().load(tmp_path)


def test_a_class_without_images_is_named(tmp_path: Path) -> None:
    make_folder(tmp_path)
    for path in (tmp_path / "imagenet" / "val" / "n02").iterdir():
        path.unlink()
    with pytest.raises(InputError, match=r"no image .* in n02"):
        source().load(tmp_path)


def test_other_files_and_hidden_folders_are_left_out(tmp_path: Path, folder: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "imagenet" / "train" / "n01" / "notes.txt").write_text("not an image")
    (tmp_path / "imagenet" / "train" / "n01" / "._n01_0.JPEG").write_text("of another system")
    (tmp_path / "imagenet" / "train" / ".cache").mkdir()
    assert source().load(tmp_path).train.fingerprint() == loaded(folder).fingerprint()


# --- the fingerprint --------------------------------------------------------------------------------------------------


def test_the_fingerprint_reads_no_image_and_does_not_depend_on_the_place(folder: Path, tmp_path: Path) -> None:
    dataset = loaded(folder)
    files = Counting(dataset.files)  # type: ignore[arg-type]
    counted = dataclasses.replace(dataset, files=files)
    assert counted.fingerprint() == dataset.fingerprint()
    assert not files.reads
    before = dataset.fingerprint()
    crops(dataset, torch.arange(5), "student")
    assert dataclasses.replace(dataset).fingerprint() == before
    assert loaded(make_folder(tmp_path)).fingerprint() == before


@pytest.mark.parametrize("change", ["name", "size", "label", "class"])
def test_the_fingerprint_changes_with(tmp_path: Path, folder: Path, change: str) -> None:
    path = make_folder(tmp_path) / "imagenet" / "train" / "n01" / "n01_train_0.JPEG"
    if change == "name":
        path.rename(path.with_name("n01_train_00.JPEG"))
    elif change == "size":
        path.write_bytes(path.read_bytes() + b"\0")
    elif change == "class":
        for part in ("train", "val"):
            (tmp_path / "imagenet" / part / "n03").rename(tmp_path / "imagenet" / part / "n04")
    dataset = loaded(tmp_path)
    if change == "label":
        labels = dataset.labels.clone()
        labels[0] = UNLABELLED
        dataset = dataclasses.replace(dataset, labels=labels)
    assert dataset.fingerprint() != loaded(folder).fingerprint()


# --- random crops -----------------------------------------------------------------------------------------------------


def boxes(width: int, height: int, n: int = 4000) -> np.ndarray:
    draws = np.random.default_rng(0).random((n, TRIES, 4))
    return np.array([random_box(width, height, each) for each in draws])


def test_boxes_keep_to_the_areas_and_ratios_of_the_definition() -> None:
    width, height = 500, 375
    left, top, right, bottom = boxes(width, height).T
    assert (left >= 0).all()
    assert (top >= 0).all()
    assert (right <= width).all()
    assert (bottom <= height).all()
    area, ratio = (right - left) * (bottom - top) / (width * height), (right - left) / (bottom - top)
    assert 0.079 < area.min() < 0.09
    assert 0.97 < area.max() <= 1.0
    assert ASPECT[0] * 0.98 < ratio.min() < 0.76
    assert 1.3 < ratio.max() < ASPECT[1] * 1.02
    # Every corner of the image is seen.
    assert left.min() == top.min() == 0
    assert right.max() == width
    assert bottom.max() == height


def test_small_boxes_have_uniform_areas_log_uniform_ratios_and_uniform_places() -> None:
    """Boxes of at most half the area fit whatever their ratio, so that nothing is rejected among them."""
    left, top, right, bottom = boxes(1000, 1000, 20000).T
    width, height = right - left, bottom - top
    share = width * height / 1e6
    small = share < 0.5
    areas = (share[small] - 0.08) / (0.5 - 0.08)
    log_ratios = np.log(width[small] / height[small]) / math.log(4 / 3)
    across, down = left[small] / (1000 - width[small]), top[small] / (1000 - height[small])
    for values, low, high in ((areas, 0, 1), (log_ratios, -1, 1), (across, 0, 1), (down, 0, 1)):
        counts, _ = np.histogram(values, bins=5, range=(low, high))
        assert counts.sum() > 0.99 * small.sum()
        assert (abs(counts / counts.sum() - 0.2) < 0.02).all()
    assert abs(np.corrcoef([areas, log_ratios, across, down]) - np.eye(4)).max() < 0.04


@pytest.mark.parametrize(
    ("size", "box"), [((1000, 10), (493, 0, 506, 10)), ((10, 1000), (0, 493, 10, 506)), ((1, 1), (0, 0, 1, 1))]
)
def test_where_no_box_fits_it_is_the_largest_in_the_middle(size: tuple[int, int], box: tuple[int, ...]) -> None:
    assert random_box(*size, np.full((TRIES, 4), 0.999)) == box


def test_the_first_box_that_fits_is_taken() -> None:
    draws = np.full((TRIES, 4), 0.999)
    draws[1:] = 0
    # The first is too wide for a square image; the second is the smallest and narrowest, in the corner.
    assert random_box(100, 100, draws) == (0, 0, round(math.sqrt(800 * 0.75)), round(math.sqrt(800 / 0.75)))


def test_a_crop_shows_its_box_averaged() -> None:
    ramp = np.zeros((96, 128, 3), np.uint8)
    ramp[..., 0] = np.arange(128)[None, :]
    ramp[..., 1] = np.arange(96)[:, None]
    dataset = dataset_of(*[Image.fromarray(ramp)] * 40, resize=8, size=8)
    seen = crops(dataset, torch.arange(40), "student")["student"].double()
    draws = torch.rand(40, TRIES, 4, generator=generator(0, "crop/student", 0), dtype=torch.float64).numpy()
    for image, draw in zip(seen, draws, strict=True):
        left, top, right, bottom = random_box(128, 96, draw)
        columns = left + (torch.arange(8) + 0.5) * (right - left) / 8 - 0.5
        rows = top + (torch.arange(8) + 0.5) * (bottom - top) / 8 - 0.5
        # Pixels at the edge are averages of what is inside the box.
        assert (image[0, :, 1:-1] - columns[1:-1]).abs().max() <= 0.75
        assert (image[1, 1:-1] - rows[1:-1, None]).abs().max() <= 0.75


def test_crops_are_a_function_of_seed_role_and_step(train: EncodedDataset) -> None:
    index = torch.arange(6)
    first = crops(train, index, "student", "teacher", step=3)
    again = crops(train, index, "student", "teacher", step=3)
    assert all(torch.equal(first[role], again[role]) for role in first)
    assert not torch.equal(first["student"], first["teacher"])
    assert not torch.equal(first["student"], crops(train, index, "student", step=4)["student"])
    assert not torch.equal(first["student"], crops(train, index, "student", step=3, seed=1)["student"])


def test_the_crops_of_a_role_do_not_depend_on_the_other_roles() -> None:
    """Large JPEGs, which are decoded at a reduced size: that of one role must not follow from another's crop."""
    rng = np.random.default_rng(1)
    images = [noise_image(rng, 700, 500) for _ in range(4)]
    dataset = dataset_of(*images, resize=16, size=14, kind="JPEG")
    alone = crops(dataset, torch.arange(4), "student")["student"]
    assert torch.equal(crops(dataset, torch.arange(4), "teacher", "student", "strong")["student"], alone)


def test_a_reduced_jpeg_shows_about_the_same_crop() -> None:
    rng = np.random.default_rng(2)
    images = [noise_image(rng, 701, 503) for _ in range(4)]
    whole, reduced = (dataset_of(*images, resize=16, size=14, kind=kind) for kind in ("PNG", "JPEG"))
    index = torch.arange(4)
    for seen in (lambda d: crops(d, index, "student")["student"], lambda d: d.images[index]):
        assert (seen(whole).double() - seen(reduced).double()).abs().mean() < 2


def test_a_long_narrow_image_is_cut_before_it_is_resized(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    resize = Image.Image.resize
    monkeypatch.setattr(
        Image.Image,
        "resize",
        lambda image, size, *rest, **more: sizes.append(size) or resize(image, size, *rest, **more),
    )
    dataset = dataset_of(
        Image.new("RGB", (1, 12_000), "red"), Image.new("RGB", (9_000, 2), "red"), resize=256, size=224
    )
    assert (dataset.images[:] == torch.tensor([255, 0, 0], dtype=torch.uint8).view(3, 1, 1)).all()
    assert sizes == [(224, 224), (224, 224)]


@pytest.mark.parametrize("seen", ["crops", "centres"])
def test_the_number_of_threads_changes_nothing(train: EncodedDataset, seen: str) -> None:
    index = torch.arange(len(train)).flip(0)

    def pixels(threads: int) -> Tensor:
        dataset = dataclasses.replace(train, threads=threads)
        if seen == "centres":
            return dataset.images[index]
        return torch.cat(list(crops(dataset, index, "student", "teacher").values()))

    assert torch.equal(pixels(1), pixels(4))


def test_an_image_is_decoded_once_for_all_roles_and_rows(train: EncodedDataset) -> None:
    files = Counting(train.files)  # type: ignore[arg-type]
    counted = dataclasses.replace(train, files=files)
    seen = crops(counted, torch.tensor([4, 7, 4]), "student", "teacher")
    assert files.reads == {4: 1, 7: 1}
    # Two rows of one image are two crops of it, each drawn for its own row.
    assert not torch.equal(seen["student"][0], seen["student"][2])
    for row in (0, 2):
        again = crops(train, torch.tensor([4, 4, 4]).where(torch.arange(3) == row, 9), "student")["student"]
        assert torch.equal(seen["student"][row], again[row])


# --- batches ----------------------------------------------------------------------------------------------------------


def test_a_batch_is_a_pure_function_of_its_step_and_each_role_has_its_own_crops(train: EncodedDataset) -> None:
    in_order, stream = [stream_of(train)[step] for step in range(4)], stream_of(train)
    for step in (2, 0, 3, 3, 1):
        batch = stream[step]
        assert torch.equal(batch.index, in_order[step].index)
        assert torch.equal(batch.labels, in_order[step].labels)
        for role in ("student", "teacher"):
            assert torch.equal(batch.views[role], in_order[step].views[role])
            expected = crops(train, batch.index, role, step=step)[role].float()
            assert torch.equal(batch.views[role], expected)
        assert not torch.equal(batch.views["student"], batch.views["teacher"])


def test_each_batch_is_decoded_once_and_three_batches_ahead(train: EncodedDataset) -> None:
    files = Counting(train.files)  # type: ignore[arg-type]
    stream = stream_of(dataclasses.replace(train, files=files))
    expected: Counter[int] = Counter()
    for step in range(5):
        expected.update(stream[step].index.tolist())
    for ahead in (5, 6, 7):
        expected.update(stream.sampler.draw(ahead)[0].tolist())
        stream._begun[ahead]()  # wait for it
    assert files.reads == expected


def test_the_views_of_the_paper_apply_to_the_crops(train: EncodedDataset) -> None:
    stream = stream_of(train)
    stream.normalise = PerChannel().fit(train.images, train.to_fit(None))
    stream.views = dict.fromkeys(("student", "teacher"), Chain((Rotate(10), Flip(), Jitter())))
    batch = stream[0]
    assert batch.views["student"].shape == (5, 3, 14, 14)
    assert bool(torch.isfinite(batch.views["student"]).all())


def test_on_a_gpu_there_are_the_same_crops_and_errors(train: EncodedDataset) -> None:
    here = stream_of(train)[1]
    network = MlpSpec(hidden=()).build(Problem(n_classes=3, n_examples=18, input_shape=(3, 14, 14)))
    error = error_rate(network, train, normalise=Tensor.float)
    with pretend_gpu():
        there = stream_of(train.on(GPU), device="cuda")[1]
        assert all(isinstance(seen, OnGpu) for seen in there.views.values())
        seen = {role: each.cpu() for role, each in there.views.items()}
        assert error_rate(network.to(GPU), train.on(GPU), normalise=Tensor.float) == error
    assert all(torch.equal(seen[role], here.views[role]) for role in here.views)


# --- evaluation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "height"), [(64, 32), (32, 64), (32, 32)])
def test_evaluation_sees_the_centre_of_the_resized_image(width: int, height: int) -> None:
    """Whole blocks of four pixels: resized to a quarter, each block is one pixel."""
    blocks = np.random.default_rng(0).integers(0, 256, (height // 4, width // 4, 3), dtype=np.uint8)
    image = Image.fromarray(blocks).resize((width, height), Image.Resampling.NEAREST)
    seen = dataset_of(image, resize=8, size=4).images[torch.tensor([0])][0]
    resized = torch.from_numpy(np.asarray(image.resize((width // 4, height // 4), Image.Resampling.BILINEAR)).copy())
    top, left = (height // 4 - 4) // 2, (width // 4 - 4) // 2
    expected = resized.permute(2, 0, 1)[:, top : top + 4, left : left + 4]
    assert (seen.int() - expected.int()).abs().max() <= 1  # the rows and columns of a box may be averaged in turn


def test_the_centre_of_a_pattern_known_by_hand() -> None:
    """White in the middle 224 of 256 pixels, red around it: not one red pixel is seen, and no white one is lost."""
    pixels = np.full((256, 320, 3), (255, 0, 0), np.uint8)
    pixels[16:240, 48:272] = 255
    seen = dataset_of(Image.fromarray(pixels), resize=256, size=224).images[torch.tensor([0])]
    assert seen.shape == (1, 3, 224, 224)
    assert (seen == 255).all()


def test_small_and_odd_images_are_enlarged_and_slices_are_rows(train: EncodedDataset) -> None:
    odd = [Image.new("RGB", size, (10, 20, 30)) for size in ((1, 1), (5, 7), (3, 200))]
    dataset = dataset_of(*odd, resize=9, size=8)
    assert (dataset.images[:] == torch.tensor([10, 20, 30])[:, None, None]).all()
    assert torch.equal(train.images[2:5], train.images[torch.tensor([2, 3, 4])])
    assert train.images[3:3].shape == (0, 3, 14, 14)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="size=9 and resize=8"):
        dataset_of(Image.new("RGB", (4, 4)), resize=8, size=9)


class Reads(nn.Module):
    """Logits from the mean of the red channel, and the number of images at a time."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.n_classes = n_classes
        self.chunks: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        self.chunks.append(len(images))
        red = images[:, 0].mean((1, 2)).round()
        return -(torch.arange(self.n_classes) - red[:, None]).abs()


def coloured(*reds: int) -> EncodedDataset:
    return dataset_of(*[Image.new("RGB", (10, 10), (red, 0, 0)) for red in reds], resize=4, size=4)


def test_errors_and_logits_are_those_of_the_decoded_images_a_few_at_a_time() -> None:
    reds = [k % 7 for k in range(230)]
    dataset = dataclasses.replace(coloured(*reds), class_names=tuple("abcdefgh"))
    labels = torch.tensor(reds)
    labels[::10] = 7
    dataset = dataclasses.replace(dataset, labels=labels)
    network = Reads(8)
    assert error_rate(network, dataset, normalise=Tensor.float) == 23 / 230
    assert network.chunks == [100, 100, 30]
    assert error_rate(network, dataset, torch.tensor([0, 1, 2, 3]), normalise=Tensor.float) == 1 / 4
    logits = predict_logits(network, dataset.images, normalise=Tensor.float)
    assert logits.argmax(1).tolist() == reds


def test_the_top_5_error_known_by_hand() -> None:
    """The five classes nearest to 10 are 8 to 12: of these labels two are missed, and all but one by the first."""
    dataset = dataclasses.replace(
        coloured(*[10] * 6), class_names=tuple(map(str, range(21))), labels=torch.tensor([10, 9, 12, 8, 13, 0])
    )
    networks = {"student": Reads(21)}
    assert error_rates(networks, dataset, normalise=Tensor.float, top=5) == {"student": 2 / 6}
    assert error_rates(networks, dataset, normalise=Tensor.float) == {"student": 5 / 6}


def test_a_network_that_prefers_no_class_is_right_about_five_of_them_only() -> None:
    class Undecided(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return torch.zeros(len(images), 20)

    labels = torch.arange(20)
    dataset = dataclasses.replace(coloured(*[0] * 20), class_names=tuple(map(str, range(20))), labels=labels)
    assert error_rates({"": Undecided()}, dataset, normalise=Tensor.float, top=5) == {"": 15 / 20}


def test_both_models_are_evaluated_on_images_that_are_decoded_once(train: EncodedDataset) -> None:
    files = Counting(train.files)  # type: ignore[arg-type]
    networks = {"student": Reads(3), "teacher": Reads(3)}
    error_rates(networks, dataclasses.replace(train, files=files), normalise=Tensor.float)
    assert files.reads == dict.fromkeys(range(18), 1)


# --- normalisation ----------------------------------------------------------------------------------------------------


def test_a_normalisation_is_fitted_to_a_fixed_sample(train: EncodedDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meanteacher.data.encoded._SAMPLE", 4)
    kept = torch.arange(12, 18)
    chosen = train.to_fit(kept)
    assert len(set(chosen.tolist())) == 4
    assert set(chosen.tolist()) <= set(kept.tolist())
    assert torch.equal(chosen, train.to_fit(kept))
    files = Counting(train.files)  # type: ignore[arg-type]
    counted = dataclasses.replace(train, files=files)
    fitted = PerChannel().fit(counted.images, chosen)
    assert set(files.reads) == set(chosen.tolist())
    expected = PerChannel().fit(train.images[chosen])
    for mine, theirs in zip(fitted.buffers(), expected.buffers(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_run_fits_to_the_sample_and_to_no_validation_image(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meanteacher.data.encoded._SAMPLE", 4)
    recipe = recipe_of(source())
    data = recipe.data.source.load(folder)
    assert isinstance(data.train, EncodedDataset)
    files = Counting(data.train.files)  # type: ignore[arg-type]
    counted = dataclasses.replace(data, train=dataclasses.replace(data.train, files=files))
    prepared = prepared_of(recipe, seed=0, data=counted)
    assert not files.reads
    _ = prepared.normalise
    assert len(files.reads) == 4
    assert not files.reads.keys() & set(prepared.split.validation.tolist())


def test_few_images_are_all_fitted_to_and_each_by_itself_reads_none(train: EncodedDataset) -> None:
    assert train.to_fit(None).tolist() == list(range(18))
    files = Counting(train.files)  # type: ignore[arg-type]
    PerImage().fit(dataclasses.replace(train, files=files).images, torch.arange(18))
    assert not files.reads


# --- odd and damaged files --------------------------------------------------------------------------------------------


def odd_modes() -> dict[str, tuple[Image.Image, str]]:
    plain = Image.new("RGB", (20, 20), (200, 100, 50))
    palette = plain.convert("P", palette=Image.Palette.ADAPTIVE)
    see_through = plain.copy()
    see_through.putalpha(0)
    return {
        "CMYK": (plain.convert("CMYK"), "JPEG"),
        "grey": (plain.convert("L"), "JPEG"),
        "palette": (palette, "PNG"),
        "alpha": (see_through, "PNG"),
        "grey and alpha": (see_through.convert("LA"), "PNG"),
        "black and white": (Image.new("1", (20, 20), 1), "PNG"),
    }


@pytest.mark.parametrize("mode", odd_modes())
def test_every_mode_becomes_rgb(mode: str) -> None:
    image, kind = odd_modes()[mode]
    dataset = dataset_of(image, resize=8, size=8, kind=kind)
    white = (255,) * 3
    expected = {"grey": (124,) * 3, "alpha": white, "grey and alpha": white, "black and white": white}
    colour = torch.tensor(expected.get(mode, (200, 100, 50)))[:, None, None]
    for seen in (dataset.images[:][0], crops(dataset, torch.tensor([0]), "student")["student"][0]):
        assert (seen.int() - colour).abs().max() <= 4


def test_the_orientation_in_exif_data_is_ignored() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8))
    turned = Image.Exif()
    turned[0x0112] = 6
    plain, with_exif = (dataset_of(image, resize=8, size=8, kind="JPEG", **o) for o in ({}, {"exif": turned}))
    assert plain.files.sizes != with_exif.files.sizes
    assert torch.equal(plain.images[:], with_exif.images[:])


def damaged(kind: str, good: bytes) -> bytes:
    return {"truncated": good[: len(good) // 2], "text": b"not an image", "empty": b""}[kind]


@pytest.mark.parametrize("kind", ["truncated", "text", "empty", "gone"])
def test_a_damaged_file_is_named(tmp_path: Path, kind: str) -> None:
    path = make_folder(tmp_path) / "imagenet" / "train" / "n02" / "n02_train_1.JPEG"
    if kind != "gone":
        path.write_bytes(damaged(kind, path.read_bytes()))
    dataset = loaded(tmp_path)
    if kind == "gone":
        path.unlink()
    for read in (lambda: crops(dataset, torch.arange(18), "student"), lambda: dataset.images[:]):
        with pytest.raises(InputError, match=r"n02_train_1\.JPEG cannot be decoded"):
            read()
    assert len(dataset.images[:7]) == 7


# --- the list of labels -----------------------------------------------------------------------------------------------

LISTED = [f"{wnid}_train_{k}.JPEG {wnid}" for wnid in WNIDS for k in (1, 4)]


def with_list(folder: Path, lines: Sequence[str]) -> Path:
    (folder / "imagenet" / "ten.txt").write_text("\n".join(lines) + "\n")
    return folder


def test_a_list_keeps_exactly_the_listed_labels(folder: Path) -> None:
    with_list(folder, [*reversed(LISTED), ""])
    hidden, whole = loaded(folder, label_list="ten.txt"), loaded(folder)
    kept = (hidden.labels != UNLABELLED).nonzero().flatten().tolist()
    assert kept == [1, 4, 7, 10, 13, 16]
    assert hidden.labels[kept].tolist() == whole.labels[kept].tolist()
    split = make_split(hidden.labels, n_classes=3, n_labelled=None, seed=5)
    assert split.labelled.tolist() == kept
    assert len(split.unlabelled) == 12
    listed = read_label_list(
        folder / "imagenet" / "ten.txt", names=whole.files.names, labels=whole.labels, class_names=WNIDS
    )
    assert listed.fingerprint() == split.fingerprint()
    assert hidden.fingerprint() != whole.fingerprint()
    assert (source(label_list="ten.txt").load(folder).test.labels != UNLABELLED).all()


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([*LISTED, "n01_train_99.JPEG n01"], "n01_train_99.JPEG, which is no training image"),
        ([*LISTED, LISTED[0]], "line 7: n01_train_1.JPEG is listed twice"),
        ([*LISTED, "n01_train_2.JPEG n02"], "n01_train_2.JPEG as n02, but its class is n01"),
        ([*LISTED, "n01_train_1.JPEG n02"], "n01_train_1.JPEG as n02, but its class is n01"),
        (["n01_train_1.JPEG"], "line 1: 'n01_train_1.JPEG', expected"),
    ],
)
def test_a_list_that_does_not_fit_the_folder_is_refused(folder: Path, lines: list[str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        loaded(with_list(folder, lines), label_list="ten.txt")


def test_a_list_that_is_missing_is_named(folder: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere.txt cannot be read"):
        loaded(folder, label_list="nowhere.txt")


def test_a_file_name_with_spaces_or_in_two_classes_can_be_listed(tmp_path: Path) -> None:
    list_of = tmp_path / "list.txt"
    list_of.write_text("one  photo.png b\n0.png b\n0.png a\n")
    names = ["a/0.png", "a/one photo.png", "b/0.png", "b/one  photo.png"]
    split = read_label_list(list_of, names=names, labels=torch.tensor([0, 0, 1, 1]), class_names=("a", "b"))
    assert split.labelled.tolist() == [0, 2, 3]


# --- whole runs -------------------------------------------------------------------------------------------------------


def recipe_of(source: ImageNet, **changes: object) -> Recipe:
    fields: dict[str, object] = {
        "name": "made-up/imagenet",
        "data": DataSpec(source=source, n_labelled=6, validation=0.2),
        "model": MlpSpec(hidden=(8,)),
        "views": dict.fromkeys(("student", "teacher"), Chain((Rotate(10), Flip(), Jitter()))),
        "batch": Fixed(size=5, labelled=2, unlabelled_pool="all"),
        "steps": 8,
        "evaluate_every": 4,
        **changes,
    }
    return made_up_recipe().varied(**fields)


def weights(out: Path) -> dict[str, str]:
    folder = out / "checkpoints" / (out / "checkpoints" / "last").read_text().strip()
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.safetensors")}


def stops_after(n_steps: int) -> Callable[[], bool]:
    asked = iter(range(n_steps))
    return lambda: next(asked, None) is None


def test_an_interrupted_run_ends_with_the_same_weights(folder: Path, tmp_path: Path) -> None:
    recipe = recipe_of(source())
    whole = run(recipe, seed=0, out=tmp_path / "whole", data=recipe.data.source.load(folder))
    for stop in (3, 2):
        run(
            recipe,
            seed=0,
            out=tmp_path / "resumed",
            data=recipe.data.source.load(folder),
            resume=stop == 2,
            callbacks=[StopWhen(stops_after(stop))],
        )
    resumed = run(recipe, seed=0, out=tmp_path / "resumed", data=recipe.data.source.load(folder), resume=True)
    assert whole.record is not None
    assert resumed.record is not None
    assert weights(tmp_path / "whole") == weights(tmp_path / "resumed")
    assert whole.record.curve == resumed.record.curve
    assert whole.record.data.n_train == 18
    assert whole.record.errors.last.teacher.test_top5 is None


def test_the_batches_of_a_run_do_not_depend_on_the_threads(folder: Path) -> None:
    recipe = recipe_of(source())
    data = recipe.data.source.load(folder)
    one, four = (
        prepared_of(
            recipe,
            seed=0,
            data=dataclasses.replace(data, train=dataclasses.replace(data.train, threads=threads)),
        ).stream[1]
        for threads in (1, 4)
    )
    assert all(torch.equal(one.views[role], four.views[role]) for role in one.views)


def hundred_classes(folder: Path) -> Recipe:
    make_folder(folder, [f"n{k:03d}" for k in range(100)], train=1, val=1)
    images = source(100, train=1, val=1)
    return recipe_of(
        images,
        data=DataSpec(source=images, n_labelled=100),
        batch=Fixed(size=5, labelled=5, unlabelled_pool="all"),
        steps=2,
        evaluate_every=1,
    )


def test_a_record_of_a_hundred_classes_has_the_top_5_error(tmp_path: Path) -> None:
    recipe = hundred_classes(tmp_path)
    outcome = run(recipe, seed=0, out=tmp_path / "run", data=recipe.data.source.load(tmp_path))
    assert outcome.record is not None
    state = outcome.restored(device="cpu")
    networks = {"student": state.student, "teacher": state.predictor(recipe.training.method)}
    expected = error_rates(networks, outcome.prepared.data.test, normalise=state.normalise, top=5)
    last = json.loads((tmp_path / "run" / "record.json").read_text())["errors"]["last"]
    for model in networks:
        assert last[model]["test_top5"] == expected[model]
        assert last[model]["test_top5"] < last[model]["test"]
        assert last[model]["validation"] is None
    assert {name for name, value in dataclasses.asdict(outcome.record.curve[0]).items() if value is not None} == {
        *("step", "part", "student", "teacher"),
    }
    assert load_record(tmp_path / "run" / "record.json") == outcome.record


def test_the_command_line_tells_the_top_5_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = Claim(error=9.11, spread=0.12, where="Table 4", metric="top-5 error")
    recipe = dataclasses.replace(hundred_classes(tmp_path), claim=claim)
    monkeypatch.setattr("meanteacher.recipes.RECIPES", {recipe.name: recipe})
    list_recipes("")
    assert "9.11 ± 0.12 (top-5)" in capsys.readouterr().out
    monkeypatch.setattr("meanteacher.api.find", {recipe.name: recipe}.__getitem__)
    run_command(recipe.name, out=tmp_path / "run", data=tmp_path, device="cpu")
    last = json.loads((tmp_path / "run" / "record.json").read_text())["errors"]["last"]
    student, teacher = (percent(last[model]["test_top5"], 100) for model in ("student", "teacher"))
    assert f"Top-5 error: student {student}, teacher {teacher}." in capsys.readouterr().out


def test_a_run_names_the_file_that_is_damaged_and_can_be_resumed(tmp_path: Path) -> None:
    path = make_folder(tmp_path) / "imagenet" / "val" / "n02" / "n02_val_1.JPEG"
    good = path.read_bytes()
    path.write_bytes(good[:100].ljust(len(good), b"\0"))
    recipe = recipe_of(source(), data=DataSpec(source=source(), n_labelled=6))
    data = recipe.data.source.load(tmp_path)
    with pytest.raises(InputError, match=r"n02_val_1\.JPEG"):
        run(recipe, seed=0, out=tmp_path / "run", data=data)
    path.write_bytes(good)
    assert run(recipe, seed=0, out=tmp_path / "run", data=data, resume=True).complete


def test_sizes_and_list_are_part_of_the_recipe() -> None:
    prints = {
        fingerprint(recipe_of(each))
        for each in (source(), source(size=12), source(resize=18), source(label_list="ten.txt"))
    }
    assert len(prints) == 4
