"""Interfaces of installed releases are looked up in their source; ``watched`` refuses to import any of the stack."""

from __future__ import annotations

import importlib
import sys

import needs
import pytest

from pytest_rlregress.stack import StackError
from pytest_rlregress.stack.interfaces import InterfaceReader, parse_interface

FILES = {
    "verl-0.7.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: verl\nVersion: 0.7.1\n",
    "verl/__init__.py": "from .losses import ppo_loss as loss, Actor\nfrom .stars import *\n",
    "verl/losses.py": """
from dataclasses import dataclass, field
from typing import Generic
from msgspec import Struct
import verl.base as below
from .nowhere import Lost

def ppo_loss(config, /, data, *, dp_group=None): ...
def open_loss(data, **others): ...
renamed = ppo_loss
computed = make_loss()

class Actor(below.Base):
    limit: int = 3
    def __init__(self, rank, **settings):
        super().__init__(**settings)
        self.mode = "plain"
    def step(self, batch): ...

@dataclass
class Config(below.Settings):
    clip: float = 0.2

class Request(Struct, frozen=True):
    path: str

class Unknown(Lost):
    def __init__(self, rank, **settings): ...

class Plain(Generic):
    pass

@decorated_by_us
class Decorated:
    clip: float = 0.2

try:
    from verl.base import Newer as Chosen
except ImportError:
    class Chosen:
        def __init__(self, old): ...
""",
    "verl/base.py": """
from dataclasses import dataclass

class Base:
    def __init__(self, model): ...
    def save(self): ...

@dataclass
class Settings:
    rate: float = 1.0
""",
    "verl/stars.py": "from verl import *\ndef shining(): ...\n",
    "verl/lazy.py": "def __getattr__(name): return 1\n",
    "verl/broken.py": "def (\n",
    "verl/folder/inside.py": "def one(): ...\n",
    "verl/config/__init__.py": "",
    "verl/config/run.yaml": "defaults:\n  - actor\ntrainer:\n  mode: sync\n",
    "verl/config/_generated_run.yaml": "trainer:\n  mode: sync\n  v1: null\nactor:\n  lr: 1\n",
    "verl/config/plain.yaml": "trainer:\n  mode: sync\n",
    "verl/config/composed.yaml": "defaults:\n  - actor\n",
    "verl/config/cut.yaml": "trainer: {",
}
THERE = [
    "verl.losses:ppo_loss",
    "verl.losses:ppo_loss(config, data, dp_group)",
    "verl.losses:open_loss(whatever)",
    "verl.losses:renamed(data)",
    "verl:loss(data)",
    "verl:shining",
    "verl:losses.ppo_loss(data)",
    "verl:losses",
    "verl.folder:inside.one",
    "verl.losses:Actor(rank, model)",
    "verl:Actor.save",
    "verl:Actor.step(batch)",
    "verl:Actor.mode",
    "verl:Actor.limit",
    "verl.losses:Config(clip, rate)",
    "verl.losses:Config.rate",
    "verl.losses:Request(path)",
    "verl.losses:Chosen(old)",
    # Nobody can tell from the source alone.
    "verl.losses:computed(anything)",
    "verl.losses:Unknown(rank, anything)",
    "verl.losses:Unknown.anything",
    "verl.losses:Decorated(anything)",
    "verl.lazy:anything",
    "verl.broken:anything",
    # Keys.
    "verl.config.run:trainer.mode",
    "verl.config.run:trainer(mode, v1)",
    "verl.config.run:trainer.v1.whatever",
    "verl.config.run:actor.lr",
    "verl.config.plain:trainer.mode",
    "verl.config.composed:actor.lr",
    "verl.config.cut:trainer.mode",
]
MISSING = {
    "verl.losses:grpo_loss": "verl.losses.grpo_loss",
    "verl.losses:ppo_loss(attention_mask)": "verl.losses.ppo_loss(attention_mask=…)",
    "verl.losses:ppo_loss(data, mask, kl)": "verl.losses.ppo_loss(mask=…, kl=…)",
    "verl.losses:renamed(mask)": "verl.losses.renamed(mask=…)",
    "verl.losses:Lost": "verl.losses.Lost",
    "verl.losses:ppo_loss.cache": "verl.losses.ppo_loss.cache",
    "verl.losses:Actor(device)": "verl.losses.Actor(device=…)",
    "verl:Actor.load": "verl.Actor.load",
    "verl:Actor.step(loss)": "verl.Actor.step(loss=…)",
    "verl.losses:Config(cap)": "verl.losses.Config(cap=…)",
    "verl.losses:Request(load_inplace)": "verl.losses.Request(load_inplace=…)",
    "verl.losses:Plain(anything)": "verl.losses.Plain(anything=…)",
    "verl.losses:Chosen(new)": "verl.losses.Chosen(new=…)",
    "verl.newer:anything": "verl.newer",
    "verl.newer.module:anything": "verl.newer.module",
    "verl:_shining": "verl._shining",
    "verl.config.run:trainer(mode, device)": "trainer.device of verl.config.run",
    "verl.config.run:critic.lr": "critic.lr of verl.config.run",
    "verl.config.plain:trainer.mode.name": "trainer.mode.name of verl.config.plain",
    "verl.config.other:trainer": "verl.config.other",
}
REFUSED = {
    "verl.losses:": "isn't an interface. Allowed: a module, a colon and a name",
    ":ppo_loss": "isn't an interface",
    "verl.losses:ppo_loss(": "isn't an interface",
    "verl.losses:ppo_loss()": "isn't an interface",
    "verl.losses:ppo_loss(mask=)": "isn't an interface",
    "verl losses:ppo_loss": "isn't an interface",
    "verl.losses:1st": "isn't an interface",
    "json:loads": "json isn't a module of a component of the stack",
}
#: In every release that requirements/ locks.
INSTALLED = {
    "vllm.lora.request:LoRARequest(lora_name, lora_path)": "",
    "vllm.lora.request:LoRARequest(lora_nickname)": "vllm.lora.request.LoRARequest(lora_nickname=…)",
    "vllm:LLM.generate(prompts, sampling_params)": "",
    "vllm:LLM(model, modell)": "vllm.LLM(modell=…)",
    "vllm.engine.arg_utils:EngineArgs(max_num_seqs, maxnumseqs)": "vllm.engine.arg_utils.EngineArgs(maxnumseqs=…)",
    "trl:GRPOTrainer": "",
    "trl:GRPOConfig(beta, learning_rate, bett)": "trl.GRPOConfig(bett=…)",
    "verl:DataProto.concat": "",
    "verl:DataProto.concatenate": "verl.DataProto.concatenate",
    "verl.trainer.config.ppo_trainer:actor_rollout_ref.rollout(n, nn)": (
        "actor_rollout_ref.rollout.nn of verl.trainer.config.ppo_trainer"
    ),
    "transformers:Qwen2ForCausalLM": "",
    "torch:nn.Linear(in_features, inn)": "torch.nn.Linear(inn=…)",
}


@pytest.fixture
def verl(tmp_path, monkeypatch):
    """A verl 0.7.1 in front of an installed one."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()


@pytest.mark.parametrize("need", THERE)
def test_finds_an_interface(verl, need):
    assert InterfaceReader().find_missing(need) == ""


@pytest.mark.parametrize("need", MISSING)
def test_names_a_missing_interface_with_its_release(verl, need):
    assert InterfaceReader().find_missing(need) == f"needs {MISSING[need]}, which verl 0.7.1 doesn't have"


@pytest.mark.parametrize("need", REFUSED)
def test_refuses_what_is_not_spelt_as_an_interface(need):
    with pytest.raises(StackError) as caught:
        parse_interface(need)
    assert REFUSED[need] in str(caught.value)
    assert "\n" not in str(caught.value)


@needs.stack
@pytest.mark.parametrize("need", INSTALLED)
def test_reads_what_is_installed(need):
    said = InterfaceReader().find_missing(need)
    assert said.startswith(f"needs {INSTALLED[need]}, which ") if INSTALLED[need] else said == ""


def test_imports_nothing(verl):
    before = {*sys.modules}
    for need in (*THERE, *MISSING):
        InterfaceReader().find_missing(need)
    brought = {name.partition(".")[0] for name in {*sys.modules} - before}
    assert "verl" not in brought
    assert brought <= {"yaml", "_yaml"}
