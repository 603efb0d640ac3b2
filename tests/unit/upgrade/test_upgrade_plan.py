"""What an upgrade is resolved from: words, a project's conditions, the releases that are meant, what may be moved."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from pytest_rlregress.environments import releases, resolver
from pytest_rlregress.environments.constraints import read_constraints
from pytest_rlregress.environments.index_settings import IndexProblem
from pytest_rlregress.environments.releases import Release
from pytest_rlregress.stack.locks import Lock, LockError
from pytest_rlregress.trials.context import RequestError
from pytest_rlregress.upgrade import plan

# -- a project's conditions -------------------------------------------------------------------------------------------


def test_conditions_are_read_with_their_lines_and_from_the_files_that_are_named(tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "requirements.txt").write_text(
        "# of mine\n"
        "Torch_Geometric >=2, <3  # why\n"
        "--index-url https://example.invalid/simple\n"
        "-r more/base.txt\n"
        "-e .\n"
        "anything\n"
        "thing @ https://example.invalid/thing.whl\n"
        'old<1; python_version < "3"\n'
        "pinned==1.0 \\\n    --hash=sha256:0123\n"
        "extra[one]~=1.4\n"
    )
    (tmp_path / "more/base.txt").write_text("numpy<3\n-c ../requirements.txt\n")
    path = tmp_path / "requirements.txt"
    assert [(one.name, one.line, one.source) for one in read_constraints(path)] == [
        ("torch-geometric", "torch-geometric<3,>=2", f"{path}: line 2"),
        ("numpy", "numpy<3", f"{tmp_path / 'more/base.txt'}: line 1"),
        ("pinned", "pinned==1.0", f"{path}: line 9"),
        ("extra", "extra~=1.4", f"{path}: line 11"),
    ]


@pytest.mark.parametrize("text", ["two words\n", "thing>=\n", "==1\n"])
def test_a_line_that_is_no_requirement_is_named(tmp_path, text):
    path = tmp_path / "requirements.txt"
    path.write_text("ok\n" + text)
    with pytest.raises(LockError, match=r"requirements\.txt: line 2: .* is no requirement"):
        read_constraints(path)


def test_a_file_that_is_named_and_not_there(tmp_path):
    (tmp_path / "requirements.txt").write_text("-r gone.txt\n")
    with pytest.raises(LockError, match=r"gone\.txt: cannot be read"):
        read_constraints(tmp_path / "requirements.txt")


def test_a_condition_on_a_package_from_a_folder_is_no_floor(tmp_path):
    (tmp_path / "requirements.txt").write_text("mine>=2\nthing<2\nother>1\n")
    here = Lock({"mine": "-e /x", "thing": "thing==2.0", "other": "other==2.0"})
    context = SimpleNamespace(options=SimpleNamespace(may_downgrade=[]))
    assert plan._find_floors(context, here, {}, read_constraints(tmp_path / "requirements.txt")) == {"other"}


@pytest.mark.parametrize(
    ("specifier", "version"),
    [("==5.0", "5.0"), ("===5.0", "5.0"), ("==5.0,>=4", None), (">=4,==5.0", None), ("==5.*", None), (">4", None)],
)
def test_one_condition_alone_names_an_exact_version(specifier, version):
    assert plan.find_exact(SpecifierSet(specifier)) == version


# -- the release that is meant ----------------------------------------------------------------------------------------

RELEASED = [
    Release("1.0"),
    Release("1.1", yanked="broken"),
    Release("1.2"),
    Release("2.0rc1", prerelease=True),
    Release("2.0", untestable="needs Python >=4"),
]


@pytest.mark.parametrize(
    ("wanted", "pre", "found"),
    [("", False, "1.2"), ("<1.2", False, "1.0"), ("", True, "2.0rc1"), (">=1.2", False, "1.2")],
)
def test_the_newest_release_that_is_meant_and_can_be_installed(wanted, pre, found):
    assert releases.find_newest(RELEASED, SpecifierSet(wanted), pre).version == found


def test_no_release_that_is_meant():
    with pytest.raises(IndexProblem, match=r"no release is >=2; newest that can be installed here: 1\.2"):
        releases.find_newest(RELEASED, SpecifierSet(">=2"), pre=False)
    with pytest.raises(IndexProblem, match="none can be installed here"):
        releases.find_newest(RELEASED[-1:], SpecifierSet(), pre=False)


def test_what_is_held_under_all():
    base = Lock(
        {
            "mine": "-e /somewhere",
            "torch": "torch==2.13.0+cpu",
            "numpy": "numpy==2.0",
            "old": "old==1.0",
            "other": "other==1.0",
        }
    )
    requires = {"old": (Requirement("numpy<2"), Requirement("other")), "numpy": (), "other": ()}
    assert resolver.list_movable(base, requires) == {"old", "other"}


# -- words ------------------------------------------------------------------------------------------------------------


def test_what_is_installed_is_a_package_and_all_else_a_test():
    words = [
        "packaging==25.0",
        "Pytest",
        "psutil>=5,<9",
        "rollout",
        "batch/mask-length-drift",
        "tests/test_x.py::test_y[a]",
    ]
    packages, tests = plan.split_words(words)
    assert [str(one) for one in packages] == ["packaging==25.0", "Pytest", "psutil<9,>=5"]
    assert tests == words[3:]


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("nothing-of-that-name==1", "is not installed here: an upgrade is of what is there"),
        ("deepspeed==1", "is not installed here"),
        ("packaging[all]==1", "its name and its version"),
        ('packaging==1; python_version > "3"', "its name and its version"),
        ("packaging==1.x.y", "is no package with a version"),
        ("pytest-rlregress==9", "is what compares"),
    ],
)
def test_words_that_are_neither(word, why):
    with pytest.raises(RequestError, match=why):
        plan.split_words([word])
