from mutants import broken, failing, replaces
from pytest_rlregress.remedies.sampling import request_seed


@broken(only="test_far_apart")
def running_number(seed, *place):
    """One up with each copy: the n completions of a request have the seeds of the next ones."""
    return seed + sum(number * 100**index for index, number in enumerate(reversed(place)))


@broken(only="test_replicas_with")
def step_and_copy_alone(seed, *place):
    return request_seed(seed, place[0], place[-1])


@replaces("absent", "vllm.LLM.generate", only="test_copies")
def copies_get_seeds_of_their_own(original, self, prompts, params, **options):
    for index, one in enumerate(params):
        one.seed += index
    return original(self, prompts, params, **options)


replaces("changed", "vllm.LLM.generate", only="test_copies")(failing(RuntimeError("EngineCore encountered an issue")))
