"""Broken remedies of shared-memory-left, and stacks that differ."""

from __future__ import annotations

from pathlib import Path

from mutants import broken, mutant


def unlink(prefixes, keep=lambda path: False):
    found = sorted(path for prefix in prefixes for path in Path("/dev/shm").glob(f"{prefix}*") if not keep(path))
    for path in found:
        path.unlink()
    return [path.name for path in found]


@broken(only="process_holds")
def whoever_holds_it(prefixes):
    return unlink(prefixes)


@broken(only="-open]")
def mappings_looked_at_alone(prefixes):
    maps = "".join(path.read_text() for path in Path("/proc").glob("[0-9]*/maps") if path.exists())
    return unlink(prefixes, keep=lambda path: str(path) in maps)


@mutant("absent", only="ray_ends")
def engine_is_shut_down_first(monkeypatch):
    import ray

    kill = ray.kill

    def after_the_engine(actor):
        ray.get(actor.close.remote())
        kill(actor)

    monkeypatch.setattr(ray, "kill", after_the_engine)


@mutant("changed", only="ray_ends")
def the_actor_is_lost(monkeypatch):
    import ray

    def kill(actor):
        raise ValueError("ray.kill() only supported for actors")

    monkeypatch.setattr(ray, "kill", kill)
