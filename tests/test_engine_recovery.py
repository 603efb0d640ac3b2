"""Whatever comes out of the engine, it answers the next test, and rightly; one that does not is given up."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.isolated(group="engine recovery", timeout=300), pytest.mark.needs("vllm-engine")]

LONG = [step * 37 % 1000 + 5 for step in range(300)]  # more than two blocks of the prefix cache


@pytest.fixture
def engine(vllm_runner, sharp_qwen):
    """The engine of all tests here: whatever one of them does to it, the next finds it at work."""
    return vllm_runner(sharp_qwen, dtype="float32", max_model_len=512)


@pytest.fixture(scope="module")
def model(sharp_qwen):
    return sharp_qwen.model()


@pytest.fixture(autouse=True)
def right_before_and_after(engine, model):
    check_right(engine, model)
    yield
    check_right(engine, model)


def check_right(engine, model):
    """The engine's numbers behind a long prompt are the model's."""
    from pytest_rlregress.agreement.logprobs import token_logprobs

    completions = engine.generate([LONG, [5, 6, 7]], 4, seed=1, n=2, ignore_eos=True)
    wanted = token_logprobs(model, [[*one.prompt_ids, *one.ids] for one in completions])
    for one, row in zip(completions, wanted, strict=True):
        # 5e-6 is the most on a CPU over these tokens; what a prompt's uncomputed blocks make is 0.2.
        assert one.logprobs == pytest.approx(row[-4:], abs=1e-4)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([5, 1024], "prompt 1: id 1024 at position 1 is not in the vocabulary of 1024 ids, 0 to 1023"),
        ([5, 6, -7], "prompt 1: id -7 at position 2 is not in the vocabulary"),
        ([], "prompt 1 is empty"),
        ([5] * 512, "prompt 1 has 512 tokens, more than 511: the engine's max_model_len is 512"),
    ],
    ids=["beyond", "negative", "empty", "long"],
)
@pytest.mark.parametrize("method", ["generate", "logprobs"])
def test_what_cannot_be_sent(engine, prompt, message, method):
    arguments = {"max_tokens": 4} if method == "generate" else {}
    with pytest.raises(ValueError, match=message):
        getattr(engine, method)([[5], prompt], **arguments)
    assert not engine.llm.llm_engine.has_unfinished_requests()


def test_longest_prompt(engine):
    [completion] = engine.generate([[5] * 511], 4, ignore_eos=True)
    assert len(completion.ids) == 1


@pytest.mark.parametrize("part", ["forward", "compute_logits"])
@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_exception_in_the_model(engine, part, step, error):
    taken = 0

    def put(model):
        real = getattr(model, part)

        def raising(*args, **kwargs):
            nonlocal taken
            taken += 1
            if taken == step:
                raise error("in the model")
            return real(*args, **kwargs)

        setattr(model, part, raising)

    engine.llm.reset_prefix_cache()
    engine.llm.apply_model(put)
    try:
        with pytest.raises(error, match="in the model"):
            engine.generate([LONG, [5, 6, 7]], 8, n=2, ignore_eos=True)
    finally:
        engine.llm.apply_model(lambda model: delattr(model, part))
    processor = engine.llm.llm_engine.output_processor
    assert not [*processor.parent_requests, *processor.request_states]


def test_exception_on_the_way_back(engine, monkeypatch):
    processor = engine.llm.llm_engine.output_processor
    real = processor.process_outputs

    def raising(*args, **kwargs):
        monkeypatch.setattr(processor, "process_outputs", real)
        raise ZeroDivisionError("on the way back")

    monkeypatch.setattr(processor, "process_outputs", raising)
    with pytest.raises(ZeroDivisionError, match="on the way back"):
        engine.generate([LONG], 8)


def test_refused_sampling_parameter(engine):
    from vllm import SamplingParams

    with pytest.raises(Exception, match="top_p must be in"):  # of vLLM's own class, in some releases a ValueError
        engine.generate([[5]], 4, top_p=7.0)
    engine.llm.generate([{"prompt_token_ids": [5]}], SamplingParams(max_tokens=1, detokenize=False), use_tqdm=False)


def add_request(llm):
    """A request of a test that goes to the engine itself and does not wait for its end."""
    from vllm import SamplingParams

    llm.llm_engine.add_request("left", {"prompt_token_ids": LONG}, SamplingParams(max_tokens=8, detokenize=False))
    llm.llm_engine.step()


def test_requests_that_are_aborted(engine):
    from pytest_rlregress.fixtures.engine_recovery import abort_requests

    add_request(engine.llm)
    assert engine.llm.llm_engine.has_unfinished_requests()
    abort_requests(engine.llm)
    assert not engine.llm.llm_engine.has_unfinished_requests()


# -- mutants: what each part of the recovery is for --------------------------------------------------------------------


def raise_in_prefill(engine):
    """An exception in the model while it computes the long prompt, whose blocks are in the prefix cache by then."""

    def put(model):
        def raising(*args, **kwargs):
            del model.forward
            raise ZeroDivisionError("in the model")

        model.forward = raising

    engine.llm.reset_prefix_cache()
    engine.llm.apply_model(put)
    with pytest.raises(ZeroDivisionError):
        engine.generate([LONG], 4)


def test_without_the_reset_the_next_numbers_are_wrong(engine, model, monkeypatch):
    assert engine.llm.reset_prefix_cache()
    with monkeypatch.context() as patch:
        patch.setattr(engine.llm, "reset_prefix_cache", lambda: True)
        raise_in_prefill(engine)
    with pytest.raises(AssertionError):
        check_right(engine, model)
    assert engine.llm.reset_prefix_cache()


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        ("abort", "requests remain that cannot be aborted"),
        ("reset", "blocks of its cache are held"),
        ("step", "two tokens did not come in 20 steps"),
    ],
)
def test_what_does_not_come_back_is_broken(engine, monkeypatch, mutant, message):
    """The next generate says so, and does not spin."""
    from pytest_rlregress.fixtures import engine_recovery

    llm = engine.llm
    with monkeypatch.context() as patch:
        if mutant == "abort":
            patch.setattr(engine_recovery, "abort_requests", lambda llm: None)
        elif mutant == "reset":
            patch.setattr(llm, "reset_prefix_cache", lambda: False)
        else:
            prove = engine_recovery._prove
            patch.setattr(
                engine_recovery, "_prove", lambda llm: (setattr(llm.llm_engine, "step", lambda: []), prove(llm))
            )
        raise_in_prefill(engine)
    with pytest.raises(engine_recovery.EngineBroken, match=f"broken: after ZeroDivisionError: .*: {message}"):
        engine.generate([[5]], 1)
    del engine_recovery._BROKEN[llm]
    engine_recovery.recover(llm, "the mutant")
    assert engine_recovery.why_broken(llm) is None
