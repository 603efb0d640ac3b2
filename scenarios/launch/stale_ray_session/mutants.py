"""Broken remedies of stale-ray-session, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.launch_environment import stale_ray_address


@broken(only="that_is_gone")
def environment_alone(environ):
    return stale_ray_address({"RAY_TMPDIR": "/nowhere", **environ, "TMPDIR": "/nowhere"})


@broken(only="left_alone")
def file_first(environ):
    return stale_ray_address({**environ, "RAY_ADDRESS": ""})


@mutant("absent", only="test_address_in_the_environment")
def begins_a_cluster_of_its_own(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "init", ray.is_initialized)


@mutant("changed", only="test_address_in_the_environment")
def ray_finds_no_port(monkeypatch):
    import ray

    def init():
        raise ValueError("no free port")

    monkeypatch.setattr(ray, "init", init)
