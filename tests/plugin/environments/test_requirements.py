"""What packages ask of each other: of this environment, of made-up ones, and against brute force."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from patience import PATIENCE

from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.stack import requirements
from pytest_rlregress.stack.locks import PackageChange
from pytest_rlregress.trials import upgrades


def asking(**wanted):
    """Wishes by package: ``asking(trl=["torch>=2"])``."""
    return {name.replace("_", "-"): tuple(map(Requirement, some)) for name, some in wanted.items()}


def texts(found):
    return {name: sorted(map(str, some)) for name, some in found.items()}


@pytest.fixture
def site(tmp_path):
    """An environment to be filled by ``site("torch", "2.13.0", "numpy>=1", …)``, that answers what it asks for."""

    def add(name, version, *requires, folder="site"):
        info = tmp_path / folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = "".join(f"Requires-Dist: {line}\n" for line in requires)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{lines}")

    def found(*folders):
        paths = [str(tmp_path / folder) for folder in folders or ["site"]]
        return texts(requirements.read_requirements(metadata.distributions(path=paths)))

    add.requires = found
    return add


def test_keeps_only_requirements_that_apply_here(site):
    site(
        "Tensor_Dict", "0.9", "numpy>=1 ; python_version >= '3'", "enum34 ; python_version < '3'", "rich ; extra == 'x'"
    )
    assert site.requires() == {"tensor-dict": ["numpy>=1"]}


def test_extras_count_where_they_are_asked_for_also_by_way_of_others(site):
    site("trainer", "1", "engine[serve]")
    site(
        "engine", "2", "torch", "web[all] ; extra == 'serve'", "sound ; extra == 'audio'", "engine[web] ; extra == 'no'"
    )
    site(
        "web", "3", "web[a,B_c] ; extra == 'all'", "one ; extra == 'a'", "two ; extra == 'b-c'", "three ; extra == 'd'"
    )
    assert site.requires() == {
        "trainer": ["engine[serve]"],
        "engine": ["torch", "web[all]"],
        "web": ["one", "two", "web[B_c,a]"],
    }


def test_the_first_on_the_path_counts(site):
    site("verl", "1", "ray", folder="first")
    site("verl", "2", "torch", folder="second")
    assert site.requires("first", "second") == {"verl": ["ray"]}


def test_skips_an_invalid_requirement_and_reads_a_url(site):
    site("old", "1", "numpy (>1.x.*)", "torch @ https://example.org/torch;1.whl ; python_version >= '3'")
    assert site.requires() == {"old": ["torch@ https://example.org/torch;1.whl"]}


@pytest.fixture(scope="module")
def asked_here():
    return requirements.read_requirements()


def here():
    distributions = [one for one in metadata.distributions() if one.metadata["Name"]]
    return {canonicalize_name(one.metadata["Name"]): one.version for one in reversed(distributions)}


def test_finds_the_same_broken_requirements_as_uv(asked_here):
    from uv import find_uv_bin

    command = [find_uv_bin(), "pip", "check", "--offline", "--python", sys.executable]
    said = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE).stderr
    assert re.search(r"Checked \d+ packages", said)
    expected = set(re.findall(r"^The package `(\S+)` requires `([\w.-]+)", said, re.MULTILINE))
    found = requirements.find_unmet(here(), asked_here)
    assert {
        (name, canonicalize_name(requirement.name)) for name, some in found.items() for requirement in some
    } == expected


def test_missing_package_or_other_version_breaks_a_requirement():
    asked = asking(
        vllm=["torch==2.13.0", "torchvision", "numpy<2", "ray>=2", "mine>=7"],
        ray=["click>=8"],
        gone=["nothing"],
    )
    versions = {"vllm": "0.31", "torch": "2.13.0+cpu", "numpy": "2.1", "ray": "3.0.dev1", "mine": "-e /mine"}
    assert texts(requirements.find_unmet(versions, asked)) == {"vllm": ["numpy<2", "torchvision"], "ray": ["click>=8"]}


def test_follows_dependencies_to_their_end():
    asked = asking(trl=["Accelerate", "missing"], accelerate=["torch"], torch=["trl"], numpy=[], ray=["numpy"])
    assert requirements.find_dependencies(["trl"], asked) == {"trl", "accelerate", "torch"}
    assert requirements.find_dependencies(["Ray", "absent"], asked) == {"ray", "numpy"}
    assert requirements.find_dependencies([], asked) == set()


def test_dependencies_in_this_environment_are_complete(asked_here):
    found = requirements.find_dependencies(["transformers"], asked_here)
    assert {"transformers", "tokenizers", "huggingface-hub", "numpy"} <= found < set(asked_here)
    there = {name: version for name, version in here().items() if name in found}
    assert requirements.find_unmet(there, asked_here) == {}


# --- Which cannot be moved alone.


@dataclass(frozen=True)
class Ends:
    """Two sets of packages with what they ask for."""

    old: tuple[dict[str, str], requirements.Requirements]
    new: tuple[dict[str, str], requirements.Requirements]

    @property
    def changes(self):
        old, new = self.old[0], self.new[0]
        names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
        return [PackageChange(name, old.get(name), new.get(name)) for name in names]

    def valid(self, moved):
        """Whether each package has what it asks for in its chosen version, but for what its own end breaks."""
        changed = {change.name for change in self.changes}
        chosen = {}
        for name in {*self.old[0], *self.new[0]}:
            version = (self.new if name in moved else self.old)[0].get(name)
            if version is not None:
                chosen[name] = version
        for name in chosen:
            ends = [self.old, self.new] if name not in changed else [self.new if name in moved else self.old]
            for requirement in ends[0][1].get(name, ()):
                lived_with = any(not met(requirement, versions) for versions, _ in ends)
                if not lived_with and not met(requirement, chosen):
                    return False
        return True


def met(requirement, versions):
    return requirement.name in versions and versions[requirement.name] in requirement.specifier


@st.composite
def ends(draw):
    names = "pqrstu"[: draw(st.integers(1, 6))]
    moves = st.sampled_from([("1", "2"), ("1", "2"), ("1", "2"), ("1", "1"), ("2", "1"), (None, "2"), ("1", None)])
    versions = {name: draw(moves) for name in names}
    requirement = st.builds("{}{}".format, st.sampled_from(names), st.sampled_from(["", "==1", "==2", ">=2", "<2"]))
    some = st.lists(requirement.map(Requirement), max_size=2).map(tuple)
    old = {name: draw(some) for name in names}
    new = {name: old[name] if versions[name][0] == versions[name][1] else draw(some) for name in names}
    return Ends(*(({n: v[i] for n, v in versions.items() if v[i]}, asked) for i, asked in enumerate((old, new))))


def unions(names):
    return (frozenset(some) for size in range(len(names) + 1) for some in itertools.combinations(names, size))


@settings(EXAMPLES, max_examples=300)
@given(ends())
def test_units_are_exactly_the_sets_that_can_move(ends):
    """Moving whole units with what they need is all that is valid, and whatever is valid can be moved so."""
    order, needs, members = upgrades.group_changes(ends.changes, ends.old, ends.new)
    changed = sorted(change.name for change in ends.changes)
    assert sorted(name for unit in order for name in members[unit]) == changed
    for index, unit in enumerate(order):
        assert needs[unit] <= set(order[:index]), "not after those it needs"
        assert all(needs[other] <= needs[unit] for other in needs[unit])
    closed = (some for some in unions(order) if all(needs[unit] <= some for unit in some))
    movable = {frozenset(name for unit in some for name in members[unit]) for some in closed}
    assert movable == {moved for moved in unions(changed) if ends.valid(moved)}


def test_packages_that_require_each_other_are_one_unit():
    old = {"transformers": "4.57", "huggingface-hub": "0.36", "tokenizers": "0.22", "rich": "13", "trl": "0.9"}
    new = {"transformers": "5.0", "huggingface-hub": "1.0", "tokenizers": "0.23", "rich": "14", "trl": "1.0"}
    before = asking(transformers=["huggingface_hub<1", "tokenizers>=0.22"], trl=["transformers<5"])
    after = asking(transformers=["huggingface-hub>=1", "tokenizers>=0.22"], trl=["transformers>=4"])
    order, needs, members = upgrades.group_changes(
        Ends((old, before), (new, after)).changes, (old, before), (new, after)
    )
    assert order == ("rich", "tokenizers", "trl", "huggingface-hub + transformers")
    assert members["huggingface-hub + transformers"] == ("huggingface-hub", "transformers")
    assert needs == {
        "rich": frozenset(),
        "tokenizers": frozenset(),
        "trl": frozenset(),
        "huggingface-hub + transformers": frozenset({"trl"}),
    }


def test_groups_added_and_removed_packages():
    old, new = {"engine": "1", "six": "1"}, {"engine": "2", "kernels": "1"}
    found = upgrades.group_changes(
        [PackageChange("engine", "1", "2"), PackageChange("kernels", None, "1"), PackageChange("six", "1", None)],
        (old, asking(engine=["six"])),
        (new, asking(engine=["kernels"], kernels=[])),
    )
    assert found.order == ("kernels", "engine", "six")
    assert found.needs == {
        "kernels": frozenset(),
        "engine": frozenset({"kernels"}),
        "six": frozenset({"engine", "kernels"}),
    }


def test_package_from_a_folder_may_be_any_version():
    changes = [PackageChange("trainer", "-e /old", "-e /new"), PackageChange("torch", "torch==2", "torch==3")]
    old, new = {"trainer": "-e /old", "torch": "2"}, {"trainer": "-e /new", "torch": "3"}
    found = upgrades.group_changes(changes, (old, asking(torch=["trainer>=1"])), (new, asking(torch=["trainer>=2"])))
    assert found.needs == {"trainer": frozenset(), "torch": frozenset()}
