import pytest
import torch
from torch import Tensor

from meanteacher.core import UNLABELLED, InputError
from meanteacher.data import dataset as dataset_module
from meanteacher.data.dataset import Dataset

NAMES = ("cat", "dog", "owl")
LABELS = torch.tensor([0, 1, 2, UNLABELLED])


def pixels(dtype: torch.dtype = torch.uint8) -> Tensor:
    return torch.arange(4 * 3 * 2 * 2).view(4, 3, 2, 2).to(dtype)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
def test_images_and_labels_are_kept_as_they_are(dtype: torch.dtype) -> None:
    images = pixels(dtype)
    dataset = Dataset(images, LABELS, NAMES)
    assert dataset.images is images
    assert len(dataset) == 4
    assert dataset.n_classes == 3


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_values_that_are_not_finite_are_counted_and_located(value: float, dtype: torch.dtype) -> None:
    images = pixels(dtype)
    images[1, 2, 0, 1] = images[3, 0, 1, 1] = value
    with pytest.raises(InputError, match=r"2 of 4 images .* index 1\b"):
        Dataset(images, LABELS, NAMES)


def test_a_table_with_a_missing_value_is_refused() -> None:
    table = torch.ones(4, 5)
    table[2, 3] = torch.nan
    with pytest.raises(InputError, match=r"1 of 4 images .* index 2\b"):
        Dataset(table, LABELS, NAMES)


@pytest.mark.parametrize("n_labels", [0, 3, 5])
def test_every_image_needs_a_label(n_labels: int) -> None:
    with pytest.raises(InputError, match=rf"4 images .*{n_labels} labels.* -1 "):
        Dataset(pixels(), torch.zeros(n_labels, dtype=torch.int64), NAMES)


def test_an_empty_set_is_refused() -> None:
    with pytest.raises(InputError, match="empty"):
        Dataset(pixels()[:0], LABELS[:0], NAMES)


@pytest.mark.parametrize(("label", "low", "high"), [(3, -1, 3), (-2, -2, 2), (100, -1, 100)])
def test_a_label_outside_the_classes_is_refused(label: int, low: int, high: int) -> None:
    labels = LABELS.clone()
    labels[0 if label > 0 else 1] = label
    with pytest.raises(InputError, match=f" {low} to {high}.* 3 classes.* 0 to 2.* -1 "):
        Dataset(pixels(), labels, NAMES)


def test_a_set_without_any_label_is_allowed() -> None:
    assert len(Dataset(pixels(), torch.full((4,), UNLABELLED), NAMES)) == 4


def test_the_fingerprint_is_that_of_the_content_not_of_the_memory() -> None:
    one = Dataset(pixels(), LABELS, NAMES)
    strided = pixels().permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert not strided.is_contiguous()
    assert Dataset(strided, LABELS.clone(), NAMES).fingerprint() == one.fingerprint()
    assert len(one.fingerprint()) == 16


def test_the_fingerprint_changes_with_one_pixel_one_label_shape_or_precision() -> None:
    images, labels = pixels(), LABELS
    one_pixel, one_label = images.clone(), labels.clone()
    one_pixel[3, 2, 1, 1] += 1
    one_label[3] = 0
    variants = [
        Dataset(images, labels, NAMES),
        Dataset(one_pixel, labels, NAMES),
        Dataset(images, one_label, NAMES),
        Dataset(images.flip(0), labels, NAMES),
        Dataset(images.flatten(2), labels, NAMES),
        Dataset(images.float(), labels, NAMES),
    ]
    assert len({dataset.fingerprint() for dataset in variants}) == len(variants)


def test_the_fingerprint_reaches_the_last_image_of_a_large_set() -> None:
    images = torch.zeros(9_000, 2, dtype=torch.uint8)
    labels = torch.zeros(9_000, dtype=torch.int64)
    before = Dataset(images, labels, NAMES).fingerprint()
    images[-1, -1] = 1
    assert Dataset(images, labels, NAMES).fingerprint() != before


def test_a_large_set_is_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features of photos are a file of gigabytes, which need not fit into the memory."""
    images = pixels(torch.float16)
    images[3, 0, 1, 1] = torch.nan
    whole, seen = Dataset(images[:3], LABELS[:3], NAMES).fingerprint(), []
    real = torch.isfinite
    monkeypatch.setattr(torch, "isfinite", lambda part: seen.append(len(part)) or real(part))
    monkeypatch.setattr(dataset_module, "_PART_BYTES", 2 * images[0].numel() * 2)  # two images of two bytes each
    assert Dataset(images[:3], LABELS[:3], NAMES).fingerprint() == whole
    with pytest.raises(InputError, match=r"1 of 4 images .* index 3\b"):
        Dataset(images, LABELS, NAMES)
    assert seen == [2, 1, 2, 2]
