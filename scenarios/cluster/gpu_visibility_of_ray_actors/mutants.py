from mutants import broken, replaces
from pytest_rlregress.remedies.cluster import without_gpus


@broken(only="test_actor_without_a_gpu_sees_none")
def left_to_ray(options):
    return dict(options)


@broken(only="test_actor_with_a_gpu")
def hidden_from_all(options):
    return without_gpus({key: value for key, value in options.items() if key != "num_gpus"}) | {"num_gpus": 0}


# A Ray that sets the variable of an actor without a GPU to nothing, as 2.53 does.
replaces("absent", "ray.actor.ActorClass.options")(
    lambda original, self, **given: original(self, **without_gpus(given))
)


@replaces("changed", "ray.actor.ActorClass.options")
def actors_want_it_said(self, **given):
    raise ValueError("say how many GPUs")
