"""Broken remedies of gpu-visibility-of-ray-actors, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.cluster import without_gpus


@broken(only="test_actor_without_a_gpu_sees_none")
def left_to_ray(options):
    return dict(options)


@broken(only="test_actor_with_a_gpu")
def hidden_from_all(options):
    return without_gpus({key: value for key, value in options.items() if key != "num_gpus"}) | {"num_gpus": 0}


@mutant("absent")
def ray_hides_them(monkeypatch):
    """A Ray that sets the variable of an actor without a GPU to nothing, as 2.53 does."""
    from ray.actor import ActorClass

    options = ActorClass.options
    monkeypatch.setattr(ActorClass, "options", lambda self, **given: options(self, **without_gpus(given)))


@mutant("changed")
def actors_want_it_said(monkeypatch):
    from ray.actor import ActorClass

    def refuses(self, **given):
        raise ValueError("say how many GPUs")

    monkeypatch.setattr(ActorClass, "options", refuses)
