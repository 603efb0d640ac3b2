"""Remedies for the engine that generates: lengths, its log, its weights."""

from __future__ import annotations

import json
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_rlregress.logs.engine import EngineLog
from pytest_rlregress.remedies.weight_sync import forget_cached_prefixes
from pytest_rlregress.stack import InterfaceMissing

if TYPE_CHECKING:
    import torch
    from vllm import LLM

__all__ = [
    "clamp_max_tokens",
    "reload_weights",
    "reload_weights_by_server",
    "watch_engine_log",
    "worker_start_method",
]


def clamp_max_tokens(max_tokens: int, prompt_length: int, max_model_len: int) -> int:
    """Return the most tokens of ``max_tokens`` that fit behind a prompt: ``prompt_length + result <= max_model_len``.

    All three in tokens; the prompt's as the engine counts them, chat template included. Clamp each request: vLLM's
    server refuses one that does not fit, and its offline ``LLM.generate`` silently stops short.

    Raises:
        ValueError: The prompt leaves no room for a single token, or none is asked for.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}: at least 1 is needed")
    left = max_model_len - prompt_length
    if left < 1:
        raise ValueError(
            f"no room to generate: the prompt has {prompt_length} tokens and max_model_len, which holds prompt and "
            f"completion, is {max_model_len}. Shorten the prompt or raise max_model_len."
        )
    return min(max_tokens, left)


def watch_engine_log(log: Path, patience: float) -> Callable[[], None]:
    """Learn from an inference server's own log that it failed, where the trainer only sees that nothing comes.

    What the server logs from now on counts: vLLM's, or another's that uvicorn runs with its access log on. A request
    completed after an error takes the error back, so that one bad prompt does not end a run that goes on.

    Args:
        log: File the server writes to. It need not exist yet, and may be of any size, truncated or replaced.
        patience: Seconds without a completed request after an error; choose more than the longest rollout takes.

    Returns:
        The check to call in the orchestrator's loop: it raises RuntimeError with the engine's words.
    """
    engine = EngineLog(log)

    def check() -> None:
        failure = engine.failure(patience)
        if failure:
            raise RuntimeError(f"no request was completed since the engine logged an error in {log}:\n{failure}")

    return check


def reload_weights(llm: LLM, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Give a running engine new weights and forget what it cached under the old ones.

    By vLLM's own ``reload_weights``, not the model's ``load_weights``, which is for the first load only. What vLLM 0.31
    leaves old or garbles without a word arrives too: a tied head that is not sent, gpt-oss' experts in one tensor a
    layer and its attention sinks, and on a CPU every mixture of experts.

    Args:
        llm: An engine in this process (``VLLM_ENABLE_V1_MULTIPROCESSING=0``).
        weights: Every tensor of the checkpoint by the name ``save_pretrained`` gives it, any float dtype and device.

    Raises:
        InterfaceMissing: This vLLM takes no new weights, or no gpt-oss': the engine still has its old ones.
    """
    import vllm
    from vllm.platforms import current_platform

    config = llm.model_config.hf_config
    tied, gpt_oss = config.get_text_config().tie_word_embeddings, config.model_type == "gpt_oss"
    if gpt_oss:
        from vllm.model_executor.models import gpt_oss as module

        if not hasattr(module, "GptOssRoutedExperts"):
            raise InterfaceMissing(
                f"needs {module.__name__}.GptOssRoutedExperts, which vllm {vllm.__version__} doesn't have: it loads no "
                "single expert, and would keep the old experts of a gpt-oss without a word. Use vLLM 0.31 or later, or "
                "start a new engine from a checkpoint with the new weights"
            )
    sinks = []

    def sent() -> Iterator[tuple[str, torch.Tensor]]:
        embedding = None
        for name, tensor in weights:
            layer, experts, rest = name.partition(".mlp.experts.")
            if gpt_oss and experts:
                # The whole stack is copied onto a placeholder on the meta device, and lost; a single one is not.
                yield from ((f"{layer}{experts}{number}.{rest}", one) for number, one in enumerate(tensor))
                continue
            if name.endswith(".sinks"):
                sinks.append((name, tensor))
            elif name.endswith("embed_tokens.weight"):
                embedding = tensor
            elif name == "lm_head.weight":
                embedding = None
            yield name, tensor
        if tied and embedding is not None:
            yield "lm_head.weight", embedding

    if current_platform.is_cpu():
        llm.apply_model(_forget_expert_kernels)
    reload_by_worker(llm, sent())
    if sinks:  # are copied onto a placeholder too; nothing processes them, so that a plain load does for them
        llm.apply_model(lambda model: model.load_weights(iter(sinks)))
    forget_cached_prefixes(llm)


def reload_by_worker(llm: LLM, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Give a running engine new weights by the ``reload_weights`` of vLLM's worker, and nothing more.

    Raises:
        InterfaceMissing: It takes none: vLLM 0.13's reads them from the checkpoint's folder only.
    """
    import vllm

    try:
        llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
    except TypeError as error:
        if "weights_iterator" not in str(error):
            raise
        raise InterfaceMissing(
            f"needs reload_weights(weights_iterator=…) of the worker, which vllm {vllm.__version__} doesn't have"
        ) from error


def reload_weights_by_server(
    address: str, weights: Iterable[tuple[str, torch.Tensor]], folder: str | Path | None = None
) -> None:
    """Give a running vLLM server new weights by its endpoints, and let it forget what it cached under the old ones.

    By a file and the worker's ``reload_weights``; a tied head, which ``save_pretrained`` leaves out, is written too.
    Requests that are running go on with the new weights. For dense models: what ``reload_weights`` does for experts is
    not done here.

    Args:
        address: Of a server started with ``VLLM_SERVER_DEV_MODE=1``, such as ``http://127.0.0.1:8000``.
        weights: Every tensor of the checkpoint by the name ``save_pretrained`` gives it, any float dtype and device.
        folder: Where the file lies meanwhile, one that the server sees too; None for the system's temporary one.

    Raises:
        RuntimeError: The server refused; with its words. Give it all weights again before it generates.
    """
    from safetensors.torch import save_file

    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights}
    embeddings = [name for name in tensors if name.endswith("embed_tokens.weight")]
    if embeddings:  # without a head of its own the model's is tied
        tensors.setdefault("lm_head.weight", tensors[embeddings[0]].clone())
    with tempfile.TemporaryDirectory(dir=folder) as written:
        save_file(tensors, Path(written, "model.safetensors"))
        _post(f"{address}/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": written}})
    answer = _post(f"{address}/reset_prefix_cache?reset_running_requests=true", {})
    if '"success":false' in answer:  # vLLM before 0.26 does not say
        raise RuntimeError(f"{address} did not reset its prefix cache: it would go on from keys of the old weights")


def _post(url: str, body: Mapping[str, Any]) -> str:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        why = error.read().decode(errors="replace")
        advice = ". Was it started with VLLM_SERVER_DEV_MODE=1?" if error.code == HTTPStatus.NOT_FOUND else ""
        raise RuntimeError(f"{url} answered {error.code}: {why}{advice}") from None


def _forget_expert_kernels(model: torch.nn.Module) -> None:
    """Let vLLM lay out the experts as at the first load: it does so only where there is no kernel yet."""
    for layer in model.modules():
        method: Any = getattr(layer, "quant_method", None)
        if hasattr(method, "moe_kernel"):
            method.moe_kernel = None


def worker_start_method() -> str:
    """Choose how vLLM's processes are started from this one: "spawn" if a fork would inherit CUDA, else "fork".

    Set ``VLLM_WORKER_MULTIPROC_METHOD`` to it before the engine starts. vLLM looks itself, but not whether this process
    was forked from one that used CUDA: then ``torch.cuda.is_initialized()`` is False, and CUDA unusable all the same.
    """
    torch = sys.modules.get("torch")  # without it, nothing of torch can have used CUDA
    if torch is None:
        return "fork"
    return "spawn" if torch.cuda.is_initialized() or torch.cuda._is_in_bad_fork() else "fork"
