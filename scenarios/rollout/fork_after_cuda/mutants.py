"""Broken remedies of fork-after-cuda, and stacks that differ."""

from __future__ import annotations

import sys

from mutants import broken, failing, mutant


@broken(only="test_choice[")
def as_torch_says():
    torch = sys.modules["torch"]
    return "spawn" if torch.cuda.is_initialized() else "fork"


@broken(only="test_choice_without_cuda")
def always_spawn():
    return "spawn"


@mutant("absent", only="test_worker_of")
def vllm_asks_for_the_fork(monkeypatch):
    import torch

    asked = "vllm.utils.system_utils.cuda_is_initialized"
    monkeypatch.setattr(asked, lambda: torch.cuda.is_initialized() or torch.cuda._is_in_bad_fork())


@mutant("changed", only="test_worker_of")
def cuda_fails_otherwise(monkeypatch):
    monkeypatch.setattr("torch.cuda.init", failing(RuntimeError("CUDA error: unspecified launch failure")))
