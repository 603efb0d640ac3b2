"""Rule of preflight about batches that can't be cut evenly: into mini batches, over cards, into micro batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pytest_rlregress.commands.preflight.config import PlannedRun, Unchecked, not_known
from pytest_rlregress.commands.preflight.parallel import spread_evenly
from pytest_rlregress.remedies.advice import Advice
from pytest_rlregress.util.text import plural

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_TRAIN = "data.train_batch_size"
_MICRO = "ppo_micro_batch_size_per_gpu"
#: TRL's methods that sample groups, and what transformers and TRL have for each key that isn't given.
_OF_GROUPS = {"grpo": 8, "rloo": 2}
_PER_DEVICE, _STEPS = "per_device_train_batch_size", "gradient_accumulation_steps"


@dataclass(frozen=True)
class VerlSizes:
    """How verl cuts the samples of a step: it pads a step to whole mini batches, and cuts those evenly.

    Attributes:
        train: Prompts of a step; 0 if they aren't known.
        mini: Prompts of an update.
        n: Samples of a prompt.
        cards: All of the trainer.
        shared: Cards that hold one sample between them.
        micro: Samples of one card at a time; None if they are counted in tokens.
        megatron: Whether Megatron trains, by whose micro batches verl counts a step.
    """

    train: int
    mini: int
    n: int
    cards: int
    shared: int
    micro: int | None
    megatron: bool = False

    @property
    def rows(self) -> int:
        """Samples of a mini batch that one card has."""
        return self.mini * self.n * self.shared // self.cards

    @property
    def least(self) -> int:
        """Of what a step's samples are a multiple, as verl asserts where micro batches are counted in samples."""
        return (self.micro or 1) * self.cards // self.shared if self.megatron else self.cards

    @property
    def cuts_mini(self) -> bool:
        """Whether each card has the same number of a mini batch's samples."""
        return self.cards % self.shared == 0 and self.mini * self.n % (self.cards // self.shared) == 0

    @property
    def cuts_micro(self) -> bool:
        """Whether those are a whole number of micro batches."""
        return self.micro is None or self.rows % self.micro == 0

    def is_far(self, other: VerlSizes) -> bool:
        """Whether a mini batch is less than half or more than twice another."""
        return not other.mini <= 2 * self.mini <= 4 * other.mini

    @property
    def is_even(self) -> bool:
        """Whether verl takes these numbers."""
        return self.cuts_mini and self.cuts_micro


def batch_sizes(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    """Batches that the trainer refuses, because they can't be cut evenly."""
    if run.trl:
        yield from _of_trl(run)
        yield from spread_evenly(run)
    elif run.trainer == "prime-rl":
        yield from spread_evenly(run)
    elif "actor_rollout_ref" in run.tree:
        yield from spread_evenly(run)
        yield from _of_verl(run, _ACTOR)
        if has_critic(run):
            yield from _of_verl(run, "critic")


def has_critic(run: PlannedRun) -> bool:
    """Return whether verl trains a critic."""
    enabled = run.get("critic.enable")
    if enabled is None:
        return "critic" in run.tree and run.get("algorithm.adv_estimator", "gae") == "gae"
    return bool(enabled)


def verl_sizes(run: PlannedRun, table: str = _ACTOR) -> VerlSizes | Unchecked:
    """Return how the updates of ``actor_rollout_ref.actor`` or ``critic`` are cut, or which numbers are lacking."""
    defaults = {
        _TRAIN: 1024,
        f"{_ACTOR}.ppo_mini_batch_size": 256,
        f"{_ROLLOUT}.n": 1,
        "trainer.n_gpus_per_node": 8,
        "trainer.nnodes": 1,
    }
    train, mini, n, cards, nodes = (run.number(key, default) for key, default in defaults.items())
    if table != _ACTOR:
        mini = run.number(f"{table}.ppo_mini_batch_size", mini)
    shared = run.number(f"{table}.ulysses_sequence_parallel_size", 1) or 1
    for parallel in ("tensor_model", "pipeline_model", "context"):
        shared *= run.number(f"{table}.megatron.{parallel}_parallel_size", 1) or 1
    micro = None if run.get(f"{table}.use_dynamic_bsz") else run.number(f"{table}.{_MICRO}")
    if run.hides(f"{table}.{_MICRO}") or not (mini and n and cards and nodes) or cards * nodes < 1:
        lacking = tuple(key for key, default in defaults.items() if run.number(key, default) is None)
        lacking += (f"{table}.{_MICRO}",) if run.hides(f"{table}.{_MICRO}") else ()
        return Unchecked(f"{' and '.join(lacking) or 'a batch size'}: not known here", lacking)
    return VerlSizes(
        train=int(train or 0),
        mini=_whole(mini),
        n=_whole(n),
        cards=_whole(cards * nodes),
        shared=_whole(shared),
        micro=_whole(micro) if micro else None,
        megatron=run.get(f"{table}.strategy") == "megatron",
    )


def cuts_evenly(run: PlannedRun, cards: int) -> bool:
    """Return whether the trainer can cut its batches for so many cards, as far as their sizes are known."""
    sizes = verl_sizes(run) if run.verl else None
    return not isinstance(sizes, VerlSizes) or replace(sizes, cards=cards).is_even


def largest_micro_batch(run: PlannedRun, most: int) -> int:
    """Return the largest micro batch of at most so many samples that the trainer can cut its batches into."""
    if run.verl:
        sizes = verl_sizes(run)
        if isinstance(sizes, Unchecked) or not sizes.cuts_mini:
            return most
        return _largest(most, lambda micro: sizes.rows % micro == 0)
    generations, batch = run.number("num_generations"), _batch_of(run)
    if not generations or batch is None:
        return most
    at_once = batch * int(run.number("accelerate.num_processes") or 1)
    return _largest(most, lambda micro: micro * at_once % int(generations) == 0, most)


def _of_verl(run: PlannedRun, table: str) -> Iterator[Advice | Unchecked]:
    sizes = verl_sizes(run, table)
    mini_key, micro_key = f"{table}.ppo_mini_batch_size", f"{table}.{_MICRO}"
    if isinstance(sizes, Unchecked):
        yield sizes
        return
    if sizes.cards % sizes.shared:
        yield Unchecked(f"{sizes.cards} GPUs can't be cut into {sizes.shared} for each sample")
        return
    ranks = plural(sizes.cards // sizes.shared, "GPU")
    # Where tokens are counted, a step is padded to whole mini batches, whatever it has.
    checks_train = table == _ACTOR and sizes.train > 0 and not run.get(f"{table}.use_dynamic_bsz")
    too_large = checks_train and sizes.train < sizes.mini
    made = make_even(sizes, too_large=too_large, checks_train=checks_train)
    proposed = {_TRAIN: made.train, mini_key: made.mini, micro_key: made.micro}
    given = {_TRAIN: sizes.train, mini_key: sizes.mini, micro_key: sizes.micro}
    changed = {key: value for key, value in proposed.items() if value is not None and value != given[key]}
    cut: dict[str, str] = {}
    if checks_train and run.is_release("verl", ">=0.9"):  # before, log-probabilities were cut anyhow
        rows = -(-made.train // made.mini) * made.rows
        for log_prob_key in _log_prob_keys(run):
            micro = int(run.number(log_prob_key) or 1)
            if rows % micro:
                why = f"each GPU has {rows} samples of a step, which verl can't cut into micro batches of {micro}"
                cut[log_prob_key] = why
                changed[log_prob_key] = _largest(micro, lambda one: rows % one == 0)
    lines = [run.write(key, value) for key, value in changed.items()]
    if too_large or not sizes.cuts_mini:
        why = f"a mini batch of {sizes.mini} prompts with n = {sizes.n} is {sizes.mini * sizes.n} samples, which verl "
        why += f"can't spread over {ranks}"
        if too_large:
            why = f"a mini batch of {sizes.mini} prompts is larger than a step's, data.train_batch_size = {sizes.train}"
        if _TRAIN in changed:
            why += f". {sizes.train} prompts can't be spread over them either: the step changes too"
        yield Advice(mini_key if mini_key in changed else _TRAIN, why, "\n".join(lines))
    elif not sizes.cuts_micro:
        why = f"each GPU has {sizes.rows} samples of a mini batch ({sizes.mini} prompts, n = {sizes.n}, {ranks}), "
        why += f"which verl can't cut into micro batches of {sizes.micro}"
        yield Advice(micro_key, why, "\n".join(lines))
    elif checks_train and sizes.train * sizes.n % sizes.least:
        least = f"{sizes.least}, which is " + ("a micro batch of each GPU" if sizes.megatron else "one a GPU")
        why = f"a step's {sizes.train * sizes.n} samples aren't a multiple of {least}, as verl asserts"
        yield Advice(_TRAIN, why, "\n".join(lines))
    else:
        for (key, why), line in zip(cut.items(), lines, strict=True):
            yield Advice(key, why, line)


def make_even(sizes: VerlSizes, *, too_large: bool, checks_train: bool) -> VerlSizes:
    """Return the nearest sizes that verl takes. Where the mini batch changes, a step becomes whole mini batches."""
    if too_large or not sizes.cuts_mini:
        ranks = sizes.cards // sizes.shared
        unit = ranks // math.gcd(sizes.n, ranks)
        train = _round_up(sizes.train, sizes) or max(sizes.mini // unit, 1) * unit
        fitting = [replace(sizes, mini=mini) for mini in range(unit, train + 1, unit) if train % mini == 0]
        nearest = min(fitting, key=lambda one: (one.is_far(sizes), not one.cuts_micro, abs(one.mini - sizes.mini)))
        sizes = replace(nearest, train=train if sizes.train else 0)
    if not sizes.cuts_micro:
        sizes = replace(sizes, micro=_largest(sizes.micro or 1, lambda micro: sizes.rows % micro == 0))
    return replace(sizes, train=_round_up(sizes.train, sizes)) if checks_train else sizes


def _round_up(train: int, sizes: VerlSizes) -> int:
    """Return the number of prompts, this or more, whose samples verl can spread."""
    multiple = sizes.least // math.gcd(sizes.n, sizes.least)
    return -(-train // multiple) * multiple


def _log_prob_keys(run: PlannedRun) -> list[str]:
    """Return the micro batches of the models whose log-probabilities are computed again."""
    with_reference = run.get(f"{_ACTOR}.use_kl_loss") or run.get("algorithm.use_kl_in_reward")
    bypassed = run.get("algorithm.rollout_correction.bypass_mode")
    used = {_ROLLOUT: not bypassed, "actor_rollout_ref.ref": with_reference}
    return [f"{table}.log_prob_micro_batch_size_per_gpu" for table, is_used in used.items() if is_used]


def _of_trl(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    default = _OF_GROUPS.get(run.program.removeprefix("trl "))
    generations = int(run.number("num_generations", default) or 0)
    processes = run.number("accelerate.num_processes")
    batch = _batch_of(run)
    if not generations or batch is None:
        if lacking := [key for key in ("num_generations", _PER_DEVICE, _STEPS) if run.hides(key)]:
            yield not_known(*lacking)
        return
    per_device = int(run.number(_PER_DEVICE, 8) or 1)
    whole = run.number("generation_batch_size")
    if default and generations == 1:
        why = "a group of one has no advantage: TRL asks for 2 generations of a prompt or more"
        yield Advice("num_generations", why, run.write("num_generations", 2))
        return
    if whole and run.number("steps_per_generation"):
        why = "TRL takes generation_batch_size or steps_per_generation, not both"
        yield Advice("generation_batch_size", why, "# leave generation_batch_size out")
        return
    together = per_device * int(processes or 1)
    if whole and processes and whole % together:
        why = f"generation_batch_size = {whole:g} isn't a multiple of {_PER_DEVICE} times the processes, {together}"
        fitting = math.lcm(together, generations)
        yield Advice("generation_batch_size", why, run.write("generation_batch_size", fitting))
        return
    samples = int(whole) if whole else together * batch
    if samples % generations == 0:
        return
    if not processes and not whole:
        why = f"whether {samples} samples a process are whole groups of num_generations = {generations} depends on how "
        yield Unchecked(f"{why}many processes there are", ("accelerate.num_processes",))
        return
    why = f"TRL samples {samples} completions at once, which aren't whole groups of num_generations = {generations}"
    if whole:
        key, value = "generation_batch_size", math.lcm(together, generations)
    else:
        key = "steps_per_generation" if run.number("steps_per_generation") else _STEPS
        least = generations // math.gcd(together, generations)
        value = -(-batch // least) * least
    yield Advice(key, why, run.write(key, value))


def _batch_of(run: PlannedRun) -> int | None:
    """Return how many of its batches each of TRL's processes samples completions for at once."""
    steps = run.number("steps_per_generation") or run.number(_STEPS, 1)
    return int(steps) if steps and run.number(_PER_DEVICE, 8) else None


def _largest(most: int, fits: Callable[[int], bool], otherwise: int = 1) -> int:
    return next((one for one in range(most, 0, -1) if fits(one)), otherwise)


def _whole(number: float) -> int:
    return max(int(number), 1)
