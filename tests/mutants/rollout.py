"""Mutants of scenarios/rollout."""

from __future__ import annotations

import os
import sys
import time

from mutants import broken, mutant
from pytest_rlregress.logs.engine import EngineLog
from pytest_rlregress.remedies.rollout import clamp_max_tokens, watch_engine_log
from pytest_rlregress.remedies.tool_calls import matching_tool_parser

STALLED = "pytest_rlregress.scenarios.rollout.stalled_rollout.test_stalled_rollout"


def failing(error):
    def function(*args, **options):
        raise error

    return function


@broken("max-tokens-overflow", only="test_arithmetic")
def one_too_many(max_tokens, prompt_length, max_model_len):
    return clamp_max_tokens(max_tokens, prompt_length - 1, max_model_len)


@broken("max-tokens-overflow", only="test_arithmetic")
def one_too_few(max_tokens, prompt_length, max_model_len):
    return min(max_tokens, max_model_len - prompt_length - 1)


@broken("max-tokens-overflow", only="test_arithmetic")
def negative(max_tokens, prompt_length, max_model_len):
    return min(max_tokens, max_model_len - prompt_length)


@broken("max-tokens-overflow", only="test_arithmetic")
def always_all_the_room(max_tokens, prompt_length, max_model_len):
    return clamp_max_tokens(max_model_len, prompt_length, max_model_len)


@mutant("max-tokens-overflow", "absent", only="test_offline_cuts_short")
def offline_gives_all(monkeypatch):
    """Whatever its context holds: one token, as often as was asked for."""
    from vllm import LLM, SamplingParams

    real = LLM.generate

    def generate(self, prompts, params, **options):
        outputs = real(self, prompts, SamplingParams(max_tokens=1, logprobs=0, detokenize=False), **options)
        for output, asked in zip(outputs, params, strict=True):
            answer = output.outputs[0]
            answer.token_ids = list(answer.token_ids) * asked.max_tokens
            answer.logprobs = list(answer.logprobs) * asked.max_tokens
        return outputs

    monkeypatch.setattr(LLM, "generate", generate)


@mutant("max-tokens-overflow", "changed", only="test_offline_cuts_short")
def offline_fails_otherwise(monkeypatch):
    monkeypatch.setattr("vllm.LLM.generate", failing(RuntimeError("EngineCore encountered an issue")))


@broken("stalled-rollout", only="engine-died")
def asleep(log, patience):
    return lambda: None


@broken("stalled-rollout", only="engine-died")
def from_the_start(log, patience):
    """Takes an error of an earlier run for one of this."""
    lines = log.read_text()
    log.write_text("")
    check = watch_engine_log(log, patience)
    log.write_text(lines)
    return check


@broken("stalled-rollout", only="engine-died")
def hasty(log, patience):
    """One refused request ends a run that goes on."""
    errors = []

    def check():
        errors.extend(line for line in log.read_text().splitlines() if line.startswith("(APIServer pid=1) ERROR"))
        if errors:
            raise RuntimeError("\n".join(errors))

    return check


@broken("stalled-rollout", only="engine-died")
def by_the_word(log, patience):
    """Any line that has the word."""
    begun = len(log.read_text())

    def check():
        if "error" in log.read_text()[begun:].lower():
            raise RuntimeError(log.read_text()[begun:])

    return check


@broken("stalled-rollout", only="engine-died")
def without_words(log, patience):
    engine = EngineLog(log)

    def check():
        if engine.failure(patience):
            raise RuntimeError(f"something is wrong, see {log}")

    return check


@broken("stalled-rollout", only="engine-died")
def reads_half_a_line(log, patience):
    """Forgets what it has read of a line that is still being written."""
    engine = EngineLog(log)

    def check():
        engine._unfinished = b""
        if failure := engine.failure(patience):
            raise RuntimeError(failure)

    return check


@broken("stalled-rollout", only="engine-died")
def by_size(log, patience):
    """A log that does not grow: of an idle engine too."""
    seen = [log.stat().st_size, time.monotonic()]

    def check():
        if log.stat().st_size != seen[0]:
            seen[:] = log.stat().st_size, time.monotonic()
        elif time.monotonic() - seen[1] > patience:
            raise RuntimeError(log.read_text())

    return check


@mutant("stalled-rollout", "absent")
def server_serves_what_does_not_fit(monkeypatch):
    """An answer stands in for the served one, which would take long."""
    from pytest_rlregress.scenarios.rollout.max_tokens_overflow.test_max_tokens_overflow import LIMIT, complete

    def served(server, prompt_length, max_tokens):
        if prompt_length < LIMIT < prompt_length + max_tokens:
            return max_tokens
        return complete(server, prompt_length, max_tokens)

    monkeypatch.setattr(f"{STALLED}.complete", served)


@mutant("stalled-rollout", "changed")
def orchestrator_fails_otherwise(monkeypatch):
    monkeypatch.setattr(f"{STALLED}.complete", failing(TypeError("create() got an unexpected keyword argument")))


@broken("fork-after-cuda", only="test_choice[")
def as_torch_says():
    torch = sys.modules["torch"]
    return "spawn" if torch.cuda.is_initialized() else "fork"


@broken("fork-after-cuda", only="test_choice[")
def in_forked_processes_only():
    torch = sys.modules["torch"]
    return "spawn" if torch.cuda._is_in_bad_fork() else "fork"


@broken("fork-after-cuda", only="test_choice[")
def as_vllm_says():
    from vllm.utils.system_utils import get_mp_context

    return get_mp_context().get_start_method()


@broken("fork-after-cuda", only="test_choice_without_cuda")
def always_spawn():
    return "spawn"


@broken("fork-after-cuda", only="test_worker_uses_cuda")
def as_the_environment_says():
    return os.environ["VLLM_WORKER_MULTIPROC_METHOD"]


@mutant("fork-after-cuda", "absent", only="test_worker_of")
def vllm_asks_for_the_fork(monkeypatch):
    import torch

    asked = "vllm.utils.system_utils.cuda_is_initialized"
    monkeypatch.setattr(asked, lambda: torch.cuda.is_initialized() or torch.cuda._is_in_bad_fork())


@mutant("fork-after-cuda", "changed", only="test_worker_of")
def cuda_fails_otherwise(monkeypatch):
    monkeypatch.setattr("torch.cuda.init", failing(RuntimeError("CUDA error: unspecified launch failure")))


@broken("tool-call-parser-mismatch", only="test_only_the_named")
def never_compared(tokenizer, name):
    return name


@broken("tool-call-parser-mismatch", only="test_only_the_named")
def by_the_name_of_the_family(tokenizer, name):
    families = {"<|im_end|>": "hermes", "<|eot_id|>": "llama3_json"}
    right = families.get(tokenizer.eos_token, "deepseek_v3")
    if name != right:
        raise ValueError(f"the tool-call parser {name} finds no call; those that do: {right}")
    return name


@broken("tool-call-parser-mismatch", only="test_refused")
def words_alone(tokenizer, name):
    try:
        return matching_tool_parser(tokenizer, name)
    except ValueError:
        raise ValueError(f"the tool-call parser {name} finds no call") from None


@broken("tool-call-parser-mismatch", only="test_server_finds")
def all_refused(tokenizer, name):
    raise ValueError(f"the tool-call parser {name} finds no call; those that do: none of vLLM")


@mutant("tool-call-parser-mismatch", "absent", only="test_agent_loop_with_hermes")
def verl_takes_bare_json(monkeypatch):
    from verl.experimental.agent_loop.tool_parser import FunctionCall, HermesToolParser

    async def extract(self, ids, tools=None):
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return "", [FunctionCall(name="search", arguments="{}")] * text.startswith("{")

    monkeypatch.setattr(HermesToolParser, "extract_tool_calls", extract)


@mutant("tool-call-parser-mismatch", "changed", only="test_agent_loop_with_hermes")
def verl_parser_raises(monkeypatch):
    from verl.experimental.agent_loop.tool_parser import HermesToolParser

    monkeypatch.setattr(HermesToolParser, "extract_tool_calls", failing(ValueError("this is no call")))
