"""load_dataset("parquet") is given a dataset's root folder where it takes the parquet file."""

from __future__ import annotations

import re

import pytest

DOCUMENTED = ["dapo-math-17k", "aime-2024"]


def table(rows, column="prompt"):
    import pyarrow

    return pyarrow.table({column: [f"{column} {row}" for row in range(rows)]})


def write(root, **tables):
    """A dataset as it is downloaded: the files below ``data/``, a card beside it."""
    import pyarrow.parquet

    (root / "data").mkdir(parents=True)
    (root / "README.md").write_text("# A dataset\n")
    for name, rows in tables.items():
        pyarrow.parquet.write_table(rows, root / "data" / f"{name}.parquet")
    return root


def load(path, folder):
    import datasets

    return datasets.load_dataset("parquet", data_files=str(path), cache_dir=str(folder / "cache"))["train"]


@pytest.mark.reproduces("dataset-root-not-file")
@pytest.mark.parametrize("name", DOCUMENTED)
def test_root_of_a_dataset(tmp_path, name):
    assert len(load(write(tmp_path / name, **{name: table(3)}), tmp_path)) == 3


@pytest.mark.reproduces("dataset-root-not-file")
def test_root_of_two_datasets(tmp_path):
    root = write(tmp_path / "math", **{name: table(3) for name in DOCUMENTED})
    assert len(load(root, tmp_path)) == 3


@pytest.mark.guards("dataset-root-not-file")
@pytest.mark.parametrize("name", DOCUMENTED)
@pytest.mark.parametrize("slash", ["", "/"], ids=["bare", "slash"])
def test_the_one_file_is_loaded(tmp_path, subject, name, slash):
    root = write(tmp_path / name, **{name: table(3)})
    file = subject(f"{root}{slash}")
    assert file == str(root / "data" / f"{name}.parquet")
    assert load(file, tmp_path)["prompt"][:] == ["prompt 0", "prompt 1", "prompt 2"]


@pytest.mark.guards("dataset-root-not-file")
def test_a_file_stays_itself(tmp_path, subject):
    root = write(tmp_path / "math", train=table(3), test=table(1))
    file = str(root / "data" / "test.parquet")
    assert subject(file) == file
    assert len(load(subject(file), tmp_path)) == 1


@pytest.mark.guards("dataset-root-not-file")
def test_two_files_are_not_chosen_from(tmp_path, subject):
    root = write(tmp_path / "math", **{name: table(3) for name in DOCUMENTED})
    with pytest.raises(ValueError, match=r"aime-2024\.parquet.*dapo-math-17k\.parquet"):
        subject(str(root))


@pytest.mark.guards("dataset-root-not-file")
def test_no_parquet_file(tmp_path, subject):
    root = write(tmp_path / "math")
    (root / "data" / "train.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match=re.escape(str(root))):
        subject(str(root))


@pytest.mark.guards("dataset-root-not-file")
def test_nothing_there(tmp_path, subject):
    with pytest.raises(ValueError, match="nowhere"):
        subject(str(tmp_path / "nowhere"))
