"""Training steps as a golden needs them: how to run one again, also from other weights, and what it ran on."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_rlregress.records.measurements import MINIATURE, Key, Run

if TYPE_CHECKING:
    from pytest_rlregress.fixtures.tiny_qwen import TinyQwen
    from pytest_rlregress.fixtures.trainer_step import TrainingStep
    from pytest_rlregress.fixtures.trl_step import TrlRun, TrlStep

#: Changes a fresh model in place.
Alter = Callable[[Any], None]


@dataclass(frozen=True)
class RecordableStep:
    """A training step whose numbers are recorded and compared.

    Attributes:
        name: Such as "trl-step".
        variants: Each is recorded.
        settings: What it was given, as JSON values, without variant.
        repeats: How many more runs make a golden: ``repeated`` ones, ``perturbed`` ones, from weights that differ in
            the last bit, and ``other_seeds``.
        run: ``run(variant, seed=0, alter=None, sound=False)``: its measurements. ``seed`` is added to the step's own,
            ``alter`` is called with the fresh model, and ``sound`` has the step checked: AssertionError.
        get_key: What it runs on; asked for once it has run.
    """

    name: str
    variants: Sequence[str]
    settings: Mapping[str, Any]
    repeats: Mapping[str, int]
    run: Callable[..., Run]
    get_key: Callable[[], Key]


def make_miniature(step: TrainingStep, steps: int = 6, **repeats: int) -> RecordableStep:
    """Return the miniature step at both levels, and with random prompts."""
    from pytest_rlregress.fixtures.step_record import check

    def run(variant: str, *, seed: int = 0, alter: Alter | None = None, sound: bool = False) -> Run:
        found: list[Run] = []
        level, _, prompts = variant.partition(", ")
        changes: dict[str, Any] = {"level": level, "prompt_kind": prompts or "text", "seed": step.settings.seed + seed}
        settings = replace(step.settings, **changes)
        aside = replace(step, settings=settings, note=lambda key, run: found.append(run))
        records = aside.run(steps, alter or (lambda _: None))
        if sound:
            check(records, steps, settings.logprob_tolerance)
        return found[0]

    shared = {name: value for name, value in asdict(step.settings).items() if name not in ("level", "prompt_kind")}
    repeats = {"repeated": 2, "perturbed": 6, "other_seeds": 3, **repeats}
    return RecordableStep(
        MINIATURE, ("token", "sequence", "token, random"), shared, repeats, run, get_key=lambda: step.key
    )


def make_trl(step: TrlStep, kept: dict[str, TrlRun], tolerance: float, steps: int = 10) -> RecordableStep:
    """Return TRL's step with its engine in the same process; each run, about 15 s on two cores, has an engine.

    Args:
        step: The fixture's.
        kept: Runs that tests made, by ``trl_step.kept_as``: one of them isn't made again.
        tolerance: Largest disagreement of engine and trainer in a sound run, in nats.
        steps: How many each run has.
    """
    from pytest_rlregress.fixtures.step_record import check
    from pytest_rlregress.fixtures.trl_step import NAME, kept_as

    def run(variant: str, *, seed: int = 0, alter: Alter | None = None, sound: bool = False) -> Run:
        aside = replace(step, note=lambda key, run: None, kept={})
        name = kept_as(variant, steps)
        if alter or seed:
            with altered(aside.model, alter) as model:
                made = replace(aside, model=model).run(steps, variant, seed=seed)
        else:
            made = kept.get(name) or aside.run(steps, variant)
            kept[name] = made
        if sound:
            check(made.records, steps, tolerance, compared="mean" if not made.stand_ins else "max")
        return made.measured

    settings = {"model": step.model.variant, "steps": steps}
    repeats = {"repeated": 2, "perturbed": 4, "other_seeds": 2}
    return RecordableStep(NAME, ("colocate",), settings, repeats, run, lambda: kept[kept_as("colocate", steps)].key)


@contextmanager
def altered(model: TinyQwen, alter: Alter | None) -> Iterator[TinyQwen]:
    """Copy a model with altered weights, for trainers that load it from its folder; itself without ``alter``."""
    if alter is None:
        yield model
        return
    from safetensors.torch import load_file, save_file

    with tempfile.TemporaryDirectory(prefix="rlregress-") as folder:
        copy = Path(folder, "model")
        shutil.copytree(model.directory, copy)
        loaded = model.model()
        alter(loaded)
        weights, state = copy / "model.safetensors", loaded.state_dict()
        save_file({name: state[name].contiguous() for name in load_file(weights)}, weights, {"format": "pt"})
        yield replace(model, directory=copy)
