from pathlib import Path

from mutants import broken, replaces
from pytest_rlregress.stack.lazy import ray


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


@replaces("absent", "ray.kill", only="ray_ends")
def engine_is_shut_down_first(original, actor):
    ray.get(actor.close.remote())
    original(actor)


@replaces("changed", "ray.kill", only="ray_ends")
def the_actor_is_lost(actor):
    raise ValueError("ray.kill() only supported for actors")
