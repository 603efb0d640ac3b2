"""Resolving with real uv, offline, from a folder of tiny wheels: what is wanted moves, and as little else as must."""

from __future__ import annotations

import pytest
from made_distributions import lock, source
from packaging.requirements import Requirement

from pytest_rlregress.environments.uv import Unbuildable
from pytest_rlregress.scenarios.dependencies.wheel_index import wheel
from pytest_rlregress.stack.locks import Lock, differences


@pytest.fixture
def fill(index):
    """Fill the folder with wheels: ``fill("model 1.0 2.0: maths tools>=1")``."""

    def fill(*lines):
        for line in lines:
            about, _, requires = line.partition(":")
            name, *versions = about.split()
            for version in versions:
                wheel(index, name, version, requires.split())

    return fill


@pytest.fixture
def move(environments):
    """Resolve a lock with other versions: ``move("model==1.0", "model==2.0", model="maths")`` lists what changed."""

    def move(base, wanted, *, offline=True, **asked):
        base = base if isinstance(base, Lock) else lock(*base.split())
        requires = {name: tuple(map(Requirement, some.split())) for name, some in asked.items()}
        versions = dict(one.split("==") for one in wanted.split())
        return list(
            map(str, differences(base, environments(offline=offline).resolver.resolve(base, versions, requires)))
        )

    return move


PAIRED = ("model 1.0: maths==1.0 tools", "model 2.0: maths==2.0 tools", "maths 1.0 2.0")
MOVES = {
    "others move as little as they must": (
        (
            *PAIRED,
            "model 3.0: maths==3.0 tools",
            "maths 3.0",
            "tools 1.0 2.0 3.0",
            "trainer 1.0: model unused",
            "unused 1.0",
        ),
        "model==1.0 maths==1.0 tools==2.0 trainer==1.0 unused==1.0",
        "model==2.0",
        {"model": "maths==1.0 tools", "trainer": "model unused"},
        ["maths 1.0 -> 2.0", "model 1.0 -> 2.0"],
    ),
    "a pre-release of the base stays": (
        (*PAIRED, "tools 0.1b1 0.1 0.2b1"),
        "model==1.0 maths==1.0 tools==0.1b1",
        "model==2.0",
        {"model": "maths==1.0 tools"},
        ["maths 1.0 -> 2.0", "model 1.0 -> 2.0"],
    ),
    "a build's label is kept": (
        (*PAIRED, "tools 2.0+cpu 2.1"),
        "model==1.0 maths==1.0 tools==2.0+cpu",
        "model==2.0",
        {"model": "maths==1.0 tools"},
        ["maths 1.0 -> 2.0", "model 1.0 -> 2.0"],
    ),
    # The engine's wish is not met; the trainer's next release asks the same package for more, and gets it.
    "other requirements on the same package still count": (
        ("model 5.0 5.1", "engine 1.0: model<5", "trainer 1.0: model", "trainer 2.0: model>=5.1"),
        "model==5.0 engine==1.0 trainer==1.0",
        "trainer==2.0",
        {"engine": "model<5", "trainer": "model"},
        ["model 5.0 -> 5.1", "trainer 1.0 -> 2.0"],
    ),
    "a broken requirement stays unenforced in another version": (
        ("engine 1.0: model<5 vision", "engine 0.9: model<4 vision", "model 3.0 5.0", "vision 1.0"),
        "model==5.0 engine==1.0",
        "engine==0.9",
        {"engine": "model<5 vision"},
        ["engine 1.0 -> 0.9"],
    ),
}


@pytest.mark.parametrize(("wheels", "base", "wanted", "asked", "changes"), MOVES.values(), ids=MOVES)
def test_moves_what_is_wanted_and_little_else(fill, move, wheels, base, wanted, asked, changes):
    fill(*wheels)
    assert move(base, wanted, **asked) == changes


@pytest.mark.parametrize("offline", [True, False])
def test_only_the_wanted_moves_and_what_it_asks_for_is_added(fill, move, offline):
    fill("model 1.0: maths", "model 2.0: maths extra-maths>=1", "maths 1.0 2.0", "extra-maths 1.0 2.0")
    changes = move("model==1.0 maths==1.0", "model==2.0", offline=offline, model="maths")
    assert changes == ["extra-maths none -> 2.0", "model 1.0 -> 2.0"]


def test_conflict_quotes_the_resolver_on_one_line(fill, move):
    fill("model 1.0", "model 2.0: maths>=2", "maths 1.0")
    with pytest.raises(Unbuildable) as refusal:
        move("model==1.0 maths==1.0", "model==2.0")
    assert str(refusal.value) == (
        "Because model>=2.0 depends on maths>=2 and you require model==2.0, we can conclude that you require maths>=2. "
        "And because you require maths==1.0, we can conclude that your requirements are unsatisfiable"
        "; nor is there a solution with others moved"
    )
    assert "unsatisfiable" in refusal.value.text


def test_names_a_version_that_does_not_exist(fill, move):
    fill("model 1.0")
    with pytest.raises(Unbuildable, match=r"^Because there is no version of model==9\.0 and you require model==9\.0, "):
        move("model==1.0", "model==9.0")


@pytest.mark.parametrize("configured", [{}, {"UV_NO_CONFIG": "1"}, {"UV_CONFIG_FILE": "own.toml"}])
def test_requirements_the_base_breaks_are_not_enforced(fill, move, configured, monkeypatch, tmp_path):
    (tmp_path / "own.toml").write_text("offline = true\n")
    for name, value in configured.items():
        monkeypatch.setenv(name, str(tmp_path / value) if name == "UV_CONFIG_FILE" else value)
    fill("model 5.0 5.1", "engine 1.0: model<5 vision", "vision 1.0")
    assert move("model==5.0 engine==1.0", "model==5.1", engine="model<5 vision") == ["model 5.0 -> 5.1"]
    with pytest.raises(Unbuildable, match="all versions of engine depend on model<5"):  # had the base met it
        move("model==5.0 engine==1.0", "model==5.1")


def test_a_project_and_a_url_stay_as_they_are_and_what_they_ask_for_counts(fill, move, tmp_path):
    """Neither can be built here."""
    fill("model 1.0 2.0 3.0: patched")
    base = Lock(
        {
            "trainer": f"-e {tmp_path / 'trainer'}",
            "patched": "patched @ https://localhost:9/patched.tar.gz",
            "model": "model==1.0",
        }
    )
    asked = {"trainer": "model<3 patched", "model": "patched"}
    assert move(base, "model==2.0", **asked) == ["model 1.0 -> 2.0"]
    with pytest.raises(Unbuildable, match=r"you require model==3\.0 and model<3"):
        move(base, "model==3.0", **asked)


def test_ignores_the_users_resolver_settings(fill, environments, monkeypatch, tmp_path):
    """Each of these alone would change the set, or keep it from being installed."""
    fill("model 1.0 2.0: maths", "maths 1.0 2.0")
    (tmp_path / "theirs.txt").write_text("model==1.0\n")
    for name in ("UV_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE"):
        monkeypatch.setenv(name, str(tmp_path / "theirs.txt"))
    monkeypatch.setenv("UV_RESOLUTION", "lowest")
    monkeypatch.setenv("UV_REQUIRE_HASHES", "1")
    here = environments()
    found = here.resolver.resolve(lock("model==1.0"), {"model": "2.0"}, {})
    assert found.text == "maths==2.0\nmodel==2.0\n"
    assert (here.build(found).packages / "model-2.0.dist-info").exists()


def test_exact_swaps_the_line_alone(environments):
    base = lock("model==1.0", "maths==1.0")
    found = environments().resolver.resolve(base, {"Model": "2.0"}, {}, exact=True)
    assert [*map(str, differences(base, found))] == ["model 1.0 -> 2.0"]


def test_builds_only_packages_of_the_base_from_source(index, fill, move):
    source(index, "antlr", "4.9")
    source(index, "model", "3.0")
    fill("model 1.0 2.0: antlr")
    assert move("model==1.0 antlr==4.9", "model==2.0", model="antlr") == ["model 1.0 -> 2.0"]
    with pytest.raises(Unbuildable, match=r"model==3\.0 has no usable wheels"):
        move("model==1.0 antlr==4.9", "model==3.0", model="antlr")


def test_package_built_from_source_stays_when_others_may_move(index, fill, move):
    source(index, "antlr", "4.9")
    fill(
        "config 1.3: antlr",
        "config 0.9",
        "maths 1.0 2.0",
        *(f"model {one}: maths=={one} config" for one in ("1.0", "2.0")),
    )
    base = "model==1.0 maths==1.0 config==1.3 antlr==4.9"
    changes = move(base, "model==2.0", model="maths==1.0 config", config="antlr")
    assert changes == ["maths 1.0 -> 2.0", "model 1.0 -> 2.0"]


def test_package_that_nothing_requires_stays_if_possible(fill, move):
    fill("model 1.0: maths==1.0", "model 2.0: maths==2.0", "maths 1.0: old older", "maths 2.0")
    fill("old 1.0: older", "older 1.0")
    base = "model==1.0 maths==1.0 old==1.0 older==1.0"
    asked = {"model": "maths==1.0", "maths": "old older", "old": "older"}
    assert move(base, "model==2.0", **asked) == ["maths 1.0 -> 2.0", "model 1.0 -> 2.0"]
    fill("old 1.0: older maths<2")
    changes = move(base, "model==2.0", **{**asked, "old": "older maths<2"})
    assert changes == ["maths 1.0 -> 2.0", "model 1.0 -> 2.0", "old 1.0 -> none", "older 1.0 -> none"]


def test_other_version_keeps_the_build_label_or_is_rejected(fill, move):
    fill("torch 2.0+cpu 2.1+cpu 2.1 2.2")
    assert move("torch==2.0+cpu", "torch==2.1") == ["torch 2.0+cpu -> 2.1+cpu"]
    with pytest.raises(Unbuildable, match=r"no version of torch==2\.2\+cpu .*; with --torch-backend cpu: .*torch"):
        move("torch==2.0+cpu", "torch==2.2")


def test_conflict_is_reported_before_unreachable_builds(fill, move, monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "http://localhost:9")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    fill("torch 2.0+cpu", "model 2.0: torch>=3")
    with pytest.raises(Unbuildable, match=r"^Because .* depend on torch>=3.*; with --torch-backend cpu: .*fetch"):
        move("model==1.0 torch==2.0+cpu", "model==2.0", offline=False, model="torch")
