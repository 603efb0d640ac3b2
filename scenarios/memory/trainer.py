"""A trainer's memory without a GPU: real models, trained for real, counted without memory, or kept short of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

KEYS = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size")
QWEN_7B = dict(zip(KEYS, (28, 3584, 18944, 152064), strict=True))
QWEN_HALF_B = dict(zip(KEYS, (24, 896, 4864, 151936), strict=True))
SMALL = dict(zip(KEYS, (12, 128, 512, 1024), strict=True))
# Of experts, those that a token goes to.
GPT_OSS_20B = dict(zip(KEYS, (24, 2880, 4 * 2880, 201088), strict=True)) | {"parameters": 20_900_000_000}
QWEN_30B_A3B = dict(zip(KEYS, (48, 2048, 8 * 768, 151936), strict=True)) | {"parameters": 30_500_000_000}

CO_TENANT = """
import sys, torch
held = torch.empty(int(sys.argv[1]), dtype=torch.uint8, device="cuda")
print("holding", flush=True)
sys.stdin.readline()
del held
torch.cuda.empty_cache()
print("released", flush=True)
sys.stdin.readline()
"""


def build(
    size: Mapping[str, int], lora: bool, checkpointing: bool, device: str = "cpu", dtype: str = "bfloat16"
) -> torch.nn.Module:
    """A Qwen 2 of that size in train mode, with LoRA r8 on every linear layer or with all weights trained."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen2Config, Qwen2ForCausalLM

    heads = size["hidden_size"] // (128 if size["hidden_size"] > 1024 else 32)
    config = Qwen2Config(**size, num_attention_heads=heads, num_key_value_heads=heads // 7 or 1, use_cache=False)
    with torch.device(device):
        model = Qwen2ForCausalLM._from_config(config, dtype=getattr(torch, dtype), attn_implementation="sdpa")
    if lora:
        adapters = LoraConfig(r=8, lora_alpha=32, target_modules="all-linear")
        model = get_peft_model(model, adapters, autocast_adapter_dtype=False)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def train(model: torch.nn.Module, tokens: int, steps: int = 1) -> None:
    """Steps of AdamW on the log-probabilities of sequences of 512."""
    import torch

    ids = torch.ones(tokens // 512, 512, dtype=torch.long, device=next(model.parameters()).device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, foreach=True)  # a GPU's default
    for _ in range(steps):
        # "No mask" said aloud: where transformers sees fake tensors it would write one down.
        logits = model(input_ids=ids, attention_mask={"full_attention": None}).logits
        loss = -torch.log_softmax(logits.float(), -1).gather(-1, ids[..., None]).mean()
        del logits
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def count(size: Mapping[str, int], lora: bool, checkpointing: bool, tokens: int, dtype: str = "bfloat16") -> int:
    """Peak bytes of that training: the real model over tensors that have a shape and no memory."""
    import weakref

    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    alive: dict[int, int] = {}  # bytes by storage

    class Count(TorchDispatchMode):  # type: ignore[misc]
        peak: int = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = function(*args, **(kwargs or {}))
            for storage in (one.untyped_storage() for one in tree_leaves(made) if isinstance(one, torch.Tensor)):
                if storage._cdata not in alive:
                    alive[storage._cdata] = storage.nbytes()
                    weakref.finalize(storage, alive.pop, storage._cdata)
            self.peak = max(self.peak, sum(alive.values()))
            return made

    model = build(size, lora, checkpointing, "meta", dtype)
    with FakeTensorMode(allow_non_fake_inputs=True), Count() as counted:
        train(model.to_empty(device="cpu"), tokens, steps=1 if lora else 2)
    return int(counted.peak)


def known(size: Mapping[str, int], lora: bool) -> dict[str, int]:
    """The sizes that ``predict_training_memory`` asks for."""
    weights = [(one.numel(), one.requires_grad) for one in build(size, lora, False, "meta").parameters()]
    return {**size, "parameters": sum(n for n, _ in weights), "trainable": sum(n for n, has in weights if has)}


@contextmanager
def at_most(room: int) -> Iterator[None]:
    """Let this process have ``room`` bytes more, as beside an engine. For isolated tests: it changes malloc."""
    import ctypes
    import resource

    ctypes.CDLL(None).mallopt(-3, 1 << 17)  # M_MMAP_THRESHOLD: what is freed goes back, what is short shows
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    with open("/proc/self/status") as status:
        held = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (held + room, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limits)


@contextmanager
def co_tenant(share: float) -> Iterator[Callable[[], None]]:
    """Another process holds that share of the GPU; yields the function that makes it give all back."""
    import torch

    held = int(share * torch.cuda.mem_get_info()[1])
    command = [sys.executable, "-c", CO_TENANT, str(held)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdin
        assert process.stdout
        say, heard = process.stdin.write, process.stdout.readline

        def release() -> None:
            say("\n")
            assert heard() == "released\n"

        try:
            assert heard() == "holding\n"
            yield release
        finally:
            process.kill()
