"""Read what the processes of a rehearsed run of verl's wrote down into a ``RehearsalRecord`` for each step."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pytest_rlregress.agreement.engine_weights import stale_weights
from pytest_rlregress.commands.rehearse import events, properties
from pytest_rlregress.commands.rehearse.record import RehearsalRecord, make_advantages
from pytest_rlregress.fixtures.step_record import Ids
from pytest_rlregress.fixtures.step_settings import Surrogate
from pytest_rlregress.fixtures.verl_reader import EPSILON, join, recompute
from pytest_rlregress.fixtures.verl_record import TrainedRow, read_rows
from pytest_rlregress.fixtures.verl_settings import ACTOR, ROLLOUT

Get = Callable[[str], Any]
AVERAGES = {"token-mean": "tokens", "seq-mean-token-mean": "rows"}
#: In nats a token, as verl-step's (``fixtures.step_settings``): the floor isn't measured in a run of verl's.
TOLERANCE = 1e-5
#: What a rehearsal of TRL's looks at in the trainer's process.
NOT_LOOKED_AT = {
    "rewards used": "verl calls the function in a process that isn't watched",
    "second pass": "no second pass is made in verl's trainer; the loss would show a dropout",
    "cached prompts": "verl's engine isn't asked for a prompt of its own",
    "micro batches": "no second pass is made in verl's trainer; the gradient's norm would show it",
    "masked tokens": "no second pass is made in verl's trainer; the gradient's norm would show it",
    "direction": "verl's gradients aren't kept; their norm is compared",
}


class Pair(NamedTuple):
    """A completion as it was sampled, and as it was trained on if it was; with its rewards."""

    sampled: Mapping[str, Any]
    row: TrainedRow | None
    own: float
    used: float


@dataclass(frozen=True)
class RunFiles:
    """The events that the processes of a run wrote, by step, in their order."""

    lines: Sequence[dict[str, Any]]
    completions: Sequence[dict[str, Any]]
    updates: Sequence[Sequence[dict[str, Any]]]
    advantages: Sequence[dict[str, Any]]
    syncs: Sequence[dict[str, Any]]

    @classmethod
    def load(cls, folder: Path, lines: Sequence[dict[str, Any]], completions: Sequence[dict[str, Any]]) -> RunFiles:
        """Load them; steps that the run didn't come to the end of are left out."""

        def load(kind: str) -> list[Any]:
            paths = folder.glob(f"{kind}-*.pt")
            return [torch.load(path) for path in sorted(paths, key=lambda path: int(path.stem.rpartition("-")[2]))]

        batches, count = load("mini-batch"), len(lines)
        each = len(batches) // count if count else 0
        updates = [batches[place * each :][:each] for place in range(count)]
        return cls(lines, completions, updates, load("advantages")[:count], load("sync")[-count:])


class StepReader:
    """Makes the records of a run."""

    def __init__(self, files: RunFiles, get: Get, tokenizer: Any, model: Any, templates: Sequence[Ids]) -> None:
        """Take what was written, the run's configuration, its tokenizer and model, and the ids of its prompts."""
        self.files, self.get, self.tokenizer, self.templates = files, get, tokenizer, templates
        self.model = model.eval()
        ends = model.generation_config.eos_token_id
        self.ending_ids = frozenset(ends if isinstance(ends, list) else [ends]) - {None}
        self.form, self.no_form = find_form(get)
        self.size = get(f"{ROLLOUT}.n")

    def read(self) -> Iterator[RehearsalRecord]:
        """Yield the record of each step."""
        for place in range(len(self.files.lines)):
            yield self.read_step(place)

    def read_step(self, place: int) -> RehearsalRecord:
        """Return the record of a step."""
        files = self.files
        line, updates, sync, given = (
            files.lines[place],
            files.updates[place],
            files.syncs[place],
            files.advantages[place],
        )
        rows = [row for number, update in enumerate(updates) for row in read_rows(update["batch"], number)]
        sampled = [one for one in files.completions if one["version"] == line["step"] - 1]
        groups = list(pair_groups(given, rows, sampled))
        pairs = [pair for group in groups for pair in group]
        used = tuple(tuple(pair.used for pair in group) for group in groups)
        completions = tuple(tuple(pair.sampled["sampled"]) for pair in pairs)
        wanted = self.find_wanted(used)
        unseen = dict(NOT_LOOKED_AT)
        if wanted is None:
            estimator = self.get("algorithm.adv_estimator")
            unseen["advantages"] = f"there is no closed form for verl's {estimator}, or a group has one completion"
        step = self.recompute(pairs, used, wanted, updates, unseen)
        if "not_seen" in sync:
            unseen["sync"] = sync["not_seen"]
        if "ref_log_prob" not in updates[0]["batch"]:
            unseen["reference"] = "there is no reference model: neither a KL loss nor a KL reward"
        elif line["step"] > 1:
            unseen["reference"] = "of the first step"
        else:
            step["reference_difference"] = compare_reference(updates)
        engine = [tuple(pair.sampled["logprobs"] or ()) for pair in pairs]
        old = [pair.row.old_logprobs if pair.row else () for pair in pairs]
        apart = [abs(a - b) for one, other in zip(engine, old, strict=True) for a, b in zip(one, other, strict=False)]
        ids = [tuple(pair.sampled["prompt"]) for pair in pairs]
        return RehearsalRecord(
            number=line["step"],
            seconds=line["data"].get("timing_s/step", 0.0),
            not_seen=unseen,
            measured={name: value for name, value in line["data"].items() if isinstance(value, (int, float))},
            expected_prompts=self.find_expected(ids),
            completions=completions,
            longest=self.get("data.max_response_length"),
            ending_ids=self.ending_ids,
            texts=tuple(self.tokenizer.batch_decode(completions, skip_special_tokens=True)),
            rewards=used,
            own_rewards=tuple(tuple(pair.own for pair in group) for group in groups),
            stubbed=given["stubbed"],
            prompts=tuple(row.prompt for row in rows),
            trained_tokens=tuple(row.ids for row in rows),
            advantages=tuple(row.advantage for row in rows),
            epsilon=EPSILON,
            wanted=None if wanted is None else tuple(wanted),
            group_size=self.size,
            group_rows=tuple(repr(pair.row.prompt if pair.row else None) for pair in pairs),
            engine_prompts=tuple(ids),
            engine_completions=completions,
            gap=statistics.fmean(apart) if apart else None,
            floor=TOLERANCE / properties.FLOORS,
            logprobs=tuple(zip(engine, old, strict=True)),
            lengths=tuple(len(pair.row.ids) if pair.row else 0 for pair in pairs),
            pieces=tuple(tuple(self.tokenizer.decode([one]) for one in row) for row in completions[:3]),
            learning_rate=line["data"].get("actor/lr"),
            stale=None if "sync" in unseen else tuple(stale_weights(sync["weights"], updates[-1]["after"])),
            without_gradient=join(update["without_gradient"] for update in updates),
            unmoved=join(
                [name for name in update["trained"] if update["before"][name].equal(update["after"][name])]
                for update in updates
            ),
            **step,
        )

    def find_wanted(self, used: Sequence[Sequence[float]]) -> list[float] | None:
        """Return the advantages that rewards make by the run's estimator; None where it isn't GRPO's."""
        if self.get("algorithm.adv_estimator") != "grpo" or self.size < 2:
            return None
        scale = "group" if self.get("algorithm.norm_adv_by_std_in_grpo") else "none"
        return make_advantages(used, scale, EPSILON)

    def find_expected(self, ids: Sequence[Ids]) -> tuple[Ids, ...]:
        """Return the ids of each prompt's text; a prompt of none of the rows gets those of a row that no prompt has."""
        strays = itertools.cycle([one for one in self.templates if one not in ids] or [()])
        stray = {one: next(strays) for one in dict.fromkeys(ids) if one not in self.templates}
        return tuple(stray.get(one, one) for one in ids)

    def recompute(
        self,
        pairs: Sequence[Pair],
        used: Sequence[Sequence[float]],
        wanted: Sequence[float] | None,
        updates: Sequence[Mapping[str, Any]],
        unseen: dict[str, str],
    ) -> dict[str, Any]:
        """Return loss, gradient's norm and ratio, verl's and by closed form; name in ``unseen`` what has none."""
        why = self.no_form or unseen.get("advantages", "")
        if why:
            unseen |= dict.fromkeys(("loss", "gradient's norm"), why)
        found, before = recompute(
            self.model,
            self.form,
            self.files.updates[0][0]["before"],
            self.get(f"{ROLLOUT}.temperature"),
            [
                (tuple(pair.sampled["prompt"]), pair.sampled["sampled"], pair.row.update if pair.row else None)
                for pair in pairs
            ],
            wanted or [0.0] * len(pairs),
            used,
            updates,
        )
        if self.get("algorithm.rollout_correction.bypass_mode"):
            unseen["ratio"] = "verl takes the engine's log-probabilities as the old ones (bypass_mode)"
            return found
        apart = [
            abs(float(one) - other)
            for pair, row in zip(pairs, before, strict=True)
            for one, other in zip(row, pair.row.old_logprobs if pair.row else (), strict=False)
        ]
        return {**found, "ratio_difference": max(apart, default=None)}


def pair_groups(
    given: Mapping[str, Any], rows: Sequence[TrainedRow], sampled: Sequence[Mapping[str, Any]]
) -> Iterator[list[Pair]]:
    """Yield the completions of each of the trainer's groups, as sampled and as trained on.

    A trained row is found by its log-probabilities, of which no two rows have the same; what was sampled by its prompt.
    """
    by_logprobs: dict[tuple[float, ...], list[TrainedRow]] = {}
    for row in rows:
        by_logprobs.setdefault(row.old_logprobs, []).append(row)
    by_prompt: dict[Ids, list[Mapping[str, Any]]] = {}
    for one in sampled:
        by_prompt.setdefault(tuple(one["prompt"]), []).append(one)
    members: list[list[tuple[TrainedRow | None, int]]] = []
    for group in given["groups"]:
        same = [by_logprobs.get(tuple(given["old_logprobs"][place]), []) for place in group]
        members.append([(rows.pop() if rows else None, place) for rows, place in zip(same, group, strict=True)])
    prompts = {row.prompt for group in members for row, _ in group if row}
    strays = iter([ones for prompt, ones in by_prompt.items() if prompt not in prompts])
    for group in members:
        own = next((by_prompt[row.prompt] for row, _ in group if row and row.prompt in by_prompt), None)
        yield list(_pair(group, next(strays, []) if own is None else own, given))


def _pair(
    group: Sequence[tuple[TrainedRow | None, int]], sampled: Sequence[Mapping[str, Any]], given: Mapping[str, Any]
) -> Iterator[Pair]:
    ones = sorted(sampled, key=lambda one: one["sampled"])
    members = sorted(group, key=lambda one: one[0].ids if one[0] else ())
    for (row, place), one in zip(members, ones, strict=False):
        yield Pair(one, row, given["own"][place], given["used"][place])


def compare_reference(updates: Sequence[Mapping[str, Any]]) -> float:
    """Return how far the reference model's log-probabilities are from the old ones, at most."""
    apart = [0.0]
    for update in updates:
        batch = update["batch"]
        for row, mask in enumerate(batch["response_mask"]):
            kept = mask.bool()
            apart.append(float((batch["ref_log_prob"][row][kept] - batch["old_log_probs"][row][kept]).abs().max()))
    return max(apart)


def find_form(get: Get) -> tuple[Surrogate, str]:
    """Return the loss that a configuration makes, and why there is no closed form for it; "" if there is."""
    mode, average = get(f"{ACTOR}.policy_loss.loss_mode"), get(f"{ACTOR}.loss_agg_mode")
    others = {
        f"loss_mode {mode!r}": mode != "vanilla",
        f"loss_agg_mode {average!r}": average not in AVERAGES,
        "entropy_coeff": get(f"{ACTOR}.entropy_coeff"),
        "rollout_correction": any(get(f"algorithm.rollout_correction.{name}") for name in ("rollout_is", "rollout_rs")),
        "ppo_epochs": (get(f"{ACTOR}.ppo_epochs") or 1) > 1,
        "kl_loss_type": get(f"{ACTOR}.use_kl_loss") and get(f"{ACTOR}.kl_loss_type") != "low_var_kl",
    }
    named = ", ".join(name for name, on in others.items() if on)
    form = Surrogate(
        AVERAGES.get(average, "tokens"),  # type: ignore[arg-type]
        clip_low=get(f"{ACTOR}.clip_ratio_low"),
        clip_high=get(f"{ACTOR}.clip_ratio_high"),
        beta=get(f"{ACTOR}.kl_loss_coef") if get(f"{ACTOR}.use_kl_loss") else 0.0,
    )
    return form, f"there is no closed form for verl's {named}" if named else ""


def check_checkpoint(folder: Path, files: RunFiles) -> None:
    """Write whether the last checkpoint has the weights that the last step ended with."""
    found = max(folder.glob("global_step_*"), key=lambda one: int(one.name.rpartition("_")[2]), default=None)
    weights = next(found.glob("actor/model_world_size_1_rank_0.pt"), None) if found else None
    if found is None or weights is None:
        events.write("saved", what="checkpoint", folder=None, why="no checkpoint was written")
        return
    saved = {
        name: one.to_local() if hasattr(one, "to_local") else one
        for name, one in torch.load(weights, weights_only=False).items()
    }
    own = files.updates[-1][-1]["after"]
    names = [name for name in own if name in saved]
    differ = [name for name in names if not torch.equal(saved[name], own[name].to(saved[name].dtype))]
    missing = [name for name in own if name not in saved]
    events.write("saved", what="checkpoint", folder=found.name, compared=len(names), differ=differ, missing=missing)
