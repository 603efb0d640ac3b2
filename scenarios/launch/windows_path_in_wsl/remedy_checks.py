"""Every path with a drive letter is written as WSL mounts it; others stay."""

import string
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_rlregress.fixtures.drawn import EXAMPLES

NAMES = st.text(string.ascii_letters + string.digits + " ._-\u00e9\u4e2d", min_size=1, max_size=8)
OTHERS = [
    "/mnt/c/Users/rl",
    "data/train.parquet",
    "Qwen/Qwen2.5-7B",
    "s3://bucket/c:/x",
    "hf://datasets/a",
    "c:x",
    "",
]


@given(
    drive=st.sampled_from(string.ascii_letters),
    names=st.lists(NAMES, max_size=4),
    separator=st.sampled_from("/\\"),
)
@example("D", ["rl", "my data"], "\\")
@example("c", [], "/")
@EXAMPLES
def test_any_windows_path(subject, drive, names, separator):
    path = Path(subject(f"{drive}:{separator}" + separator.join(names)))
    assert path.parts == (
        "/",
        "mnt",
        drive.lower(),
        *[part for name in names for part in Path(name).parts],
    )
    assert subject(str(path)) == str(path)


@pytest.mark.parametrize("path", OTHERS)
def test_other_paths(subject, path):
    assert subject(path) == path
