"""The package as users get it: built, and put into a fresh environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
TESTS = CHECKOUT / "tests"
#: Helper modules of the tests, and of the mutants in the folders of failures.
SUPPORT = TESTS / "support"
UV = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))


def call(*command, cwd=None, code=0, env=None):
    """What a command prints, once sure that it ended with ``code``."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def build_wheel(folder, source=CHECKOUT):
    """Path of the wheel that a source tree gives."""
    call(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=source)
    return next(folder.glob("*.whl"))


def environment(folder):
    """Python of a fresh environment that sees the installed stack behind its own packages, as a user's would."""
    call(sys.executable, "-m", "venv", "--without-pip", folder)
    site = next(folder.glob("lib/python*/site-packages"))
    # Not through an editable install's own .pth: only what is in the folder itself is seen.
    (site / "stack.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def install(python, *what):
    """Install into an environment without what the package needs, which the installed stack has."""
    call(UV, "pip", "install", "--offline", "--no-deps", "--python", python, *what)
