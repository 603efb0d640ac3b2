"""verl's step as a golden needs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pytest_rlregress.fixtures import tiny_qwen, verl_record
from pytest_rlregress.fixtures.step_key import Key
from pytest_rlregress.fixtures.step_measurements import Run
from pytest_rlregress.fixtures.verl_step import VerlTrainer, key_of_trainer
from pytest_rlregress.goldens.recordable import Alter, Repeats, altered

#: A run takes a minute and more.
REPEATS = Repeats(repeated=1, fresh_engine=0, perturbed=2, other_seeds=1)


@dataclass(frozen=True)
class RecordableVerl:
    """verl's legacy trainer; each run is a process with an engine and a Ray of its own."""

    trainer: VerlTrainer
    steps: int = 2
    repeats: Repeats = REPEATS
    name: str = verl_record.NAME
    variants: Sequence[str] = ("legacy",)

    @property
    def key(self) -> Key:
        """What it runs on."""
        return key_of_trainer(self.trainer)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The sizes of a step, and what is not the trainer's own."""
        step = self.trainer.settings
        sizes = {name: getattr(step, name) for name in ("prompts", "samples_per_prompt", "response_length")}
        return {"steps": self.steps, **sizes, "learning_rate": step.learning_rate, "seed": step.seed}

    def run(self, variant: str, *, seed: int = 0, alter: Alter | None = None, sound: bool = False) -> Run:
        """As RecordableStep says."""
        step = replace(self.trainer.settings, seed=self.trainer.settings.seed + seed)
        trainer = replace(self.trainer, settings=step, ran=lambda variant, run: None)
        with altered(tiny_qwen.build(), alter) as model:
            given = {"actor_rollout_ref.model.path": model.directory} if alter else {}
            run = trainer.run(self.steps, variant, settings=given)  # type: ignore[arg-type]
        if sound:
            completions = step.prompts * step.samples_per_prompt
            verl_record.check(run, self.steps, completions, step.logprob_tolerance)
        return run.measurements(variant, trainer.stand_ins)

    @contextmanager
    def fresh(self) -> Iterator[RecordableVerl]:
        """As RecordableStep says."""
        yield self
