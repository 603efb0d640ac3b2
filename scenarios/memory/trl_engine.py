"""TRL's colocated engine without its trainer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import signature
from pathlib import Path
from typing import Any
from unittest import mock

from pytest_rlregress.agreement.engine import eager_helpers
from pytest_rlregress.fixtures import vllm_engine
from pytest_rlregress.fixtures.trl_on_cpu import while_built
from pytest_rlregress.stack import InterfaceMissing


def prepare(folder: Path, **settings: Any) -> AbstractContextManager[Any]:
    """Return a context manager that starts TRL's ``VLLMGeneration`` on a model's folder.

    All that it takes is imported and checked here. A CPU has no sleep mode: there TRL
    is told of it, and vLLM isn't.
    """
    import torch
    from accelerate import Accelerator
    from transformers import AutoModelForCausalLM

    cuda = torch.cuda.is_available()
    stand_ins = nullcontext() if cuda else while_built("colocate")
    from trl.generation import vllm_generation

    arguments = {
        "model": AutoModelForCausalLM.from_pretrained(folder),
        "accelerator": Accelerator(cpu=not cuda),
        "processing_class": None,
        "mode": "colocate",
        "gpu_memory_utilization": 0.3,
        "max_num_seqs": 4,
        **settings,
    }
    takes = signature(vllm_generation.VLLMGeneration)
    if "is_fsdp_enabled" in takes.parameters:  # before TRL 1.6
        arguments["is_fsdp_enabled"] = False
    try:
        takes.bind(**arguments)
    except TypeError as error:
        raise InterfaceMissing(f"needs TRL's VLLMGeneration as it is called here: {error}") from error

    @contextmanager
    def start() -> Iterator[Any]:
        started = []
        with vllm_engine.left_as_it_was():
            try:
                with stand_ins:
                    engine = vllm_generation.LLM

                    def start_engine(**options: Any) -> Any:
                        if not cuda:
                            options["enable_sleep_mode"] = False
                        started.append(engine(**options))
                        return started[0]

                    with mock.patch.object(vllm_generation, "LLM", start_engine):
                        generation = vllm_generation.VLLMGeneration(**arguments)
                with eager_helpers():
                    yield generation
            finally:
                for llm in started:
                    llm.llm_engine.engine_core.shutdown()

    return start()
