"""Building with real uv, offline, from a folder of tiny wheels; interrupted, together, and on a full disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from made_distributions import lock, source
from patience import PATIENCE

from pytest_rlregress.environments import RequestError, uv
from pytest_rlregress.environments.uv import Unbuildable
from pytest_rlregress.scenarios.dependencies.wheel_index import wheel


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
from pytest_rlregress.environments.environment import Environments
from pytest_rlregress.environments import RequestError
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
    deadline = time.monotonic() + PATIENCE
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
    assert "KeyboardInterrupt" in process.communicate(timeout=PATIENCE)[0]
    assert psutil.wait_procs(below, timeout=PATIENCE)[1] == []
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
    assert second.communicate(timeout=PATIENCE)[0].splitlines()[-1] == "False"
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
    told = process.communicate(timeout=PATIENCE)[0].splitlines()
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
