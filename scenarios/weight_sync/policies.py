"""How far an engine is from a trainer's model, in nats a token."""

from pytest_rlregress.agreement import logprobs

LONG = [(step * 7919 + 13) % 1000 + 5 for step in range(400)]  # tokens: three blocks of a CPU's cache
SHORT = [[(start * 4099 + step * 6271) % 1000 + 5 for step in range(16)] for start in range(2)]


def tolerance(model):
    """What is rounding: engine and model differ by other kernels too, measured 1 to 2 floors."""
    return 10 * logprobs.floor(model, SHORT)


def scored_off(engine, model):
    """Of given tokens, for which vLLM uses nothing cached."""
    return logprobs.mean_gap(engine.logprobs(SHORT), logprobs.token_logprobs(model, SHORT))


def generated_off(engine, model):
    """Of tokens generated behind a prompt, for which it does."""
    [completion] = engine.generate([LONG], 8, seed=0, ignore_eos=True)
    return completion_off(LONG, completion.ids, completion.logprobs, model)


def completion_off(prompt, ids, sampled, model):
    """Of the last tokens of ``ids``, of which ``sampled`` are the engine's log-probabilities."""
    [expected] = logprobs.token_logprobs(model, [[*prompt, *ids]])
    return logprobs.mean_gap([sampled], [expected[-len(sampled) :]])
