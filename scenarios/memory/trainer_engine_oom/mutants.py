"""Broken remedies of trainer-engine-oom, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.memory import predict_training_memory


@broken(only="-7b-lora-checkpointed")
def loss_takes_nothing(**sizes):
    return predict_training_memory(**{**sizes, "vocab_size": 0})


@broken(only="-0.5b-checkpointed")
def no_optimizer(**sizes):
    return predict_training_memory(**{**sizes, "trainable": 0})


@mutant("absent", only="test_memory_runs_out")
def checkpoints_by_itself(monkeypatch):
    from pytest_rlregress.scenarios.memory.trainer_engine_oom import test_trainer_engine_oom as scenario

    train = scenario.train

    def checkpointed(model, tokens):
        model.gradient_checkpointing_enable({"use_reentrant": False})
        train(model, tokens)

    monkeypatch.setattr(scenario, "train", checkpointed)


@mutant("changed")
def forward_fails_otherwise(monkeypatch):
    from transformers import Qwen2ForCausalLM

    def forward(model, *args, **keywords):
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(Qwen2ForCausalLM, "forward", forward)
