"""The package as users get it: wheel, sdist and editable install, in a fresh environment, from a foreign folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
UV = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
SCENARIO = ("--hw=cpu", "--pyargs", "pytest_rlregress.scenarios.batch", "-k", "concat and first and no-tensors")


def call(*command, cwd=None, code=0):
    """What a command prints, once sure that it ended with ``code``."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Folder with the wheel, the sdist, and in ``again/`` the wheel that the sdist gives."""
    folder = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=CHECKOUT)
    shutil.unpack_archive(next(folder.glob("*.tar.gz")), folder / "unpacked")
    sdist = next((folder / "unpacked").iterdir())
    call(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "again", cwd=sdist)
    return folder


@pytest.fixture
def environment(tmp_path):
    """Python of a fresh environment that sees the installed stack behind its own packages, as a user's would."""
    call(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    site = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    # Not through an editable install's own .pth: only what lies in the folder itself is seen.
    (site / "stack.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return tmp_path / "venv" / "bin" / "python"


def test_wheel_holds_what_the_folders_hold(build):
    names = set(zipfile.ZipFile(next(build.glob("*.whl"))).namelist())
    tracked = call("git", "ls-files", "fixtures", "scenarios", "hardware_markers", cwd=CHECKOUT).split()
    assert tracked
    assert {f"pytest_rlregress/{name}" for name in tracked} <= names
    assert set(zipfile.ZipFile(next(build.glob("again/*.whl"))).namelist()) == names


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_installed_scenarios_run_from_a_foreign_folder(build, environment, tmp_path, kind):
    what = [next(build.glob("*.whl"))] if kind == "wheel" else ["--no-build-isolation", "--editable", CHECKOUT]
    call(UV, "pip", "install", "--offline", "--no-deps", "--python", environment, *what)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    where = call(environment, "-c", "import pytest_rlregress as p; print(p.__file__)", cwd=foreign).strip()
    assert Path(where).is_relative_to(tmp_path if kind == "wheel" else CHECKOUT)
    printed = call(environment, "-m", "pytest", *SCENARIO, "-p", "no:cacheprovider", cwd=foreign)
    assert "reproduced 1/1" in printed
    assert "held 1/1" in printed


def test_install_moves_nothing(build):
    """Into an environment that holds a stack: pip would add this one package and touch no other."""
    wheel = next(build.glob("*.whl"))
    printed = call(UV, "pip", "install", "--offline", "--dry-run", "--python", sys.executable, wheel)
    moved = [line for line in printed.splitlines() if line.lstrip().startswith(("+ ", "- "))]
    assert all("pytest-rlregress" in line for line in moved), printed


def test_without_a_stack_everything_is_unavailable_with_a_hint(tmp_path, build):
    """The harness' own dependencies and nothing else: no traceback, a way out, and an error where it was promised."""
    environment = tmp_path / "venv" / "bin" / "python"
    call(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    call(UV, "pip", "install", "--python", environment, next(build.glob("*.whl")))
    printed = call(environment, "-m", "pytest", "--hw=cpu", "-p", "no:cacheprovider", cwd=tmp_path)
    assert "dataproto-concat-keys" in printed
    assert "verl is not installed: pip install verl" in printed
    assert "unavailable" in printed
    assert "Traceback" not in printed
    printed = call(environment, "-m", "pytest", "--hw=cpu", "--rl-require=vllm,ray", cwd=tmp_path, code=4)
    assert "--rl-require requires vllm, ray, but vllm is not installed: pip install vllm" in printed
