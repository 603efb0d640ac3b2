"""A model is downloaded until each file is what the hub says of it: nothing loads part of a shard."""

import filecmp

import pytest

from pytest_rlregress.failures.act import act, witness
from pytest_rlregress.scenarios.models.loopback_hub import Fault
from pytest_rlregress.scenarios.models.truncated_download.two_shards import (
    CUT,
    MODEL,
    WHOLE,
    download,
    half,
    load,
    put_fault,
)

pytestmark = pytest.mark.guards("truncated-download")


def check_complete(folder, published):
    """Every file as published, and the model loads."""
    for path in published.iterdir():
        assert filecmp.cmp(folder / path.name, path, shallow=False), f"{path.name} is not as published"
    load(folder)


@pytest.mark.parametrize(
    "fault",
    [Fault(after=1000, times=8), Fault(body=b"", times=1), Fault(after=1000, silence=1.0, times=2)],
    ids=["cut", "empty", "silent"],
)
def test_goes_on_until_complete(hub, subject, published, tmp_path, monkeypatch, fault):
    put_fault(hub, fault, monkeypatch)
    attempts = 9  # huggingface-hub 0.x gives up at every cut, 1.x at every fifth
    with act():
        check_complete(subject(MODEL, tmp_path, "main", hub.endpoint, attempts), published)
    witness(CUT in hub.befallen, "the download was not cut")
    fetched = [file for file, _ in hub.downloads]
    assert fetched.count(WHOLE) == 1, f"a shard that was right was fetched {fetched.count(WHOLE)} times"


@pytest.mark.parametrize("fill", [b"", b"\0"], ids=["half", "zeros-to-the-end"])
def test_half_a_shard_is_not_taken_for_whole(hub, subject, published, tmp_path, fill):
    hub.faults[CUT] = Fault(body=half(published / CUT, fill), times=1)
    with act():
        check_complete(subject(MODEL, tmp_path, "main", hub.endpoint, 3), published)
    witness(CUT in hub.befallen, "the whole shard was sent")


@pytest.mark.parametrize("revision", ["main", "v1"])
def test_the_revision_asked_for_comes(hub, subject, published, older, tmp_path, revision):
    """From HF_ENDPOINT, to a folder that is made."""
    folder = tmp_path / "models" / "here"
    assert subject(MODEL, str(folder), revision) == folder
    check_complete(folder, {"main": published, "v1": older}[revision])


@pytest.mark.parametrize(
    ("model", "revision", "error"),
    [("tiny/none", "main", "RepositoryNotFoundError"), (MODEL, "v2", "RevisionNotFoundError")],
)
def test_rejects_an_unknown_model_or_revision(hub, subject, tmp_path, model, revision, error):
    with pytest.raises(OSError, match="Not Found") as refused:
        subject(model, tmp_path, revision, hub.endpoint)
    assert type(refused.value).__name__ == error


@pytest.mark.parametrize("fill", [b"", b"\0"], ids=["half", "zeros-to-the-end"])
def test_half_a_shard_left_behind_is_replaced(hub, subject, published, tmp_path, fill):
    download(hub, tmp_path)
    (tmp_path / CUT).write_bytes(half(published / CUT, fill))
    with act():
        check_complete(subject(MODEL, tmp_path, "main", hub.endpoint, 3), published)


@pytest.mark.parametrize("fill", [None, b"", b"\0"], ids=["cut", "half", "zeros-to-the-end"])
def test_gives_up_and_leaves_nothing_to_load(hub, subject, published, tmp_path, fill):
    hub.faults[CUT] = Fault(after=1000) if fill is None else Fault(body=half(published / CUT, fill))
    with act(), pytest.raises(RuntimeError, match=CUT) as raised:
        subject(MODEL, tmp_path, "main", hub.endpoint, 2)
    assert WHOLE not in str(raised.value), f"names a file that is right: {raised.value}"
    assert not (tmp_path / CUT).exists(), f"{(tmp_path / CUT).stat().st_size} bytes of a shard are left to be loaded"
    assert filecmp.cmp(tmp_path / WHOLE, published / WHOLE, shallow=False)


@pytest.mark.parametrize(("given", "attempts"), [({"attempts": 1}, 1), ({"attempts": 3}, 3), ({}, 5)])
def test_as_many_attempts_as_asked_for(hub, subject, published, tmp_path, given, attempts):
    hub.faults[CUT] = Fault(body=half(published / CUT, b"\0"))
    with act(), pytest.raises(RuntimeError, match=CUT):
        subject(MODEL, tmp_path, endpoint=hub.endpoint, **given)
    assert [file for file, _ in hub.downloads].count(CUT) == attempts
