"""Mutants of scenarios/launch whose remedies look at interpreters and clusters."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.launch_environment import stale_ray_address


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
