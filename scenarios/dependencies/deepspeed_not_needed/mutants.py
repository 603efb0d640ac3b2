"""Broken remedies of deepspeed-not-needed, and stacks that differ."""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace

from mutants import broken, mutant


@broken(only="by_name")
@contextlib.contextmanager
def nothing_recorded(package):
    yield []


@broken(only="left-out-by")
@contextlib.contextmanager
def looks_recorded_too(package):
    attempts = []

    def look(name, path=None, target=None):
        if name == package:
            attempts.append(name)

    recorder = SimpleNamespace(find_spec=look)
    sys.meta_path.insert(0, recorder)
    yield attempts
    sys.meta_path.remove(recorder)


@mutant("absent", only="launcher")
def the_launcher_takes_fsdp_instead(monkeypatch):
    import accelerate

    def without_deepspeed(**keywords):
        monkeypatch.delenv("ACCELERATE_USE_DEEPSPEED")
        return accelerator(**keywords)

    accelerator = accelerate.Accelerator
    monkeypatch.setattr(accelerate, "Accelerator", without_deepspeed)


@mutant("changed", only="launcher")
def another_package_is_missing(monkeypatch):
    import accelerate

    def refuse(**keywords):
        raise ImportError("Using the `Trainer` with `PyTorch` requires `accelerate>=1.1.0`")

    monkeypatch.setattr(accelerate, "Accelerator", refuse)
