"""Record each step of a user's real run from what passes by: no pass of the model, no copy of it, no gradient is read.

Every method that looks at something is ``counted``: its error is written down instead of raised, and its time is
measured against the step's.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from transformers import TrainerCallback

from pytest_rlregress.commands.rehearse import as_is_parts as parts
from pytest_rlregress.commands.rehearse import as_is_unseen, events
from pytest_rlregress.commands.rehearse.guard import guarded, note
from pytest_rlregress.commands.rehearse.record import RehearsalRecord, make_advantages, to_plain
from pytest_rlregress.commands.rehearse.show import TOKENS
from pytest_rlregress.fixtures.training_step import kept_tokens
from pytest_rlregress.fixtures.trl_record import EPSILON, encode_prompt

R = TypeVar("R")


def counted(method: Callable[..., R]) -> Callable[..., R | None]:
    """Wrap a method of the recorder as ``guarded`` does, and add up the seconds that it takes."""
    guard = guarded(method)

    @functools.wraps(method)
    def count(self: Any, *arguments: Any, **named: Any) -> R | None:
        begun = time.perf_counter()
        try:
            return guard(self, *arguments, **named)
        finally:
            self.spent += time.perf_counter() - begun

    return count


class AsIsRecorder(TrainerCallback):  # type: ignore[misc]
    """Observes a trainer from outside; each record is written as soon as its step is complete."""

    def __init__(self, trainer: Any) -> None:
        """``observe`` does the rest."""
        self.trainer = trainer
        self.tokenizer = getattr(trainer, "_tokenizer", trainer.processing_class)
        self.broken: list[str] = []
        self.spent = self.seconds = self.finished_at = 0.0
        self.logprobs: torch.Tensor | None = None  # of the last pass
        self.rollout: dict[str, Any] = {}  # what was sampled; kept while the trainer trains on it
        self.step: dict[str, Any] = {}

    def observe(self) -> None:
        """Wrap the trainer's methods; each gets and returns what it does without."""
        self._wrap("_generate_and_score_completions", self.begin_rollout, self.end_rollout)
        self._wrap("_get_per_token_logps_and_entropies", None, self.note_logprobs)
        self._wrap("compute_loss", self.begin_loss, self.end_loss)
        self._wrap("_maybe_log_save_evaluate", self.finish_step, None)
        self._watch_rewards()
        self.trainer.add_callback(self)

    def _wrap(self, name: str, before: Callable[..., Any] | None, after: Callable[..., Any] | None) -> None:
        trainer, method = self.trainer, getattr(self.trainer, name, None)
        if method is None:
            note(name, AttributeError(f"this release's {type(trainer).__name__} has no {name}"))
            return

        @functools.wraps(method)
        def observed(*arguments: Any, **named: Any) -> Any:
            if before:
                before(arguments, named)
            found = method(*arguments, **named)
            if after:
                after(found, arguments, named)
            return found

        setattr(trainer, name, observed)

    def _watch_rewards(self) -> None:
        """Have the reward functions watched while the trainer calls them, and only then."""
        trainer, calculate = self.trainer, self.trainer._calculate_rewards

        @functools.wraps(calculate)
        def observed(*arguments: Any, **named: Any) -> Any:
            functions = trainer.reward_funcs
            trainer.reward_funcs = self.watch_functions(functions) or functions
            try:
                found = calculate(*arguments, **named)
            finally:
                trainer.reward_funcs = functions
            self.note_rewards(found, arguments, named)
            return found

        trainer._calculate_rewards = observed

    @counted
    def watch_functions(self, functions: list[Any]) -> list[Any]:
        """Return the reward functions, each with what it gives kept."""
        given = self.rollout["given"] = {}
        return [parts.keep_rewards(one, number, given) for number, one in enumerate(functions)]

    @counted
    def begin_rollout(self, arguments: Any, named: Any) -> None:
        """Note which rows are sampled from."""
        if not self.trainer.model.training:  # evaluation
            return
        rows = arguments[0] if arguments else named["inputs"]
        self.rollout = {"group_rows": tuple(map(parts.digest_row, rows)), "rows": len(rows)}
        if not as_is_unseen.find_why_no_prompts(self.trainer, rows):
            self.rollout["texts_of_prompts"] = [row["prompt"] for row in rows]

    @counted
    def note_rewards(self, found: torch.Tensor, arguments: Any, named: Any) -> None:
        """Note what was sampled, what the functions gave, and the rewards that the trainer goes on with."""
        if not self.trainer.model.training:
            return
        trainer, rollout = self.trainer, self.rollout
        ids = parts.bind(trainer, "_calculate_rewards", arguments, named)["completion_ids_list"]
        rollout["completions"] = tuple(tuple(map(int, one)) for one in ids)
        used = found.detach().float().cpu()  # of all processes
        start = trainer.accelerator.process_index * len(ids)
        own = slice(start, start + len(ids))
        compared = parts.compare_given(rollout.pop("given", {}), used[own])
        rollout.pop("reward_difference", None)
        size = trainer.num_generations
        sums = parts.add_rewards(used, trainer.reward_weights.cpu())
        groups = tuple(tuple(sums[at : at + size]) for at in range(0, len(sums), size))
        rollout["own_rewards"] = groups
        local = sums[own]
        rollout["rewards"] = tuple(tuple(local[at : at + size]) for at in range(0, len(local), size))
        rollout |= compared
        scale = str(trainer.scale_rewards)
        if scale in ("group", "batch", "none"):
            rollout["wanted"] = tuple(make_advantages(groups, scale, EPSILON)[own])

    @counted
    def end_rollout(self, batch: Any, arguments: Any, named: Any) -> None:
        """Note how many tokens of each completion are trained on, and the ids of the prompts' texts."""
        if not self.trainer.model.training:
            return
        mask = (batch["completion_mask"] * batch.get("tool_mask", 1)).sum(1)
        self.rollout |= {"lengths": tuple(mask.tolist()), "number": self.trainer.state.global_step + 1}
        self.rollout |= {"trained_tokens": [], "prompts": [], "advantages": []}
        prompts = {repr(prompt): prompt for prompt in self.rollout.get("texts_of_prompts", ())}
        options = getattr(self.trainer, "chat_template_kwargs", None) or {}
        ids = {text: encode_prompt(self.tokenizer, prompt, options) for text, prompt in prompts.items()}
        if ids:
            self.rollout["expected_prompts"] = tuple(ids[repr(one)] for one in self.rollout.pop("texts_of_prompts"))

    @counted
    def note_logprobs(self, found: Any, arguments: Any, named: Any) -> None:
        """Keep the last pass' log-probabilities."""
        self.logprobs = found[0].detach()

    @counted
    def begin_loss(self, arguments: Any, named: Any) -> None:
        """Forget the pass before."""
        self.logprobs = None

    @counted
    def end_loss(self, loss: torch.Tensor, arguments: Any, named: Any) -> None:
        """Note what the loss was given, and how its log-probabilities differ from others of the same tokens."""
        if not self.trainer.model.training or "losses" not in self.step:
            return
        inputs = arguments[1] if len(arguments) > 1 else named["inputs"]
        self.step["losses"].append(loss.detach())
        self.step["inputs"].append(inputs)
        now, self.logprobs = self.logprobs, None
        if now is not None and self.trainer.state.global_step + 1 == self.rollout.get("number"):
            self.step["apart"].append(parts.compare_logprobs(now, inputs))

    @counted
    def on_step_begin(self, *arguments: Any, **_: Any) -> None:
        """Keep a few rows of a few weights."""
        self.step = {"losses": [], "inputs": [], "apart": [], "begun": time.perf_counter(), "spent": self.spent}
        self.step["rows"] = parts.read_rows(self.trainer.model)

    @counted
    def on_pre_optimizer_step(self, *arguments: Any, **_: Any) -> None:
        """Note the learning rate of this update."""
        self.step["learning_rate"] = max(float(group["lr"]) for group in self.trainer.optimizer.param_groups)

    def on_step_end(self, *arguments: Any, **named: Any) -> None:
        """Note what the step did, once it is done."""
        self.wait()
        self.end_step()

    @guarded
    def wait(self) -> None:
        """Wait for what is still queued, which is the step's."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    @counted
    def end_step(self) -> None:
        """Note what was trained on, and which weights moved."""
        step, rollout = self.step, self.rollout
        step["seconds"] = time.perf_counter() - step["begun"] - (self.spent - step["spent"])
        self.seconds += step["seconds"]
        before, after = step.pop("rows"), parts.read_rows(self.trainer.model)
        moved = [name for name, row in after.items() if not torch.equal(row, before[name])]
        step |= {"moved": moved, "looked_at": [*after]}
        step["loss"] = float(sum(loss.float().sum() for loss in step["losses"]))
        for inputs in step.pop("inputs"):
            if len(rollout["trained_tokens"]) < rollout["rows"]:  # else it is trained on again
                ids, mask = inputs["completion_ids"].cpu(), inputs["completion_mask"].cpu()
                rollout["trained_tokens"] += kept_tokens(ids, mask)
                rollout["prompts"] += kept_tokens(inputs["prompt_ids"].cpu(), inputs["prompt_mask"].cpu())
                rollout["advantages"] += inputs["advantages"].tolist()
                step["completes"] = len(rollout["trained_tokens"]) >= rollout["rows"]
        step |= parts.add_up(step.pop("apart"), parts.is_exact(self.trainer))

    @counted
    def finish_step(self, arguments: Any, named: Any) -> None:
        """Write the record of the step that ended; the gradient's norm is among what the trainer logs of it."""
        if "seconds" not in self.step:
            return
        norm = parts.bind(self.trainer, "_maybe_log_save_evaluate", arguments, named).get("grad_norm")
        if norm is not None and not hasattr(norm, "full_tensor"):  # to read that one all processes are needed
            self.step["grad_norm"] = float(norm)
        self.write_record()

    def write_record(self) -> None:
        """Write the record, with the reason for each check that this step doesn't allow."""
        step, rollout, trainer = self.step, self.rollout, self.trainer
        unseen = as_is_unseen.find(trainer, rollout, step, bool(self.broken))
        sampled = ("expected_prompts", "completions", "rewards", "own_rewards", "wanted", "lengths", "group_rows")
        trained = ("prompts", "trained_tokens", "advantages", "reward_difference")
        of_step = ("grad_norm", "learning_rate", "seconds", "gap", "floor", "ratio_difference", "same")
        fields = {name: rollout.get(name) for name in (*sampled, *trained)}
        fields |= {name: step[name] for name in (*of_step, "loss", "reference_difference") if name in step}
        values: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in fields.items()}
        moved, looked_at = step["moved"], step["looked_at"]
        record = RehearsalRecord(
            number=trainer.state.global_step,
            not_seen=unseen,
            longest=trainer.max_completion_length,
            ending_ids=frozenset(parts.find_endings(trainer, self.tokenizer)),
            epsilon=EPSILON,
            group_size=trainer.num_generations,
            unmoved=() if moved else tuple(looked_at),
            truncated_masked=trainer.mask_truncated_completions,
            pieces=tuple(
                tuple(self.tokenizer.decode([token]) for token in ids[:TOKENS])
                for ids in (rollout.get("completions") or ())[:3]
            ),
            measured={
                "moved": len(moved),
                "looked_at": len(looked_at),
                "watching": self.spent - self.finished_at,
            },
            **values,
        )
        events.write("step", record=to_plain(record))
        self.finished_at, self.step = self.spent, {}

    @guarded
    def on_train_end(self, *arguments: Any, **_: Any) -> None:
        """Write what watching cost: seconds of the recorder's, and the steps' without them."""
        events.write("cost", watching=self.spent, seconds=self.seconds)
