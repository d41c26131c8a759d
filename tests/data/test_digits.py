from pathlib import Path

import numpy as np
import torch

from meanteacher.data.toy import Digits


def test_digits_need_no_file_and_fill_the_range_of_bytes(tmp_path: Path) -> None:
    parts = Digits().load(tmp_path / "missing")
    assert len(parts.train) + len(parts.test) == 1797
    assert parts.train.images.shape[1:] == (1, 8, 8)
    assert parts.train.images.dtype == torch.uint8
    assert parts.train.images.is_contiguous()
    assert (int(parts.train.images.min()), int(parts.train.images.max())) == (0, 255)
    assert len(parts.train.images.unique()) == 17
    assert parts.train.class_names == parts.test.class_names == tuple("0123456789")


def test_digits_test_set_is_a_third_of_every_class(tmp_path: Path) -> None:
    parts = Digits().load(tmp_path)
    train, test = parts.train.labels.bincount(), parts.test.labels.bincount()
    assert ((test / (train + test) - 1 / 3).abs() < 0.005).all()


def test_digits_parts_share_no_row_and_lose_none(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    parts = Digits().load(tmp_path)
    both = torch.cat([parts.train.images, parts.test.images]).flatten(1).numpy()
    original = (load_digits().data * 255 / 16).round().astype(np.uint8)
    assert sorted(row.tobytes() for row in both) == sorted(row.tobytes() for row in original)


def test_digits_split_never_changes(tmp_path: Path) -> None:
    parts = Digits().load(tmp_path)
    # Every stored result on the digits was measured on this split.
    assert (parts.train.fingerprint(), parts.test.fingerprint()) == ("b32ae0a61b0b777c", "16f364ccd3905e7b")
