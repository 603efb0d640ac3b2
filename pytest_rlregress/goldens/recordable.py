"""Training steps as a golden needs them: what they ran on, and how to run one again, also from other weights."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from pytest_rlregress.fixtures.step_key import Key
from pytest_rlregress.fixtures.step_measurements import MINIATURE, Run

if TYPE_CHECKING:
    from pytest_rlregress.fixtures.ray_cluster import Cluster
    from pytest_rlregress.fixtures.tiny_qwen import TinyQwen
    from pytest_rlregress.fixtures.training_step import TrainingStep

#: Changes a fresh model in place.
Alter: TypeAlias = Callable[[Any], None]


@dataclass(frozen=True)
class Repeats:
    """How many more runs of each variant a golden is measured from.

    Attributes:
        repeated: The same again.
        fresh_engine: The same with a new engine.
        perturbed: From weights that differ in the last bit.
        other_seeds: With other tokens from the start.
    """

    repeated: int = 2
    fresh_engine: int = 1
    perturbed: int = 6
    other_seeds: int = 3


class RecordableStep(Protocol):
    """A training step whose numbers are recorded and compared.

    Attributes:
        name: Such as "trl-step".
        variants: Each is recorded.
        repeats: How many runs make a golden: fewer where a run takes long.
    """

    name: str
    variants: Sequence[str]
    repeats: Repeats

    @property
    def key(self) -> Key:
        """What it runs on; asked for once it has run."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """What it was given, as JSON values, without variant."""

    def run(self, variant: str, *, seed: int = 0, alter: Alter | None = None, sound: bool = False) -> Run:
        """Run it; where nothing is asked for but the variant, what an earlier test measured may be returned.

        Args:
            variant: One of ``variants``.
            seed: Added to the step's own.
            alter: Called with the fresh model.
            sound: Whether to check it too.

        Raises:
            AssertionError: It is not right: it is not to be recorded.
        """

    def fresh(self) -> AbstractContextManager[RecordableStep]:
        """Start the same step with a new engine."""


@dataclass(frozen=True)
class RecordableMiniature:
    """The miniature step at both levels, and with random prompts."""

    step: TrainingStep
    cluster: Cluster
    say: Callable[[str], None]
    steps: int = 6
    repeats: Repeats = Repeats()
    name: str = MINIATURE
    variants: Sequence[str] = ("token", "sequence", "token, random")

    @property
    def key(self) -> Key:
        """What the engine runs on."""
        return self.step.key

    @property
    def settings(self) -> dict[str, Any]:
        """The step's, without those that variants differ in."""
        settings = asdict(self.step.settings)
        return {name: value for name, value in settings.items() if name not in ("level", "prompt_kind")}

    def run(self, variant: str, *, seed: int = 0, alter: Alter | None = None, sound: bool = False) -> Run:
        """As RecordableStep says."""
        from pytest_rlregress.fixtures.step_record import check

        found: list[Run] = []
        level, _, prompts = variant.partition(", ")
        changes: dict[str, Any] = {"level": level, "prompt_kind": prompts or "text"}
        settings = replace(self.step.settings, **changes, seed=self.step.settings.seed + seed)
        step = replace(self.step, settings=settings, note=lambda key, run: found.append(run))
        records = step.run(self.steps, alter or (lambda _: None))
        if sound:
            check(records, self.steps, settings.logprob_tolerance)
        return found[0]

    @contextmanager
    def fresh(self) -> Iterator[RecordableMiniature]:
        """As RecordableStep says: in a new process."""
        from pytest_rlregress.fixtures.training_step import start

        with start(self.step.tiny_qwen, self.cluster, self.step.settings, self.say) as step:
            yield replace(self, step=step)


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
