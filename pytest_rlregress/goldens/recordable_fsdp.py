"""The step on several processes as a golden needs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from pytest_rlregress.fixtures import fsdp_record
from pytest_rlregress.fixtures.fsdp_step import FsdpStep, key_of_engine
from pytest_rlregress.fixtures.step_key import Key
from pytest_rlregress.fixtures.step_measurements import Run
from pytest_rlregress.goldens.recordable import Alter, Repeats, altered

REPEATS = Repeats(repeated=2, fresh_engine=0, perturbed=4, other_seeds=2)
#: By what the variants differ from the step's own settings, as its own tests run it.
VARIANTS: Mapping[str, Mapping[str, Any]] = {"all-parameters": {}, "lora": {"lora_rank": 8, "packed": False}}


@dataclass(frozen=True)
class RecordableFsdp:
    """The step on two processes, with all parameters and with adapters; each run has new processes."""

    step: FsdpStep
    steps: int = 2
    repeats: Repeats = REPEATS
    name: str = fsdp_record.NAME
    variants: Sequence[str] = tuple(VARIANTS)

    @property
    def key(self) -> Key:
        """What the engine runs on."""
        return key_of_engine(self.step.engine)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The step's, without those that variants differ in."""
        settings = {name: value for name, value in asdict(self.step.settings).items() if name != "seconds"}
        return {
            **{name: value for name, value in settings.items() if name not in VARIANTS["lora"]},
            "steps": self.steps,
        }

    def run(self, variant: str, *, seed: int = 0, alter: Alter | None = None, sound: bool = False) -> Run:
        """As RecordableStep says."""
        own = self.step.settings
        settings = replace(own, step=replace(own.step, seed=own.step.seed + seed), **VARIANTS[variant])
        records = None if alter else self.step.kept.get((settings, self.steps))
        if records is None:
            with altered(self.step.tiny_qwen, alter) as model:
                aside = replace(self.step, settings=settings, tiny_qwen=model, ran=lambda settings, records: None)
                records = replace(aside, kept={} if alter else self.step.kept).run(self.steps)
        for record in records if sound else ():
            fsdp_record.check(record, settings)
        return {**fsdp_record.run_of(settings, records), "variant": variant}

    @contextmanager
    def fresh(self) -> Iterator[RecordableFsdp]:
        """As RecordableStep says."""
        yield self
