import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.sampling.rollouts import PROMPTS, RAW, STARTS, completions_of, run

COPIES = 4


def sample(engine, seeds, n=1):
    """Complete one prompt once for each seed."""
    from vllm import SamplingParams

    params = [SamplingParams(max_tokens=24, temperature=1.0, seed=seed, ignore_eos=True, n=n) for seed in seeds]
    outputs = run(engine, [{"prompt_token_ids": PROMPTS[0]}] * len(params), params)
    return [one.ids for one in completions_of(outputs)]


def check_different(completions, by):
    different = len(set(map(tuple, completions)))
    if different != len(completions):
        silent(f"{len(completions)} completions of a prompt by {by}, of which {different} differ")


@RAW
@pytest.mark.reproduces("same-seed-replicas")
def test_copies_of_a_request(raw_engine):
    with act():
        check_different(sample(raw_engine, [7] * COPIES), "copies of a request")


@STARTS
@pytest.mark.needs("vllm-engine")
@pytest.mark.reproduces("same-seed-replicas")
def test_replicas(sharp_qwen, progress):
    from vllm import EngineArgs

    from pytest_rlregress.fixtures import vllm_engine

    completions = []
    for _ in range(2):  # one after the other, as in a restart
        with vllm_engine.start(sharp_qwen.directory, say=progress, seed=EngineArgs.seed) as engine, act():
            completions += sample(engine, [None])
    check_different(completions, "replicas")


@RAW
@pytest.mark.guards("same-seed-replicas")
def test_replicas_with_seeds_for_each_request(raw_engine, subject):
    """Two replicas, one after the other on this engine: what decides are the seeds, not the engine's."""
    seeds = [[subject(1, 0, replica, 0, copy) for copy in range(COPIES)] for replica in range(2)]
    replicas = [sample(raw_engine, one) for one in seeds]
    check_different(replicas[0] + replicas[1], "replicas with seeds for each request")
    assert sample(raw_engine, seeds[0]) == replicas[0], "not to be had again with the same seeds"
