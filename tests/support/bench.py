"""A project in a folder, run by an environment that holds the harness and little else; packages from a folder."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
from contextlib import contextmanager

import pytest
from patience import PATIENCE
from repacked import repack

from pytest_rlregress.environments import HARNESS
from pytest_rlregress.environments.environment import Environments
from pytest_rlregress.scenarios.dependencies.wheel_index import wheel
from pytest_rlregress.stack import locks, requirements
from pytest_rlregress.stack.locks import Lock


class Bench:
    """A project in a folder, run by an environment that holds the harness and little else."""

    def __init__(self, folder, command):
        self.command = command
        self.folder, self.wheels, self.cache = folder, folder / "wheels", folder / "cache"
        self.wheels.mkdir()
        # Of this environment, so that nothing has to be in a cache or on an index.
        asked = requirements.read_requirements()
        used = {
            name: repack(name, self.wheels)
            for name in requirements.find_dependencies({HARNESS, "uv"}, asked) - {HARNESS}
        }
        for name in (
            requirements.find_dependencies({"hatchling", "editables"}, asked) - used.keys()
        ):  # what the harness is built with
            repack(name, self.wheels)
        self.lock = Lock({**used, HARNESS: locks.installed().lines[HARNESS]})
        self.environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def add(self, name, version, body, requires=()):
        wheel(self.wheels, name, version, requires, files={f"{name}.py": inspect.cleandoc(body)})

    def install(self, **versions):
        """The environment from which is asked; built once."""
        self.user = self.lock.having({name: f"{name}=={version}" for name, version in versions.items()})
        self.path = self._build(f"user-{self.user.digest}", self.user)

    def _build(self, name, lock):
        settings = {"UV_FIND_LINKS": str(self.wheels)}
        environments = Environments(self.folder / name, settings=settings, offline=True)
        path = environments.build(lock).path
        environments.close()
        return path

    def list_installed(self):
        """Each file of the environment from which is asked, with its time; but what Python compiles by itself."""
        files = (path for path in self.path.rglob("*") if path.suffix != ".pyc" and path.is_file())
        return {path: path.stat().st_mtime_ns for path in files}

    def record(self, test, **versions):
        """The record of a run in an environment that holds these and the harness."""
        used = requirements.find_dependencies({HARNESS}, requirements.read_requirements())
        own = Lock({name: line for name, line in self.lock.lines.items() if name in used})
        lock = own.having({name: f"{name}=={version}" for name, version in versions.items()})
        folder = self.folder / f"records-{lock.digest}"
        path = self._build(f"of-{folder.name}", lock)
        command = [path / "bin/pytest", test, "-p", "no:cacheprovider", f"--rl-record-dir={folder}"]
        subprocess.run(command, cwd=self.folder, env=self.environ, stdout=subprocess.DEVNULL, timeout=PATIENCE)
        (path,) = folder.glob("*.json")
        return path

    def start(self, *words):
        command = [self.path / "bin/rlregress", self.command, *words, "--no-network", f"--cache-dir={self.cache}"]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def ask(self, *words):
        """Exit code, what was printed, what was said meanwhile, and the answer as JSON."""
        answer = self.folder / "answer.json"
        answer.unlink(missing_ok=True)
        before = self.list_installed()
        process = self.start(*words, f"--json={answer}")
        out, said = process.communicate(timeout=PATIENCE)
        assert self.list_installed() == before, "the environment that the command was run from was changed"
        return process.returncode, out, said, json.loads(answer.read_text()) if answer.exists() else None


@contextmanager
def open_bench(folder, command):
    """Its folder of wheels is all that uv and pip are configured with; uv has a cache of its own."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in [name for name in os.environ if name.startswith(("UV_", "PIP_"))]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("UV_FIND_LINKS", str(folder / "wheels"))
        monkeypatch.setenv("UV_CACHE_DIR", str(folder / "cache-of-uv"))
        monkeypatch.setenv("UV_NO_CONFIG", "1")
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        yield Bench(folder, command)
