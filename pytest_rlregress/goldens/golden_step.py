"""What a golden test does in its contained child: compare a step with its golden, or measure a new one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_rlregress.fixtures.step_key import Key, key_of
from pytest_rlregress.fixtures.step_measurements import Run, note_run
from pytest_rlregress.goldens.comparison import compare, moved
from pytest_rlregress.goldens.differences import tolerances
from pytest_rlregress.goldens.golden import Golden, as_json, find, nearest
from pytest_rlregress.harness import properties, session

if TYPE_CHECKING:
    from pytest_rlregress.goldens.recordable import Alter, RecordableStep

#: On the test's report: a golden that is to be written once the run has ended well.
DRAFT = "rlregress_golden_draft"


def skip_unrecorded(item: pytest.Item, step: str) -> None:
    """Skip the test, before its step runs, if no golden of the step is for this device, torch and engine.

    Attention and dtype are known once the engine runs: ``compare_or_record`` looks at them.
    """
    run = session.find(item.config)
    if run.settings.update_goldens:
        return
    key = key_of(f"vllm {run.stack.versions['vllm']}", "any attention", "any dtype")
    near = nearest(run.settings.goldens, step, key)
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
    key = step.key
    for one in runs:
        note_run(item, key, one)
    golden = None if new else find(folder, step.name, key)
    if new:
        draft = as_json(measure(step, key, runs, say))
        properties.add(item, golden_draft=json.dumps(draft, allow_nan=False), hardware=run.profile.id)
        return
    if golden is None:
        _skip(item, step.name, key, nearest(folder, step.name, key))
    # Without a marker hw, which would keep it from a CPU: it is a test of the hardware.
    properties.add(item, hardware=run.profile.id)
    found = compare(golden, step.settings, runs)
    wrong, notes = list(found.differences), list(found.notes)
    if wrong:
        notes += moved(golden.origin, run.stack.versions)
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
    repeats, variants = step.repeats, step.variants
    say(f"measuring a golden of the {step.name}: {sum(asdict(repeats).values())} more runs of {', '.join(variants)}")
    repeated = [_again(step, variant, sound=True) for _ in range(repeats.repeated) for variant in variants]
    perturbed = [
        step.run(variant, alter=perturbation(seed, key.dtype), sound=True)
        for seed in range(repeats.perturbed)
        for variant in variants
    ]
    others = [step.run(variant, seed=1 + seed) for seed in range(repeats.other_seeds) for variant in variants]
    again = []
    for _ in range(repeats.fresh_engine):
        with step.fresh() as fresh:
            again += [_again(fresh, variant, sound=True) for variant in variants]
    return Golden(
        step.name,
        key,
        step.settings,
        runs,
        tolerances(runs, [*repeated, *again], perturbed, others),
        asdict(repeats),
        {},
    )


def _again(step: RecordableStep, variant: str, *, sound: bool) -> Run:
    """Run it again, from weights that are not altered."""
    return step.run(variant, alter=lambda _: None, sound=sound)


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
    properties.add(item, golden=text)
