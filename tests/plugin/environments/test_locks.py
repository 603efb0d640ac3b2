"""Complete sets of packages: what is read, what is refused, and what differs."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from patience import PATIENCE

from pytest_rlregress.stack import locks
from pytest_rlregress.stack.locks import Lock, LockError, PackageChange


def lock(*lines):
    return Lock({line.partition("==")[0]: line for line in lines})


@pytest.fixture
def read(tmp_path):
    def read(text):
        path = tmp_path / "lock.txt"
        path.write_text(text)
        return locks.read(path)

    return read


def test_pip_freeze_output_equals_the_lock_of_this_environment(read):
    freeze = [sys.executable, "-m", "uv", "--quiet", "pip", "freeze", "--python", sys.executable]
    frozen = read(subprocess.run(freeze, stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE).stdout)
    here = locks.installed()
    assert locks.differences(frozen, here) == []
    assert here.version("torch")
    assert here.lines["pytest-rlregress"].startswith("-e /")


def test_reads_the_output_of_a_resolver(read):
    text = """
        # by uv
        --index-url https://example.org/simple
        Torch==2.13.0+cpu \\
            --hash=sha256:00 \\
            --hash=sha256:01
        typing_extensions===4.1  # via torch
        colorama==1.0 ; sys_platform == 'win32'
        mine @ git+https://example.org/mine@abc
    """
    assert read(text).text == ("mine @ git+https://example.org/mine@abc\ntorch==2.13.0+cpu\ntyping-extensions==4.1\n")


def test_an_editable_project_is_named_by_its_configuration(read, tmp_path):
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "pyproject.toml").write_text('[project]\nname = "My.Trainer"\n')
    assert read("-e ./trainer").lines == {"my-trainer": f"-e {tmp_path / 'trainer'}"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("torch>=2", r"line 1: 'torch>=2': not exactly one version"),
        ("numpy==1.0\n\ntorch==2.*", r"line 3: 'torch==2.\*': not exactly one version"),
        ("a==1 \\\n  --hash=sha256:0\nb", r"line 3: 'b': not exactly one"),
        ("torch==1\ntorch==2", "line 2: torch is given twice: torch==1 and torch==2"),
        ("what is this", "line 1: 'what is this': no requirement"),
        ("-e ./nowhere", "names the project"),
        ("# nothing\n", "holds no package"),
        ("{}", "line 1: '{}': no requirement"),
    ],
)
def test_rejects_a_line_that_is_not_exact_with_its_place(read, text, why):
    with pytest.raises(LockError, match=why):
        read(text)


def test_rejects_a_missing_file(tmp_path):
    with pytest.raises(LockError, match=r"none\.txt: cannot be read"):
        locks.read(tmp_path / "none.txt")


def test_lists_changed_added_and_removed_packages():
    before, after = lock("a==1", "b==1", "c==1"), lock("a==1", "b==2", "d==1")
    assert locks.differences(before, after) == [
        PackageChange("b", "b==1", "b==2"),
        PackageChange("c", "c==1", None),
        PackageChange("d", None, "d==1"),
    ]
    assert [str(change) for change in locks.differences(before, after)] == ["b 1 -> 2", "c 1 -> none", "d none -> 1"]


def test_digest_ignores_the_order_of_packages():
    one, other = lock("a==1", "b==2"), lock("b==2", "a==1")
    assert one.digest == other.digest != one.having({"b": "b==3"}).digest
    assert one.having({"B": None, "c": "c==1"}) == lock("a==1", "c==1")
    assert one.having({"b": "b==2"}).digest == one.digest
    assert one.version("b") == "2"
    assert one.version("c") is None


def test_packages_vendored_by_setuptools_do_not_count():
    script = """
        from pytest_rlregress import stack
        from pytest_rlregress.stack import locks, requirements
        before = locks.installed(), stack.versions(), requirements.read_requirements()
        import setuptools, sys
        assert any("_vendor" in folder for folder in sys.path), "setuptools no longer does so: this test can be removed"
        assert before == (locks.installed(), stack.versions(), requirements.read_requirements())
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)
