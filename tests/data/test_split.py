from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meanteacher.core import UNLABELLED, InputError
from meanteacher.data.split import Split, make_split

LABELS = torch.arange(200).remainder(10)[torch.randperm(200, generator=torch.Generator().manual_seed(1))]


def split_of(labels: torch.Tensor = LABELS, **changes: object) -> Split:
    settings = {"n_classes": 10, "n_labelled": 40, "seed": 0, **changes}
    return make_split(labels, **settings)


def positions(split: Split) -> list[int]:
    return torch.cat([split.labelled, split.unlabelled, split.validation]).tolist()


def same(one: Split, other: Split) -> bool:
    return all(
        torch.equal(getattr(one, part), getattr(other, part)) for part in ("labelled", "unlabelled", "validation")
    )


@settings(max_examples=40, deadline=None, database=None)
@given(st.integers(2, 6), st.integers(1, 5), st.floats(0, 0.3), st.integers(0, 10_000))
def test_every_class_has_the_same_number_of_labels(n_classes: int, each: int, validation: float, seed: int) -> None:
    # Classes of unequal size, as in SVHN, the rarest still large enough beside the share kept apart.
    labels = torch.cat([torch.full((30 + 9 * c,), c) for c in range(n_classes)])
    split = make_split(labels, n_classes=n_classes, n_labelled=n_classes * each, seed=seed, validation=validation)
    assert labels[split.labelled].bincount().tolist() == [each] * n_classes


@pytest.mark.parametrize("validation", [0.0, 0.1])
@pytest.mark.parametrize("n_labelled", [10, 40, None])
def test_the_three_parts_are_disjoint_sorted_and_cover_everything(n_labelled: int | None, validation: float) -> None:
    split = split_of(n_labelled=n_labelled, validation=validation)
    assert sorted(positions(split)) == list(range(200))
    assert split.n_examples == 200
    for part in (split.labelled, split.unlabelled, split.validation):
        assert part.tolist() == sorted(part.tolist())


def test_the_same_seed_gives_the_same_split_and_another_seed_another() -> None:
    assert same(split_of(seed=3), split_of(seed=3))
    labelled = {tuple(split_of(seed=seed).labelled.tolist()) for seed in range(20)}
    assert len(labelled) == 20


def test_over_many_seeds_every_example_is_labelled_equally_often() -> None:
    counts = torch.zeros(200)
    for seed in range(500):
        counts[split_of(seed=seed).labelled] += 1
    # Each is drawn with probability 4 / 20: 100 times, standard deviation 9.
    assert counts.min() > 60
    assert counts.max() < 140


def test_the_validation_share_is_kept_apart_and_drawn_by_the_seed() -> None:
    split = split_of(validation=0.1)
    assert len(split.validation) == 20
    assert len(split.labelled) == 40
    assert len(split.unlabelled) == 140
    assert not torch.equal(split.validation, split_of(validation=0.1, seed=1).validation)


def test_a_larger_labelled_set_keeps_the_same_validation_part() -> None:
    few, many = (split_of(n_labelled=n, validation=0.1) for n in (10, 80))
    assert torch.equal(few.validation, many.validation)
    assert set(few.labelled.tolist()) < set(many.labelled.tolist())


def test_none_labels_everyone_who_is_not_kept_apart() -> None:
    everyone = split_of(n_labelled=None)
    assert len(everyone.labelled) == 200
    assert len(everyone.unlabelled) == 0
    split = split_of(n_labelled=None, validation=0.25)
    assert (len(split.labelled), len(split.unlabelled), len(split.validation)) == (150, 0, 50)


@pytest.mark.parametrize("n_labelled", [40, None])
def test_a_row_without_a_label_is_never_labelled_and_never_validates(n_labelled: int | None) -> None:
    labels = LABELS.clone()
    unknown = torch.arange(0, 200, 3)
    labels[unknown] = UNLABELLED
    split = split_of(labels, n_labelled=n_labelled, validation=0.1)
    assert set(unknown.tolist()) <= set(split.unlabelled.tolist())
    assert len(split.validation) == round(0.1 * (200 - len(unknown)))
    assert (labels[split.labelled] >= 0).all()


def test_a_split_survives_its_file(tmp_path: Path) -> None:
    split = split_of(validation=0.1)
    split.save(tmp_path / "split.txt")
    loaded = Split.load(tmp_path / "split.txt")
    assert same(loaded, split)
    assert loaded.fingerprint() == split.fingerprint()
    assert {part.dtype for part in (loaded.labelled, loaded.unlabelled, loaded.validation)} == {torch.int64}


def test_a_split_without_validation_survives_its_file(tmp_path: Path) -> None:
    split_of(n_labelled=None).save(tmp_path / "split.txt")
    loaded = Split.load(tmp_path / "split.txt")
    assert (len(loaded.labelled), len(loaded.unlabelled), len(loaded.validation)) == (200, 0, 0)


def test_the_fingerprint_tells_splits_apart() -> None:
    splits = [
        split_of(),
        split_of(seed=1),
        split_of(n_labelled=30),
        split_of(validation=0.1),
        split_of(torch.cat([LABELS, LABELS[:10]])),
        # The labelled rows of the first as the validation rows of another.
        Split(torch.tensor([1]), torch.tensor([0]), torch.tensor([2])),
        Split(torch.tensor([2]), torch.tensor([0]), torch.tensor([1])),
    ]
    assert len({split.fingerprint() for split in splits}) == len(splits)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_labelled": 210}, r"n_labelled=210 .* 21 .*class 0 .* 20\b.* 200\b"),
        ({"n_labelled": 45}, r"n_labelled=45 .* 10 classes.* 40\b"),
        ({"n_labelled": 4}, r"n_labelled=4 .* 10 classes.* 10\b"),
        ({"n_labelled": 0}, r"n_labelled=0 .* 10 classes.* 10\b"),
        ({"n_labelled": -10}, r"n_labelled=-10 .* 10 classes.* 10\b"),
        ({"validation": 1.0}, r"validation .* 0 .* 1\b.* 1\.0"),
        ({"validation": -0.1}, r"validation .* -0\.1"),
        ({"validation": float("nan")}, r"validation .* nan"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_a_way_out(changes: dict[str, float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        split_of(**changes)


def test_a_scarce_class_is_named() -> None:
    labels = torch.cat([LABELS[LABELS != 7], torch.tensor([7, 7, 7])])
    with pytest.raises(InputError, match=r"class 7 .* 3\b.* 30\b"):
        split_of(labels)


def test_labels_of_the_validation_part_are_not_counted_as_available() -> None:
    assert len(split_of(n_labelled=200).labelled) == 200
    with pytest.raises(InputError, match=r"n_labelled=200 .* 20\b"):
        split_of(n_labelled=200, validation=0.1)


GOOD = "meanteacher split 1\nexamples 6\nlabelled 0 3\nvalidation 5\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not enough values"),
        ("label,index\n0,1\n", "not enough values"),
        (GOOD + "labelled 1\n", "too many values"),
        (GOOD.replace("split 1", "split 2"), "meanteacher split 2"),
        (GOOD.replace("examples", "samples"), "'examples', found 'samples'"),
        (GOOD.replace("labelled 0 3\nvalidation 5", "validation 5\nlabelled 0 3"), "'labelled'"),
        (GOOD.replace("examples 6", "examples"), "not enough values"),
        (GOOD.replace("examples 6", "examples 6 6"), "too many values"),
        (GOOD.replace("0 3", "0 three"), "invalid literal"),
        (GOOD.replace("0 3", "3 3"), "twice"),
        (GOOD.replace("0 3", "0 5"), "twice"),
        (GOOD.replace("0 3", "0 6"), "outside the 6 examples"),
        (GOOD.replace("validation 5", "validation -1"), "outside the 6 examples"),
        ("meanteacher split 1\nexamples -6\nlabelled\nvalidation\n", "-6 examples"),
    ],
)
def test_a_foreign_or_damaged_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "split.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="Delete it") as caught:
        Split.load(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "split.txt"
    path.write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe")
    with pytest.raises(InputError, match=r"split\.txt .*Delete it"):
        Split.load(path)


def test_the_undamaged_file_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "split.txt"
    path.write_text(GOOD, encoding="utf-8")
    split = Split.load(path)
    assert (split.labelled.tolist(), split.unlabelled.tolist(), split.validation.tolist()) == ([0, 3], [1, 2, 4], [5])
