"""TRL's step as a golden needs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pytest_rlregress.fixtures.step_key import Key
from pytest_rlregress.fixtures.step_measurements import Run
from pytest_rlregress.fixtures.step_record import check
from pytest_rlregress.fixtures.trl_step import NAME, TrlRun, TrlStep, kept_as
from pytest_rlregress.goldens.recordable import Alter, Repeats, altered

#: A run takes about 15 s on two cores.
REPEATS = Repeats(repeated=2, fresh_engine=0, perturbed=4, other_seeds=2)


@dataclass(frozen=True)
class RecordableTrl:
    """TRL's step with its engine in the same process; each run has an engine of its own.

    Attributes:
        kept: Runs that tests made, by ``trl_step.kept_as``.
        tolerance: Largest disagreement of engine and trainer in a sound run, in nats.
    """

    step: TrlStep
    kept: dict[str, TrlRun]
    tolerance: float
    steps: int = 10
    repeats: Repeats = REPEATS
    name: str = NAME
    variants: Sequence[str] = ("colocate",)

    @property
    def key(self) -> Key:
        """What the engine ran on."""
        return self.kept[kept_as(self.variants[0], self.steps)].key

    @property
    def settings(self) -> Mapping[str, Any]:
        """What is not the step's own."""
        return {"model": self.step.model.variant, "steps": self.steps}

    def run(self, variant: str, *, seed: int = 0, alter: Alter | None = None, sound: bool = False) -> Run:
        """As RecordableStep says."""
        aside = replace(self.step, note=lambda key, run: None, kept={})
        name = kept_as(variant, self.steps)
        if alter or seed:
            with altered(aside.model, alter) as model:
                run = replace(aside, model=model).run(self.steps, variant, seed=seed)
        else:
            run = self.kept.get(name) or aside.run(self.steps, variant)
            self.kept[name] = run
        if sound:
            check(run.records, self.steps, self.tolerance, compared="mean" if not run.stand_ins else "max")
        return run.measured

    @contextmanager
    def fresh(self) -> Iterator[RecordableTrl]:
        """As RecordableStep says."""
        yield self
