"""A vLLM engine in this process, as a test asks it: generate, score, take new weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pytest_rlregress.agreement.completions import Completion, Prompt, check_ids, encoded
from pytest_rlregress.agreement.engine_recovery import recovering


@dataclass(frozen=True)
class Engine:
    """A running engine; prompts are text, chat or token ids, text and chat where its tokenizer is known.

    After an exception of the engine its requests are aborted and its prefix cache is reset; an engine that does not
    generate again then raises ``engine_recovery.EngineBroken`` from there on.

    Attributes:
        get_llm: Gives the running ``vllm.LLM``; ``llm`` is what it gives.
        max_model_len: Tokens of a prompt and its completion together.
        lora: The LoRARequest that each request goes with.
        get_tokenizer: Gives the tokenizer of text and chat prompts and of a completion's text.
    """

    get_llm: Callable[[], Any]
    max_model_len: int
    lora: Any = None
    get_tokenizer: Callable[[], Any] | None = None

    @classmethod
    def of(cls, llm: Any) -> Engine:
        """Take a ``vllm.LLM`` that somebody else started."""
        return cls(lambda: llm, llm.llm_engine.vllm_config.model_config.max_model_len)

    @property
    def llm(self) -> Any:
        """The running ``vllm.LLM``."""
        return self.get_llm()

    def generate(
        self,
        prompts: Sequence[Prompt],
        max_tokens: int | Sequence[int],
        temperature: float = 1.0,
        seed: int | None = None,
        n: int = 1,
        top_logprobs: int = 0,
        **sampling: Any,
    ) -> list[Completion]:
        """Sample ``n`` completions a prompt, prompt-major: the completions of prompt 0 first.

        ``max_tokens`` may differ by prompt. With a ``seed`` every completion has a seed of its own derived from it.
        Further keywords go to ``vllm.SamplingParams`` as they are (``ignore_eos=True``, ``stop_token_ids=[…]``).

        Raises:
            ValueError: A prompt is empty or too long, or an id is not in the vocabulary; nothing was sent then.
        """
        __tracebackhide__ = True
        from vllm import SamplingParams

        limits = [max_tokens] * len(prompts) if isinstance(max_tokens, int) else list(max_tokens)
        params = [
            SamplingParams(
                max_tokens=limit,
                temperature=temperature,
                # vLLM gives the n children of a request seed, seed + 1, …
                seed=None if seed is None else seed + index * n,
                n=n,
                logprobs=top_logprobs,
                detokenize=False,
                **sampling,
            )
            for index, limit in enumerate(limits)
        ]
        outputs = self._run(encoded(prompts, self.get_tokenizer), params)
        return [one for output in outputs for one in read_completions(output, bool(top_logprobs), self.get_tokenizer)]

    def generate_greedy(
        self, prompts: Sequence[Prompt], max_tokens: int | Sequence[int], **sampling: Any
    ) -> list[Completion]:
        """Return the most likely completion of each prompt, token by token; see ``generate``."""
        __tracebackhide__ = True
        return self.generate(prompts, max_tokens, temperature=0.0, **sampling)

    def logprobs(self, sequences: Sequence[Prompt]) -> list[list[float]]:
        """Log-probability in nats of token t given the tokens before it, for t >= 1.

        That is ``len(sequence) - 1`` numbers each. A sequence may have up to ``max_model_len - 1`` tokens:
        the engine also wants to generate one.
        """
        __tracebackhide__ = True
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        outputs = self._run(encoded(sequences, self.get_tokenizer), params)
        return [_of_tokens(output.prompt_token_ids[1:], output.prompt_logprobs[1:]) for output in outputs]

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Give the running engine new weights, by Hugging Face name, and forget what it cached under the old ones.

        Send a state dict, which names a tied ``lm_head.weight`` too: left out, vLLM 0.31 on a CPU keeps the old head.
        Calling the model's own ``load_weights`` after start is not supported by vLLM: it fails, or with experts
        corrupts.
        """
        from pytest_rlregress.remedies.rollout import reload_by_worker

        reload_by_worker(self.llm, weights)
        self.llm.reset_prefix_cache()

    def about(self) -> dict[str, str]:
        """Describe what computes: ``engine``, vLLM and its version, and ``attention``, the layers' backends."""
        import vllm

        [backends] = self.llm.collective_rpc(attention_backends)
        return {"engine": f"vllm {vllm.__version__}", "attention": ", ".join(backends)}

    def _run(self, prompts: list[list[int]], params: Any) -> list[Any]:
        __tracebackhide__ = True
        llm = self.llm
        limit = f"the engine's max_model_len is {self.max_model_len}, and one token is to be generated"
        vocabulary = llm.llm_engine.vllm_config.model_config.get_vocab_size()
        check_ids(prompts, vocabulary, self.max_model_len - 1, limit)
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        with eager_helpers(), recovering(llm):
            return list(llm.generate(inputs, params, use_tqdm=False, lora_request=self.lora))


@contextmanager
def eager_helpers() -> Iterator[None]:
    """Keep torch.compile off vLLM's sampling helpers on a CPU, which ``enforce_eager`` leaves on.

    It buys nothing at these sizes, and compiling three of them for each new kind of batch takes seconds every time.
    """
    import torch
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def attention_backends(worker: Any) -> list[str]:
    """Of each attention layer that the worker runs, without repeats; FlashAttention's with its own version."""
    layers = worker.vllm_config.compilation_config.static_forward_context.values()
    found = set()
    for layer in layers:
        if hasattr(layer, "get_attn_backend"):
            version = getattr(getattr(layer, "impl", None), "vllm_flash_attn_version", None)
            found.add(layer.get_attn_backend().get_name() + (f" {version}" if version else ""))
    return sorted(found)


def read_completions(
    output: Any, top_logprobs: bool = False, get_tokenizer: Callable[[], Any] | None = None
) -> list[Completion]:
    """Return the completions of a request as vLLM puts it out.

    Raises:
        ValueError: It has no log-probabilities.
    """
    if any(answer.logprobs is None for answer in output.outputs):
        raise ValueError("a request was put out without log-probabilities: ask for SamplingParams(logprobs=0)")
    return [
        Completion(
            prompt_ids=list(output.prompt_token_ids),
            ids=list(answer.token_ids),
            logprobs=_of_tokens(answer.token_ids, answer.logprobs),
            finish_reason=answer.finish_reason,
            top_logprobs=[{token: one.logprob for token, one in position.items()} for position in answer.logprobs]
            if top_logprobs
            else None,
            get_tokenizer=get_tokenizer,
        )
        for answer in output.outputs
    ]


def _of_tokens(ids: Iterable[int], by_position: Iterable[Any]) -> list[float]:
    return [position[token].logprob for token, position in zip(ids, by_position, strict=True)]
