"""What the golden test does in its contained child: compare the step with its golden, or measure a new one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_rlregress import properties, session
from pytest_rlregress.fixtures.step_key import Key, key_of
from pytest_rlregress.fixtures.step_measurements import Run, run_of
from pytest_rlregress.goldens.comparison import compare, moved
from pytest_rlregress.goldens.differences import bands, tolerances
from pytest_rlregress.goldens.golden import Golden, as_json, find, nearest

if TYPE_CHECKING:
    from pytest_rlregress.fixtures.ray_cluster import Cluster
    from pytest_rlregress.fixtures.step_record import Level
    from pytest_rlregress.fixtures.training_step import TrainingStep

STEPS = 6
LEVELS: tuple[Level, ...] = ("token", "sequence")
#: How many more runs a golden is measured from.
REPEATED, PERTURBED, OTHER_SEEDS = 2, 6, 3
#: On the test's report: a golden that is to be written once the run has ended well.
DRAFT = "rlregress_golden_draft"

Alter = Callable[[Any], None]


def compare_or_record(step: TrainingStep, cluster: Cluster, item: pytest.Item, say: Callable[[str], None]) -> None:
    """Run the step at both levels and compare it with the golden of its key; under --rl-update-goldens measure one.

    Skips the test where there is no golden.

    Raises:
        AssertionError: The numbers differ, each way in a line; under --rl-strict also for speed and memory.
        GoldenError: The golden's file is none.
    """
    run = session.find(item.config)
    key, settings, new = key_of(step), _settings(step), run.settings.update_goldens
    runs = [_run(step, level, sound=new) for level in LEVELS]
    if new:
        draft = as_json(measure(step, cluster, key, runs, say))
        properties.add(item, golden_draft=json.dumps(draft, allow_nan=False), hardware=run.profile.id)
        return
    folder = run.settings.goldens
    golden = find(folder, key)
    if golden is None:
        near = nearest(folder, key)
        reason = f"no golden for this key ({key}): record it with --rl-update-goldens"
        reason += f"; nearest, not used: {near}" if near else ""
        _note(item, "none", key, notes=[reason])
        pytest.skip(reason)
    # Without a marker hw, which would keep it from a CPU: it is a test of the hardware.
    properties.add(item, hardware=run.profile.id)
    found = compare(golden, settings, runs)
    wrong, notes = list(found.differences), list(found.notes)
    (wrong if run.settings.strict else notes).extend(found.unusual)
    if wrong:
        notes += moved(golden.origin, run.stack.versions)
    used = {name: share if math.isfinite(share) else None for name, share in found.used.items()}
    _note(item, "differs" if wrong else "agrees", key, notes=notes, differences=wrong, used=used)
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        about = f"golden of {key}, {golden.origin.get('date')}, commit {golden.origin.get('commit')}"
        raise AssertionError("\n".join([f"not as in the golden: {wrong[0]}{more}", *wrong[1:], *notes, about]))


def measure(step: TrainingStep, cluster: Cluster, key: Key, runs: Sequence[Run], say: Callable[[str], None]) -> Golden:
    """Measure a golden: these runs, with tolerances from many more; its origin is left empty.

    Raises:
        AssertionError: A step is not right: that is not recorded.
    """
    from pytest_rlregress.fixtures.training_step import start

    aside = replace(step, ran=lambda settings, records: None)  # the test's report has the runs that are kept
    say(f"measuring a golden: {REPEATED + 1 + PERTURBED + OTHER_SEEDS} more runs at both levels")
    repeated = [_run(aside, level, sound=True) for _ in range(REPEATED) for level in LEVELS]
    perturbed = [
        _run(aside, level, perturbation(seed, key.dtype), sound=True) for seed in range(PERTURBED) for level in LEVELS
    ]
    seeds = range(step.settings.seed + 1, step.settings.seed + 1 + OTHER_SEEDS)
    others = [_run(aside, level, seed=seed) for seed in seeds for level in LEVELS]
    with start(step.tiny_qwen, cluster, step.settings, say) as fresh:
        again = [_run(fresh, level, sound=True) for level in LEVELS]
    return Golden(
        key,
        _settings(step),
        runs,
        tolerances(runs, [*repeated, *again], perturbed, others),
        bands([*runs, *repeated, *perturbed, *others]),  # with a second engine there is less of everything
        {"repeated": REPEATED, "fresh_engine": 1, "perturbed": PERTURBED, "other_seeds": OTHER_SEEDS},
        {},
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


def _run(
    step: TrainingStep, level: Level, alter: Alter = lambda _: None, *, sound: bool = False, **overrides: Any
) -> Run:
    """Run the step once; with ``sound`` an AssertionError says what is wrong with it."""
    from pytest_rlregress.fixtures.step_record import check

    settings = replace(step.settings, level=level, **overrides)
    records = step.run(STEPS, alter, level=level, **overrides)
    for record in records if sound else ():
        check(record, settings)
    return run_of(settings, records)


def _settings(step: TrainingStep) -> dict[str, Any]:
    """The step's settings as JSON values."""
    return {name: value for name, value in asdict(step.settings).items() if name != "level"}


def _note(item: pytest.Item, state: str, key: Key, **more: object) -> None:
    properties.add(item, golden=json.dumps({"state": state, "key": asdict(key), **more}, allow_nan=False))
