"""The package as users get it: wheel, sdist and editable install, in a fresh environment, from a foreign folder."""

from __future__ import annotations

import shutil
import sys
import zipfile
from pathlib import Path

import needs
import pytest
from installed import CHECKOUT, UV, build_wheel, call, environment, install

pytestmark = pytest.mark.slow

CHOSEN = "differing_keys and first and no-tensors or another_number_of_flags and 0"
SCENARIO = ("--hw=cpu", "--pyargs", "pytest_rlregress.scenarios.batch.dataproto_concat_keys", "-k", CHOSEN)


def test_wheel_holds_what_the_folders_hold(wheel, tmp_path):
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = call("git", "ls-files", "fixtures", "scenarios", "hardware_markers", cwd=CHECKOUT).split()
    assert tracked
    kept = ("logs.toml", "mutants.py")
    held = {f"pytest_rlregress/{name}" for name in tracked if Path(name).name not in kept}
    assert held <= names
    assert not [name for name in names if Path(name).name in kept], "what diagnose and tests are tried on is packed"
    call(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=CHECKOUT)
    shutil.unpack_archive(next(tmp_path.glob("*.tar.gz")), tmp_path / "unpacked")
    again = build_wheel(tmp_path / "again", next((tmp_path / "unpacked").iterdir()))
    assert set(zipfile.ZipFile(again).namelist()) == names


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_installed_scenarios_run_from_a_foreign_folder(wheel, tmp_path, kind):
    python = environment(tmp_path / "venv")
    install(python, *([wheel] if kind == "wheel" else ["--no-build-isolation", "--editable", CHECKOUT]))
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    where = call(python, "-c", "import pytest_rlregress as p; print(p.__file__)", cwd=foreign).strip()
    assert Path(where).is_relative_to(tmp_path if kind == "wheel" else CHECKOUT)
    printed = call(python, "-m", "pytest", *SCENARIO, "-p", "no:cacheprovider", cwd=foreign)
    assert "OK on cpu: 1 of 1 failure happens here; 1 guard held." in printed


@pytest.mark.parametrize("extras", ["", pytest.param("[bisect,report]", marks=needs.stack)])
def test_installing_moves_no_other_package(wheel, extras):
    """Into an environment that holds a stack: pip would add this one package and touch no other."""
    command = (UV, "pip", "install", "--offline", "--dry-run", "--python", sys.executable, f"{wheel}{extras}")
    printed = call(*command)
    moved = [line for line in printed.splitlines() if line.lstrip().startswith(("+ ", "- ", "~ "))]
    assert moved, printed
    assert all("pytest-rlregress" in line for line in moved), printed


def test_without_a_stack_everything_is_unavailable_with_a_hint(tmp_path, wheel):
    """The harness' own dependencies and nothing else: no traceback, a way out, and an error where it was promised."""
    python = tmp_path / "venv" / "bin" / "python"
    call(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    call(UV, "pip", "install", "--python", python, wheel)
    printed = call(python, "-m", "pytest", "--hw=cpu", "-p", "no:cacheprovider", cwd=tmp_path, code=4)
    assert f"nothing to judge in this environment: {python} has neither torch nor vllm" in printed
    scenarios = ["--pyargs", "pytest_rlregress.scenarios", "-v"]
    printed = call(python, "-m", "pytest", "--hw=cpu", "-p", "no:cacheprovider", *scenarios, cwd=tmp_path)
    assert "dataproto-concat-keys" in printed
    assert "verl is not installed: pip install verl" in printed
    assert "unavailable" in printed
    assert "Traceback" not in printed
    printed = call(python, "-m", "pytest", "--hw=cpu", "--rl-require=vllm,ray", cwd=tmp_path, code=4)
    assert "--rl-require requires vllm, ray, but vllm is not installed: pip install vllm" in printed
