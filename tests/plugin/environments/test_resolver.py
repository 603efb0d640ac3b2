"""Resolving with real uv, offline, from a folder of tiny wheels: what is wanted moves, and as little else as must."""

from __future__ import annotations

import pytest
from made_distributions import lock, source
from packaging.requirements import Requirement

from pytest_rlregress.commands.environments.uv import Unbuildable
from pytest_rlregress.scenarios.dependencies.wheel_index import wheel
from pytest_rlregress.stack.locks import Lock, differences


def requires(**asked):
    return {name: tuple(map(Requirement, requirements)) for name, requirements in asked.items()}


def changed(before, after):
    return [str(one) for one in differences(before, after)]


@pytest.mark.parametrize("offline", [True, False])
def test_only_the_wanted_moves_and_what_it_asks_for_is_added(index, environments, offline):
    wheel(index, "model", "1.0", ["maths"])
    wheel(index, "model", "2.0", ["maths", "extra-maths>=1"])
    for version in ("1.0", "2.0"):
        wheel(index, "maths", version)
        wheel(index, "extra-maths", version)
    base = lock("model==1.0", "maths==1.0")
    found = environments(offline=offline).resolver.resolve(base, {"model": "2.0"}, requires(model=["maths"]))
    assert changed(base, found) == ["extra-maths none -> 2.0", "model 1.0 -> 2.0"]


def test_others_move_as_little_as_they_must(index, environments):
    for version in ("1.0", "2.0", "3.0"):
        wheel(index, "model", version, [f"maths=={version}", "tools"])
        wheel(index, "maths", version)
        wheel(index, "tools", version)
    wheel(index, "trainer", "1.0", ["model", "unused"])
    wheel(index, "unused", "1.0")
    base = lock("model==1.0", "maths==1.0", "tools==2.0", "trainer==1.0", "unused==1.0")
    asked = requires(model=["maths==1.0", "tools"], trainer=["model", "unused"])
    found = environments().resolver.resolve(base, {"model": "2.0"}, asked)
    assert changed(base, found) == ["maths 1.0 -> 2.0", "model 1.0 -> 2.0"]


def test_prerelease_of_the_base_stays(index, environments):
    for version in ("1.0", "2.0"):
        wheel(index, "model", version, [f"maths=={version}", "tools"])
        wheel(index, "maths", version)
    for version in ("0.1b1", "0.1", "0.2b1"):
        wheel(index, "tools", version)
    base = lock("model==1.0", "maths==1.0", "tools==0.1b1")
    found = environments().resolver.resolve(base, {"model": "2.0"}, requires(model=["maths==1.0", "tools"]))
    assert changed(base, found) == ["maths 1.0 -> 2.0", "model 1.0 -> 2.0"]


def test_conflict_quotes_the_resolver_on_one_line(index, environments):
    wheel(index, "model", "1.0")
    wheel(index, "model", "2.0", ["maths>=2"])
    wheel(index, "maths", "1.0")
    base = lock("model==1.0", "maths==1.0")
    with pytest.raises(Unbuildable) as refusal:
        environments().resolver.resolve(base, {"model": "2.0"}, {})
    assert str(refusal.value) == (
        "Because model>=2.0 depends on maths>=2 and you require model==2.0, we can conclude that you require maths>=2. "
        "And because you require maths==1.0, we can conclude that your requirements are unsatisfiable"
        "; nor is there a solution with others moved"
    )
    assert "unsatisfiable" in refusal.value.text


def test_names_a_version_that_does_not_exist(index, environments):
    wheel(index, "model", "1.0")
    with pytest.raises(Unbuildable, match=r"^Because there is no version of model==9\.0 and you require model==9\.0, "):
        environments().resolver.resolve(lock("model==1.0"), {"model": "9.0"}, {})


@pytest.mark.parametrize("configured", [{}, {"UV_NO_CONFIG": "1"}, {"UV_CONFIG_FILE": "own.toml"}])
def test_requirements_the_base_breaks_are_not_enforced(index, environments, configured, monkeypatch, tmp_path):
    (tmp_path / "own.toml").write_text("offline = true\n")
    for name, value in configured.items():
        monkeypatch.setenv(name, str(tmp_path / value) if name == "UV_CONFIG_FILE" else value)
    for version in ("5.0", "5.1"):
        wheel(index, "model", version)
    wheel(index, "engine", "1.0", ["model<5", "vision"])
    wheel(index, "vision", "1.0")
    base = lock("model==5.0", "engine==1.0")
    found = environments().resolver.resolve(base, {"model": "5.1"}, requires(engine=["model<5", "vision"]))
    assert changed(base, found) == ["model 5.0 -> 5.1"]
    with pytest.raises(Unbuildable, match="all versions of engine depend on model<5"):  # had the base met it
        environments().resolver.resolve(base, {"model": "5.1"}, {})


def test_other_requirements_on_the_same_package_still_count(index, environments):
    """The engine's wish is not met; the trainer's next release asks the same package for more, and gets it."""
    wheel(index, "model", "5.0")
    wheel(index, "model", "5.1")
    wheel(index, "engine", "1.0", ["model<5"])
    wheel(index, "trainer", "1.0", ["model"])
    wheel(index, "trainer", "2.0", ["model>=5.1"])
    base = lock("model==5.0", "engine==1.0", "trainer==1.0")
    found = environments().resolver.resolve(base, {"trainer": "2.0"}, requires(engine=["model<5"], trainer=["model"]))
    assert changed(base, found) == ["model 5.0 -> 5.1", "trainer 1.0 -> 2.0"]


def test_broken_requirement_stays_unenforced_in_another_version(index, environments):
    wheel(index, "engine", "1.0", ["model<5", "vision"])
    wheel(index, "engine", "0.9", ["model<4", "vision"])
    wheel(index, "model", "3.0")
    wheel(index, "model", "5.0")
    wheel(index, "vision", "1.0")
    base = lock("model==5.0", "engine==1.0")
    found = environments().resolver.resolve(base, {"engine": "0.9"}, requires(engine=["model<5", "vision"]))
    assert changed(base, found) == ["engine 1.0 -> 0.9"]


def test_a_project_and_a_url_stay_as_they_are_and_what_they_ask_for_counts(index, environments, tmp_path):
    """Neither can be built here."""
    for version in ("1.0", "2.0", "3.0"):
        wheel(index, "model", version, ["patched"])
    lines = {
        "trainer": f"-e {tmp_path / 'trainer'}",
        "patched": "patched @ https://localhost:9/patched.tar.gz",
        "model": "model==1.0",
    }
    base = Lock(lines)
    asked = requires(trainer=["model<3", "patched"], model=["patched"])
    found = environments().resolver.resolve(base, {"model": "2.0"}, asked)
    assert changed(base, found) == ["model 1.0 -> 2.0"]
    with pytest.raises(Unbuildable, match=r"you require model==3\.0 and model<3"):
        environments().resolver.resolve(base, {"model": "3.0"}, asked)


def test_ignores_the_users_resolver_settings(index, environments, monkeypatch, tmp_path):
    """Each of these alone would change the set, or keep it from being installed."""
    for version in ("1.0", "2.0"):
        wheel(index, "model", version, ["maths"])
        wheel(index, "maths", version)
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
    assert changed(base, found) == ["model 1.0 -> 2.0"]


def test_builds_only_packages_of_the_base_from_source(index, environments):
    source(index, "antlr", "4.9")
    source(index, "model", "3.0")
    wheel(index, "model", "1.0", ["antlr"])
    wheel(index, "model", "2.0", ["antlr"])
    base = lock("model==1.0", "antlr==4.9")
    found = environments().resolver.resolve(base, {"model": "2.0"}, requires(model=["antlr"]))
    assert changed(base, found) == ["model 1.0 -> 2.0"]
    with pytest.raises(Unbuildable, match=r"model==3\.0 has no usable wheels"):
        environments().resolver.resolve(base, {"model": "3.0"}, requires(model=["antlr"]))


def test_package_built_from_source_stays_when_others_may_move(index, environments):
    source(index, "antlr", "4.9")
    wheel(index, "config", "1.3", ["antlr"])
    wheel(index, "config", "0.9")
    for version in ("1.0", "2.0"):
        wheel(index, "model", version, [f"maths=={version}", "config"])
        wheel(index, "maths", version)
    base = lock("model==1.0", "maths==1.0", "config==1.3", "antlr==4.9")
    asked = requires(model=["maths==1.0", "config"], config=["antlr"])
    found = environments().resolver.resolve(base, {"model": "2.0"}, asked)
    assert changed(base, found) == ["maths 1.0 -> 2.0", "model 1.0 -> 2.0"]


def test_package_that_nothing_requires_stays_if_possible(index, environments):
    for version in ("1.0", "2.0"):
        wheel(index, "model", version, [f"maths=={version}"])
    wheel(index, "maths", "1.0", ["old", "older"])
    wheel(index, "maths", "2.0")
    wheel(index, "old", "1.0", ["older"])
    wheel(index, "older", "1.0")
    base = lock("model==1.0", "maths==1.0", "old==1.0", "older==1.0")
    asked = requires(model=["maths==1.0"], maths=["old", "older"], old=["older"])
    found = environments().resolver.resolve(base, {"model": "2.0"}, asked)
    assert changed(base, found) == ["maths 1.0 -> 2.0", "model 1.0 -> 2.0"]
    wheel(index, "old", "1.0", ["older", "maths<2"])
    asked["old"] += (Requirement("maths<2"),)
    found = environments().resolver.resolve(base, {"model": "2.0"}, asked)
    assert changed(base, found) == ["maths 1.0 -> 2.0", "model 1.0 -> 2.0", "old 1.0 -> none", "older 1.0 -> none"]


def test_build_label_is_kept(index, environments):
    wheel(index, "torch", "2.0+cpu")
    wheel(index, "torch", "2.1")
    for version in ("1.0", "2.0"):
        wheel(index, "model", version, ["torch", f"maths=={version}"])
        wheel(index, "maths", version)
    base = lock("model==1.0", "torch==2.0+cpu", "maths==1.0")
    found = environments().resolver.resolve(base, {"model": "2.0"}, requires(model=["torch", "maths==1.0"]))
    assert changed(base, found) == ["maths 1.0 -> 2.0", "model 1.0 -> 2.0"]


def test_other_version_keeps_the_build_label_or_is_rejected(index, environments):
    for version in ("2.0+cpu", "2.1+cpu", "2.1", "2.2"):
        wheel(index, "torch", version)
    base = lock("torch==2.0+cpu")
    assert changed(base, environments().resolver.resolve(base, {"torch": "2.1"}, {})) == ["torch 2.0+cpu -> 2.1+cpu"]
    with pytest.raises(Unbuildable, match=r"no version of torch==2\.2\+cpu .*; with --torch-backend cpu: .*torch"):
        environments().resolver.resolve(base, {"torch": "2.2"}, {})


def test_conflict_is_reported_before_unreachable_builds(index, environments, monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "http://localhost:9")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    wheel(index, "torch", "2.0+cpu")
    wheel(index, "model", "2.0", ["torch>=3"])
    base = lock("model==1.0", "torch==2.0+cpu")
    with pytest.raises(Unbuildable, match=r"^Because .* depend on torch>=3.*; with --torch-backend cpu: .*fetch"):
        environments(offline=False).resolver.resolve(base, {"model": "2.0"}, requires(model=["torch"]))
