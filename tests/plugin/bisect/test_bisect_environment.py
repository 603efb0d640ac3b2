"""Resolving and building with real uv, offline, from a folder of tiny wheels."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
import time

import psutil
import pytest
from packaging.requirements import Requirement

from pytest_rlregress.commands.environments import RequestError, uv
from pytest_rlregress.commands.environments.environment import Environments
from pytest_rlregress.commands.environments.uv import Unbuildable
from pytest_rlregress.scenarios.dependencies.wheel_index import wheel
from pytest_rlregress.stack.locks import Lock, differences

# A build backend without requirements: waits as long as a file named "wait" is beside the distributions.
_BACKEND = """
import pathlib, time, zipfile
def build_wheel(folder, *_):
    pathlib.Path({folder!r}, "building").touch()
    while pathlib.Path({folder!r}, "wait").exists():
        time.sleep(0.05)
    stem = "{name}-{version}"
    with zipfile.ZipFile(pathlib.Path(folder, stem + "-py3-none-any.whl"), "w") as archive:
        archive.writestr("{name}.py", "")
        archive.writestr(stem + ".dist-info/METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
        archive.writestr(stem + ".dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(stem + ".dist-info/RECORD", "")
    return stem + "-py3-none-any.whl"
"""
_PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "{name}"
version = "{version}"
"""


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder of distributions; uv has a cache of its own, and no other configuration."""
    for name in [name for name in os.environ if name.startswith(("UV_", "PIP_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))
    folder = tmp_path / "index"
    folder.mkdir()
    return folder


@pytest.fixture
def environments(index, tmp_path):
    """Make one: ``environments(offline=False)``."""
    made = []

    def make(**options):
        settings = {"UV_DEFAULT_INDEX": "file:///nonexistent", "UV_FIND_LINKS": str(index)}
        options = {"offline": True, **options}
        made.append(Environments(tmp_path / "environments", settings=settings, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def lock(*lines):
    return Lock({line.split("==")[0]: line for line in lines})


def requires(**asked):
    return {name: tuple(map(Requirement, requirements)) for name, requirements in asked.items()}


def changed(before, after):
    return [str(one) for one in differences(before, after)]


def source(folder, name, version):
    """A source distribution that builds without anything else."""
    fill = {"name": name, "version": version, "folder": str(folder)}
    files = {"pyproject.toml": _PROJECT.format(**fill), "backend.py": _BACKEND.format(**fill)}
    with tarfile.open(folder / f"{name}-{version}.tar.gz", "w:gz") as archive:
        for inside, text in files.items():
            member = tarfile.TarInfo(f"{name}-{version}/{inside}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))


# -- resolving ---------------------------------------------------------------------------------------------------------


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


# -- building ----------------------------------------------------------------------------------------------------------


def python(environment, code, *options):
    command = [environment.python, *options, "-c", code]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=variables).stdout.strip()


def test_environment_holds_exactly_the_lock_and_is_reused(index, environments):
    wheel(index, "model", "1.0", ["not-here"], files={"model.py": "depth = 3"})
    wheel(index, "maths", "1.0")
    wanted = lock("model==1.0", "maths==1.0")
    here = environments()
    built = here.build(wanted)
    listed = "from importlib.metadata import distributions as d; print(sorted(x.name for x in d()))"
    assert python(built, listed) == "['maths', 'model']"
    assert sorted(path.name for path in built.packages.glob("m*.dist-info")) == [
        "maths-1.0.dist-info",
        "model-1.0.dist-info",
    ]
    assert python(built, "import model; print(model.depth)") == "3"
    here.close()
    again = environments().build(wanted)
    assert (built.reused, again.reused, again.path) == (False, True, built.path)


def test_an_environment_is_moved_from_lock_to_lock(index, environments):
    for version in ("1.0", "2.0"):
        wheel(index, "model", version, files={"model.py": f"version = {version}"})
    wheel(index, "maths", "1.0")
    here = environments()
    for lines, listed in [
        (("model==1.0", "maths==1.0"), "['maths', 'model']"),
        (("model==2.0",), "['model']"),
        ((), "[]"),
    ]:
        built = here.build(lock(*lines))
        assert python(
            built, "from importlib.metadata import distributions as d; print(sorted(x.name for x in d()))"
        ) == (listed)


def test_does_not_run_bytecode_of_the_previous_lock(index, environments, monkeypatch):
    for version in ("1.0", "2.0"):
        wheel(index, "model", version, files={"model.py": f"version = {version}"})
    here = environments()
    for prefix in (None, "bytecode"):
        for version in ("1.0", "2.0"):
            built = here.build(lock(f"model=={version}"))
            os.utime(built.packages / "model.py", (1_700_000_000, 1_700_000_000))  # of the same size, too
            beside = ("-X", f"pycache_prefix={built.path / prefix}") if prefix else ()
            assert python(built, "import model; print(model.version)", *beside) == version


@pytest.mark.parametrize("harm", ["another prefix", "another build", "no interpreter", "no mark"])
def test_rebuilds_an_incomplete_environment_or_one_of_another_python(index, environments, monkeypatch, harm):
    wheel(index, "model", "1.0", files={"model.py": ""})
    here = environments()
    built = here.build(lock("model==1.0"))
    assert here.build(lock("model==1.0")).reused
    if harm == "no interpreter":
        built.python.unlink()
        built.python.symlink_to("/nowhere/python")
    elif harm == "no mark":
        (built.packages / "model.py").unlink()
        (built.path / "rlregress-complete").unlink()
    else:  # conda's and the system's; 3.13 and 3.13t
        name = {"another prefix": "base_prefix", "another build": "version"}[harm]
        monkeypatch.setattr(sys, name, f"{getattr(sys, name)}t")
    assert not here.build(lock("model==1.0")).reused
    assert python(built, "import model; print(1)") == "1"


def test_failed_build_is_not_reused(index, environments):
    wheel(index, "model", "1.0")
    here = environments()
    here.build(lock("model==1.0"))
    with pytest.raises(Unbuildable, match=r"^Because there is no version of maths==1\.0|^Because maths was not found"):
        here.build(lock("maths==1.0", "model==1.0"))
    assert not here.build(lock("model==1.0")).reused


def test_the_users_environment_is_not_touched(index, environments, monkeypatch, tmp_path):
    wheel(index, "model", "1.0")
    user = tmp_path / "user"
    subprocess.run([uv._find_uv(), "venv", "-q", "--python", sys.executable, user], check=True)

    def everything():
        return {path: path.lstat().st_mtime_ns for path in [user, *user.rglob("*")]}

    before = everything()
    monkeypatch.setenv("VIRTUAL_ENV", str(user))
    monkeypatch.setenv("UV_PYTHON", str(user))
    monkeypatch.setenv("UV_SYSTEM_PYTHON", "1")
    monkeypatch.chdir(user)
    built = environments().build(lock("model==1.0"))
    assert list(built.path.rglob("model-1.0.dist-info"))
    assert everything() == before
    subprocess.run([uv._find_uv(), "pip", "install", "-q", "--offline", *index.iterdir()], check=True)
    assert everything() != before  # what would happen else


# -- interrupted, together, and full -----------------------------------------------------------------------------------

_BUILD = """
import sys
from pathlib import Path
from pytest_rlregress.commands.environments.environment import Environments
from pytest_rlregress.commands.environments import RequestError
from pytest_rlregress.stack.locks import Lock
folder, index, *lines = sys.argv[1:]
settings = {"UV_DEFAULT_INDEX": "file:///nonexistent", "UV_FIND_LINKS": index}
here = Environments(Path(folder), settings=settings, offline=True)
try:
    print(here.build(Lock({line.split("==")[0]: line for line in lines})).reused)
except RequestError as error:
    print("RequestError", error)
    print(sorted(path.name for path in Path(folder).glob("*/rlregress-complete")))
"""


@pytest.fixture
def start(index, tmp_path):
    """Build in a process of its own: ``start("name==version")``, which a file named wait beside the index holds up."""
    started = []

    def start(*lines, before=(), folder=tmp_path / "environments"):
        command = [*before, sys.executable, "-c", _BUILD, str(folder), str(index), *lines]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return started[-1]

    yield start
    (index / "wait").unlink(missing_ok=True)
    for process in started:
        process.kill()
        process.communicate()


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_interrupted_build_ends_and_leaves_nothing(index, start, environments):
    source(index, "slow", "1.0")
    (index / "wait").touch()
    process = start("slow==1.0")
    until((index / "building").exists)
    below = psutil.Process(process.pid).children(recursive=True)
    assert len(below) >= 2  # uv, and the backend
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=30)[0]
    assert psutil.wait_procs(below, timeout=10)[1] == []
    assert not list((index.parent / "environments").glob("*/rlregress-complete"))
    (index / "wait").unlink()
    assert not environments().build(lock("slow==1.0")).reused


def test_child_of_a_killed_bisect_does_not_write_into_the_next_one(index, start):
    source(index, "slow", "1.0")
    (index / "wait").touch()
    first = start("slow==1.0")
    until((index / "building").exists)
    first.kill()
    second = start("slow==1.0")  # beside what the other's uv still writes
    until((index.parent / "environments/1.lock").exists)
    (index / "wait").unlink()
    assert second.communicate(timeout=30)[0].splitlines()[-1] == "False"
    assert (index.parent / "environments/1/rlregress-complete").exists()


def test_concurrent_commands_use_separate_environments(index, environments):
    wheel(index, "model", "1.0")
    first, second = environments(), environments()
    paths = [one.build(lock("model==1.0")).path.name for one in (first, second, first)]
    assert paths == ["0", "1", "0"]


def test_full_disk_stops_and_leaves_no_reusable_environment(index, start, tmp_path):
    wheel(index, "big", "1.0", files={"big.py": "#" * 5_000_000})
    small = tmp_path / "small"
    small.mkdir()
    mount = f"mount -t tmpfs -o size=2m none {small}"
    space = ["unshare", "--mount", *["--user", "--map-root-user"] * (os.geteuid() != 0), "sh", "-c"]
    try:
        subprocess.run([*space, mount], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no mount of a small disk allowed here")
    process = start("big==1.0", before=[*space, f'{mount} && exec "$@"', "sh"], folder=small)
    told = process.communicate(timeout=30)[0].splitlines()
    assert told[-2].startswith("RequestError No space left on the disk: ")
    assert told[-1] == "[]"


# -- what uv says ------------------------------------------------------------------------------------------------------


def test_reason_is_one_line_without_build_output_or_credentials():
    said = """Using Python 3.11.7 environment at: x
Resolved 1 package in 8ms
error: Failed to download `model==1.0`
  cause: Failed to fetch: https://me:secret@example.org/model.whl
  cause: the server
         said no

      [stderr]
      a hundred lines
"""
    assert uv.summarize_error(said) == (
        "Failed to download `model==1.0`: Failed to fetch: https://example.org/model.whl: the server said no"
    )


def test_without_uv_says_how_to_install_it(environments, monkeypatch):
    monkeypatch.setitem(sys.modules, "uv", None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RequestError, match="pip install uv"):
        environments()
