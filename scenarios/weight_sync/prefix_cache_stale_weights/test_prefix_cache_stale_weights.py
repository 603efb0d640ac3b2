import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.remedies.rollout import reload_by_worker
from pytest_rlregress.scenarios.weight_sync.policies import LONG, completion_off, generated_off, tolerance

pytestmark = pytest.mark.needs("vllm-engine", "transformers")

TOKENS, BEGUN = 20, 3  # of a completion, and of one that an update finds


def check_generated(engine, model):
    off = generated_off(engine, model)
    if not off <= tolerance(model):
        silent(f"{off:.3f} nats a token from the new weights behind a cached prompt")


def begin(engine):
    """A request that runs: ``BEGUN`` of its tokens are there."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=TOKENS, temperature=1.0, seed=1, logprobs=0, detokenize=False, ignore_eos=True)
    engine.llm.llm_engine.add_request("0", {"prompt_token_ids": LONG}, params)
    while not any(len(one.outputs[0].token_ids) >= BEGUN for one in engine.llm.llm_engine.step()):
        pass


def finish(engine):
    """Let it run to its end; its ids, and the log-probability of each."""
    finished = []
    while engine.llm.llm_engine.has_unfinished_requests():
        finished += [one.outputs[0] for one in engine.llm.llm_engine.step() if one.finished]
    [answer] = finished
    ids = list(answer.token_ids)
    return ids, [position[token].logprob for token, position in zip(ids, answer.logprobs, strict=True)]


@pytest.mark.reproduces("prefix-cache-stale-weights")
def test_no_reset(engine, new):
    engine.generate([LONG], 1)
    with act():
        reload_by_worker(engine.llm, new.state_dict().items())
        check_generated(engine, new)


@pytest.mark.reproduces("prefix-cache-stale-weights")
def test_reset_while_a_request_runs(engine, new):
    """It is refused: False is returned, and a line of the log says so."""
    begin(engine)
    with act():
        reload_by_worker(engine.llm, new.state_dict().items())
        engine.llm.reset_prefix_cache()
        finish(engine)
        check_generated(engine, new)


@pytest.mark.guards("prefix-cache-stale-weights")
def test_every_update_reaches_cached_prompts(engine, subject, old, new):
    with act():
        for model in (new, old, new):
            engine.generate([LONG], 1)
            reload_by_worker(engine.llm, model.state_dict().items())
            subject(engine.llm)
            check_generated(engine, model)


@pytest.mark.guards("prefix-cache-stale-weights")
def test_a_running_request_goes_on_with_the_new_weights(engine, subject, new):
    begin(engine)
    reload_by_worker(engine.llm, new.state_dict().items())
    with act():
        subject(engine.llm)
    ids, sampled = finish(engine)
    assert len(ids) == TOKENS, f"the request ended with {len(ids)} of {TOKENS} tokens"
    assert completion_off(LONG, ids, sampled[BEGUN:], new) <= tolerance(new), "it went on from the old weights' cache"
    check_generated(engine, new)


@pytest.mark.guards("prefix-cache-stale-weights", fidelity="injected")
def test_raises_where_the_reset_is_refused(engine, subject, monkeypatch):
    monkeypatch.setattr(engine.llm, "reset_prefix_cache", lambda **options: False)
    with act(), pytest.raises(RuntimeError, match="old weights"):
        subject(engine.llm)
