"""Tests that a component of the stack works here at all: each is run once, before the first test that needs it.

A component that fails its check is broken: tests that need it are blocked. ``needs`` names what is checked before.
A check does no more than every test of the component does; what it imports depends on what is installed.
"""

import importlib
import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_rlregress.stack import COMPONENTS, PARTS
from pytest_rlregress.stack.lazy import ray, torch

#: The child of the checks that start nothing.
GROUP = "component checks"
pytestmark = pytest.mark.isolated(group=GROUP)

#: Collected in children only.
FILE = Path(__file__)
TOKENS = [11, 12, 13, 14]


def test_torch():
    assert (torch.ones(2, 3) @ torch.ones(3, 2)).sum().item() == 12


@pytest.mark.needs("torch", "numpy")
def test_transformers():
    from transformers import AutoConfig

    config = AutoConfig.for_model("qwen2", hidden_size=32, num_hidden_layers=1, intermediate_size=32, vocab_size=16)
    if importlib.util.find_spec("torch"):
        from transformers import AutoModelForCausalLM

        assert AutoModelForCausalLM.from_config(config).config.hidden_size == 32


@pytest.mark.needs("torch")
def test_tensordict():
    from tensordict import TensorDict

    assert TensorDict({"ids": torch.zeros(2, 3)}, batch_size=[2])[0]["ids"].shape == (3,)


@pytest.mark.needs("torch", "tensordict", "transformers")
def test_verl():
    from verl import DataProto

    assert len(DataProto.from_dict({"ids": torch.zeros(2, 3)})) == 2


@pytest.mark.needs("verl")
def test_verl_trainer():
    importlib.import_module("verl.trainer.main_ppo")


@pytest.mark.needs("torch", "transformers")
def test_trl():
    import trl

    assert trl.__version__


@pytest.mark.needs("trl", "datasets")
def test_trl_trainer():
    importlib.import_module("trl.trainer.grpo_trainer")  # trl's own __init__ hides the reason where it fails
    importlib.import_module("trl.trainer.grpo_config")


@pytest.mark.needs("torch", "transformers", "tokenizers")
def test_vllm():
    from vllm import LLM, SamplingParams

    assert LLM
    assert SamplingParams(max_tokens=1).max_tokens == 1


@pytest.mark.needs("numpy")
def test_datasets():
    from datasets import Dataset

    assert Dataset.from_dict({"ids": [1, 2]})[1] == {"ids": 2}


@pytest.mark.needs("vllm")
def test_vllm_engine(vllm_engine):
    [completion] = vllm_engine.generate([TOKENS], max_tokens=2, temperature=0.0, ignore_eos=True)
    assert len(completion.ids) == 2


@pytest.mark.needs("vllm-engine", "peft")
def test_vllm_lora(vllm_lora, sharp_qwen, tmp_path):
    from peft import LoraConfig, get_peft_model
    from vllm.lora.request import LoRARequest

    get_peft_model(sharp_qwen.model(), LoraConfig(target_modules=["q_proj"])).save_pretrained(tmp_path)
    adapter = LoRARequest("component check", 1_000_000, str(tmp_path))
    engine = replace(vllm_lora, lora=adapter)
    [completion] = engine.generate([TOKENS], max_tokens=2, temperature=0.0, ignore_eos=True)
    engine.llm.llm_engine.remove_lora(adapter.lora_int_id)
    assert len(completion.ids) == 2


@pytest.mark.needs("vllm-engine")
def test_vllm_server(vllm_server):
    body = {"model": vllm_server.model, "prompt": TOKENS, "max_tokens": 2, "temperature": 0.0}
    status, answer = vllm_server.post("/v1/completions", body)
    assert status == 200, answer


@pytest.mark.needs("ray")
def test_ray_cluster(ray_cluster):
    class Adder:
        def add(self, number: int) -> int:
            return number + 1

    actor = ray.remote(Adder).options(num_cpus=0).remote()
    assert ray.get(actor.add.remote(1), timeout=120) == 2
    ray.kill(actor)


OWN = {name: f"test_{name.replace('-', '_')}" for name in (*COMPONENTS, *PARTS)}


@pytest.mark.parametrize("component", [name for name in COMPONENTS if OWN[name] not in globals()])
def test_import(component):
    importlib.import_module(COMPONENTS[component].module)


def check_of(component: str) -> str:
    """Return the name of the check of a component or a part of one."""
    return OWN[component] if OWN[component] in globals() else f"test_import[{component}]"
