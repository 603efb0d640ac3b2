"""Mutants of scenarios/launch whose remedies look at interpreters and clusters."""

from __future__ import annotations

import os
import subprocess
import sys

from mutants import broken, mutant
from pytest_rlregress.remedies.launch_environment import module_not_found, stale_ray_address


@broken("trainer-not-found", only="an_interpreter_without_it")
def asks_this_interpreter(interpreter, module, environ, folder="."):
    return module_not_found(sys.executable, module, environ, folder)


@broken("trainer-not-found", only="looked_for_where_the_run_looks")
def path_of_this_process(interpreter, module, environ, folder="."):
    return module_not_found(interpreter, module, {**environ, "PATH": os.environ["PATH"]}, folder)


@broken("trainer-not-found", only="what_hides_it")
def top_package_alone(interpreter, module, environ, folder="."):
    return module_not_found(interpreter, module.partition(".")[0], environ, folder)


@broken("trainer-not-found", only="what_hides_it")
def any_folder(interpreter, module, environ, folder="."):
    return module_not_found(interpreter, module, environ, "/")


@broken("trainer-not-found", only="what_is_there")
def imports_it(interpreter, module, environ, folder="."):
    command = [interpreter, "-c", f"import {module}"]
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True)
    return done.stderr if done.returncode else None


def started_instead(monkeypatch, instead):
    """Have the start of the trainer run another command."""
    run = subprocess.run

    def patched(command, **keywords):
        return run(instead if "--help" in command else command, **keywords)

    monkeypatch.setattr(subprocess, "run", patched)


@mutant("trainer-not-found", "absent", only="test_another_interpreter")
def every_interpreter_has_verl(monkeypatch):
    started_instead(monkeypatch, ["true"])


@mutant("trainer-not-found", "changed", only="test_another_interpreter")
def verl_lacks_a_dependency(monkeypatch):
    script = "raise ModuleNotFoundError(\"No module named 'orjson'\")"
    started_instead(monkeypatch, [sys.executable, "-c", script])


@broken("stale-ray-session", only="that_is_gone")
def environment_alone(environ):
    return stale_ray_address({"RAY_TMPDIR": "/nowhere", **environ, "TMPDIR": "/nowhere"})


@broken("stale-ray-session", only="left_alone")
def file_first(environ):
    return stale_ray_address({**environ, "RAY_ADDRESS": ""})


@broken("stale-ray-session", only="left_alone")
def any_address_is_stale(environ):
    address = environ.get("RAY_ADDRESS")
    return f"{address}, as RAY_ADDRESS says" if address else stale_ray_address(environ)


@broken("stale-ray-session", only="that_is_gone")
def tmpdir_of_ray_alone(environ):
    return stale_ray_address({name: value for name, value in environ.items() if name != "TMPDIR"})


@mutant("stale-ray-session", "absent", only="test_address_in_the_environment")
def begins_a_cluster_of_its_own(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "init", lambda: None)


@mutant("stale-ray-session", "changed", only="test_address_in_the_environment")
def ray_finds_no_port(monkeypatch):
    import ray

    def init():
        raise ValueError("no free port")

    monkeypatch.setattr(ray, "init", init)
