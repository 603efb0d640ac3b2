"""What a golden test does in its contained child: compare a step with its golden, or measure a new one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import pytest

from pytest_rlregress.fixtures.step_measurements import key_of, note_run
from pytest_rlregress.goldens.comparison import compare, list_moved, tolerances
from pytest_rlregress.goldens.golden import Golden, find, find_nearest
from pytest_rlregress.harness import session
from pytest_rlregress.harness.reports import add_properties
from pytest_rlregress.records.measurements import Key, Run

if TYPE_CHECKING:
    from pytest_rlregress.goldens.steps import Alter, RecordableStep


def skip_unrecorded(item: pytest.Item, step: str) -> None:
    """Skip the test, before its step runs, if no golden of the step is for this device, torch and engine.

    Attention and dtype are known once the engine runs: ``compare_or_record`` looks at them.
    """
    run = session.find(item.config)
    if run.settings.update_goldens:
        return
    key = key_of(f"vllm {run.stack.versions['vllm']}", "any attention", "any dtype")
    near = find_nearest(run.settings.goldens, step, key)
    if near is None or (near.torch, near.engine) != (key.torch, key.engine):
        _skip(item, step, key, near)


def compare_or_record(step: RecordableStep, item: pytest.Item, say: Callable[[str], None]) -> None:
    """Run each variant of a step and compare it with the golden of its key; under --rl-update-goldens measure one.

    Skips the test where there is no golden.

    Raises:
        AssertionError: The numbers differ, each way in a line.
        GoldenError: The file isn't a golden.
    """
    run = session.find(item.config)
    folder, new = run.settings.goldens, run.settings.update_goldens
    runs = [step.run(variant, sound=new) for variant in step.variants]
    key = step.get_key()
    for one in runs:
        note_run(item, key, one)
    if new:
        draft = msgspec.json.encode(measure(step, key, runs, say)).decode()
        add_properties(item, golden_draft=draft, hardware=run.profile.id)
        return
    golden = find(folder, step.name, key)
    if golden is None:
        _skip(item, step.name, key, find_nearest(folder, step.name, key))
    # Without a marker hw, which would keep it from a CPU: it is a test of the hardware.
    add_properties(item, hardware=run.profile.id)
    found = compare(golden, step.settings, runs)
    wrong, notes = list(found.differences), list(found.notes)
    if wrong:
        notes += list_moved(golden.origin, run.stack.versions)
    used = {name: share if math.isfinite(share) else None for name, share in found.used.items()}
    _note(item, "differs" if wrong else "agrees", step.name, key, notes=notes, differences=wrong, used=used)
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        about = f"golden of {golden}, {golden.origin.get('date')}, commit {golden.origin.get('commit')}"
        raise AssertionError("\n".join([f"not as in the golden: {wrong[0]}{more}", *wrong[1:], *notes, about]))


def measure(step: RecordableStep, key: Key, runs: Sequence[Run], say: Callable[[str], None]) -> Golden:
    """Measure a golden: these runs, with tolerances from many more; its origin is left empty.

    Raises:
        AssertionError: A step is not right: that is not recorded.
    """
    variants, repeats = step.variants, {name: range(count) for name, count in step.repeats.items()}
    say(f"measuring a golden of the {step.name}: {sum(step.repeats.values())} more runs of {', '.join(variants)}")

    def run_again(variant: str, alter: Alter) -> Run:
        return step.run(variant, alter=alter, sound=True)

    repeated = [run_again(variant, lambda _: None) for _ in repeats["repeated"] for variant in variants]
    perturbed = [
        run_again(variant, perturbation(seed, key.dtype)) for seed in repeats["perturbed"] for variant in variants
    ]
    others = [step.run(variant, seed=1 + seed) for seed in repeats["other_seeds"] for variant in variants]
    return Golden(
        step=step.name,
        key=key,
        settings=step.settings,
        runs=runs,
        tolerances=tolerances(runs, repeated, perturbed, others),
        repeats=step.repeats,
    )


def perturbation(seed: int, dtype: str) -> Alter:
    """Return a function that multiplies each weight by 1 + ε or 1 - ε: what another order of summation changes."""
    import torch

    epsilon = torch.finfo(getattr(torch, dtype)).eps

    def alter(model: Any) -> None:
        draw = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                signs = 2 * torch.randint(0, 2, parameter.shape, generator=draw) - 1
                parameter.mul_(1 + epsilon * signs.to(parameter.device))

    return alter


def _skip(item: pytest.Item, step: str, key: Key, near: Key | None) -> NoReturn:
    reason = f"no golden of the {step} for this key ({key}): record it with --rl-update-goldens"
    reason += f"; nearest, not used: {near}" if near else ""
    _note(item, "none", step, key, notes=[reason])
    pytest.skip(reason)


def _note(item: pytest.Item, state: str, step: str, key: Key, **more: object) -> None:
    text = json.dumps({"state": state, "step": step, "key": asdict(key), **more}, allow_nan=False)
    add_properties(item, golden=text)
