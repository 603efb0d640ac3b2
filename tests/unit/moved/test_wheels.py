import os
import zipfile

import pytest
from made_wheels import make_wheel, open_releases, serve

from pytest_rlregress.commands.moved.index import NoSuchRelease, NotRead
from pytest_rlregress.commands.moved.wheels import TRAINER, Selection

FILES = {"thing/__init__.py": "VALUE = 1\n", "thing/config.yaml": "a: 1\n", "thing/kernel.so": os.urandom(900_000)}


def read(releases, version="1.0"):
    return releases.read("thing", version, TRAINER)


def test_reads_a_folder_of_wheels(tmp_path):
    make_wheel(tmp_path / "links", "thing", "1.0", FILES, requires=["other>=2"])
    found = read(open_releases(tmp_path, links=[tmp_path / "links"]))
    assert found.read("thing/__init__.py") == "VALUE = 1\n"
    assert "thing/kernel.so" not in found.paths
    assert [str(one) for one in found.requirements] == ["other>=2"]


def test_reads_ranges_and_not_what_is_between(tmp_path):
    files = {"thing/a.py": "A = 1\n", "thing/k.so": os.urandom(900_000), "thing/b.py": "B = 1\n"}
    files["thing/l.so"] = os.urandom(900_000)
    make_wheel(tmp_path / "served", "thing", "1.0", files)
    with serve(tmp_path / "served") as (url, asked):
        found = read(open_releases(tmp_path, indexes=[url]))
    assert found.read("thing/b.py") == "B = 1\n"
    assert next(part for path, part in asked if path.startswith("/files")) == "bytes=-131072"
    assert len(asked) == 4  # the list, the directory, a part each


def test_downloads_once_from_a_server_without_ranges(tmp_path):
    make_wheel(tmp_path / "served", "thing", "1.0", FILES)
    with serve(tmp_path / "served", ranges=False) as (url, asked):
        for _ in range(2):
            assert read(open_releases(tmp_path, indexes=[url])).read("thing/config.yaml") == "a: 1\n"
    assert len(asked) == 2  # the list and the wheel


def test_reads_what_is_kept_without_network(tmp_path):
    make_wheel(tmp_path / "served", "thing", "1.0", FILES)
    with serve(tmp_path / "served") as (url, _):
        read(open_releases(tmp_path, indexes=[url]))
    assert read(open_releases(tmp_path, indexes=[url], offline=True)).read("thing/__init__.py")
    with pytest.raises(NotRead, match="no network is allowed"):
        open_releases(tmp_path, indexes=[url], offline=True).index.list_releases("unknown")


def test_reads_again_what_was_cut_off(tmp_path):
    make_wheel(tmp_path / "links", "thing", "1.0", FILES)
    releases = open_releases(tmp_path, links=[tmp_path / "links"])
    read(releases)
    (kept,) = (tmp_path / "cache").glob("*.zip")
    kept.write_bytes(kept.read_bytes()[:100])
    assert read(releases).read("thing/config.yaml") == "a: 1\n"


def test_keeps_nothing_of_a_download_that_ends_early(tmp_path):
    make_wheel(tmp_path / "served", "thing", "1.0", FILES)
    with serve(tmp_path / "served", breaks=True) as (url, _), pytest.raises(NotRead, match=r"thing-1\.0.*bytes"):
        read(open_releases(tmp_path, indexes=[url]))
    assert not [*(tmp_path / "cache").glob("*.zip")]


def test_says_that_a_wheel_has_no_python(tmp_path):
    with zipfile.ZipFile(tmp_path / "thing-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("thing/kernel.so", "x")
    with pytest.raises(NotRead, match="none of the files"):
        open_releases(tmp_path, links=[tmp_path]).read("thing", "1.0", Selection("python", r".*\.py"))


def test_names_the_nearest_release(tmp_path):
    for version in ("1.0", "1.1", "2.0"):
        make_wheel(tmp_path, "thing", version, FILES)
    releases = open_releases(tmp_path, links=[tmp_path])
    with pytest.raises(NoSuchRelease, match=r"thing 1\.2 has no wheel: the nearest .* is 1\.[01], the newest is 2\.0"):
        read(releases, "1.2")
    with pytest.raises(NoSuchRelease, match="isn't a version"):
        read(releases, "newest")
    with pytest.raises(NoSuchRelease, match="no index has a wheel of other"):
        releases.index.list_releases("other")


def test_prefers_the_wheel_for_every_platform(tmp_path):
    make_wheel(tmp_path, "thing", "1.0", FILES, tag="cp311-cp311-macosx_11_0_arm64")
    make_wheel(tmp_path, "thing", "1.0", FILES)
    releases = open_releases(tmp_path, links=[tmp_path])
    assert releases.index.find_wheel("thing", "1").any_platform


def test_lists_final_releases_between_two(tmp_path):
    for version in ("1.0", "1.1rc1", "1.1", "1.1.post1", "2.0"):
        make_wheel(tmp_path, "thing", version, FILES)
    index = open_releases(tmp_path, links=[tmp_path]).index
    assert index.list_between("thing", "1.0", "2.0") == ["1.0", "1.1", "1.1.post1", "2.0"]
    assert index.list_between("thing", "2.0", "1.1rc1") == ["2.0", "1.1.post1", "1.1", "1.1rc1"]
