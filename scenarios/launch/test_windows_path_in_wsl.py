"""A configuration from Windows names C:/Users/…, which inside WSL is a relative path to nowhere."""

from __future__ import annotations

import os
import string
import subprocess
from pathlib import Path, PureWindowsPath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_rlregress.fixtures.drawn import EXAMPLES

FILE = "C:/Users/rl/data/train.parquet"
FOLDER = "C:/Users/rl/models/qwen"
BOTH = pytest.mark.parametrize("separator", ["/", "\\"], ids=["slash", "backslash"])


@pytest.mark.reproduces("windows-path-in-wsl")
@pytest.mark.needs("linux")
@BOTH
def test_open(separator):
    with open(FILE.replace("/", separator)):
        pass


@pytest.mark.reproduces("windows-path-in-wsl")
@pytest.mark.needs("linux", "datasets")
@BOTH
def test_dataset(tmp_path, separator):
    import datasets

    datasets.load_dataset("parquet", data_files=FILE.replace("/", separator), cache_dir=str(tmp_path))


@pytest.mark.reproduces("windows-path-in-wsl")
@pytest.mark.needs("linux", "transformers")
@BOTH
def test_model(separator):
    import transformers

    transformers.AutoConfig.from_pretrained(FOLDER.replace("/", separator))


@pytest.mark.reproduces("windows-path-in-wsl")
@pytest.mark.needs("linux", "transformers")
def test_checkpoint(tmp_path, monkeypatch):
    import transformers

    monkeypatch.chdir(tmp_path)
    transformers.Qwen2Config().save_pretrained(FOLDER)
    stray = [str(file) for file in tmp_path.rglob("config.json")]
    assert not stray, f"silent: saved to {FOLDER}, the checkpoint is in the working directory: {stray[0]}"


@pytest.mark.guards("windows-path-in-wsl")
@pytest.mark.needs("linux", "datasets")
@BOTH
def test_dataset_is_looked_for_on_the_drive(tmp_path, subject, separator):
    import datasets

    path = subject(FILE.replace("/", separator))
    with pytest.raises(FileNotFoundError, match=r"'/mnt/c/Users/rl/data/train\.parquet'"):
        datasets.load_dataset("parquet", data_files=path, cache_dir=str(tmp_path))


NAMES = st.text(string.ascii_letters + string.digits + " ._-\u00e9\u4e2d", min_size=1, max_size=8)


@pytest.mark.guards("windows-path-in-wsl")
@given(drive=st.sampled_from(string.ascii_letters), names=st.lists(NAMES, max_size=4), separator=st.sampled_from("/\\"))
@example("D", ["rl", "my data"], "\\")
@example("c", [], "/")
@EXAMPLES
def test_any_windows_path(subject, drive, names, separator):
    windows = PureWindowsPath(f"{drive}:\\", *names)
    assert windows.drive, windows
    path = Path(subject(f"{drive}:{separator}" + separator.join(names)))
    assert path.parts == ("/", "mnt", drive.lower(), *[part for name in names for part in Path(name).parts])
    assert subject(str(path)) == str(path), "a path of Linux is left alone"


@pytest.mark.guards("windows-path-in-wsl")
@pytest.mark.parametrize(
    "path",
    [
        "/mnt/c/Users/rl",
        "data/train.parquet",
        "Qwen/Qwen2.5-7B",
        "s3://bucket/c:/x",
        "hf://datasets/a",
        "C:",
        "c:x",
        "",
    ],
)
def test_other_paths(subject, path):
    assert subject(path) == path


@pytest.mark.guards("windows-path-in-wsl")
@pytest.mark.needs("wsl2")
@BOTH
def test_as_wsl_itself(subject, separator):
    windows = "C:/Windows/System32".replace("/", separator)
    told = subprocess.run(["wslpath", "-u", windows], capture_output=True, text=True, timeout=30, check=True)
    assert subject(windows) == told.stdout.strip()
    assert os.path.isdir(subject(windows))
