"""Fill a ``RehearsalRecord`` for each step of a user's trainer: TRL's recorder, with what their own run has beside."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pytest_rlregress.commands.rehearse import events, passes, probe
from pytest_rlregress.commands.rehearse.guard import BROKEN, guarded
from pytest_rlregress.commands.rehearse.properties import SAME_BATCH
from pytest_rlregress.commands.rehearse.record import RehearsalRecord, make_advantages, to_plain
from pytest_rlregress.commands.rehearse.resume import find_savable
from pytest_rlregress.commands.rehearse.twin import find_dropouts, make_twin
from pytest_rlregress.fixtures.step_record import StepRecord
from pytest_rlregress.fixtures.trl_record import EPSILON, NO_ENGINE, TrlRecorder


class RehearsalRecorder(TrlRecorder):
    """Observes a user's trainer; each record is written as soon as its step is complete."""

    def __init__(self, trainer: Any) -> None:
        """Copy the model as it is before the first step."""
        tokenizer = getattr(trainer, "_tokenizer", trainer.processing_class)
        super().__init__(trainer, make_twin(trainer.model), tokenizer)
        self.broken: list[str] = []
        self.logprobs: torch.Tensor | None = None
        self.drawn_now: list[Any] = []
        self.awaits_resume, self.resumed, self.moments = False, dict[str, torch.Tensor](), 0

    def observe(self) -> list[StepRecord]:
        """Wrap what TRL's recorder doesn't: the engine, the sum of rewards, the pass of the loss."""
        trainer = self.trainer
        compute_pass = trainer._get_per_token_logps_and_entropies

        def observed_pass(*arguments: Any, **named: Any) -> Any:
            found = compute_pass(*arguments, **named)
            self.logprobs = found[0].detach()
            return found

        trainer._get_per_token_logps_and_entropies = observed_pass
        calculate = trainer._calculate_rewards

        def observed_rewards(*arguments: Any, **named: Any) -> Any:
            found = calculate(*arguments, **named)
            return self._stub(found) if trainer.model.training else found

        trainer._calculate_rewards = observed_rewards
        llm = getattr(getattr(trainer, "vllm_generation", None), "llm", None)
        if llm is not None:
            generate = llm.generate

            def observed_engine(*arguments: Any, **named: Any) -> Any:
                outputs = generate(*arguments, **named)
                self.drawn_now += outputs
                return outputs

            llm.generate = observed_engine
        sound = trainer.compute_loss
        records = super().observe()
        compute_loss = trainer.compute_loss

        def measured_loss(model: Any, inputs: Any, *arguments: Any, **named: Any) -> Any:
            loss = compute_loss(model, inputs, *arguments, **named)
            if trainer.model.training:
                self._note_pass(model, inputs, sound)
            return loss

        trainer.compute_loss = measured_loss
        return records

    def _stub(self, found: torch.Tensor) -> torch.Tensor:
        """Note the rewards that the trainer goes on with; where no group has a spread, put 0 and 1 in turn there."""
        rollout, given = self.rollout, self.rollout["given"]
        if given:
            raw = torch.tensor(
                [[torch.nan if one is None else float(one) for one in given[at]] for at in sorted(given)]
            )
            used = found[:, sorted(given)].T.cpu()
            rollout["reward_difference"] = 0.0
            if raw.shape == used.shape:
                rollout["reward_difference"] = float((raw - used).nan_to_num().abs().max())
        for at in range(found.shape[1]):
            given.setdefault(at, found[:, at].tolist())  # of a reward model
        rollout["own_rewards"] = own = self._add_rewards()
        rollout["stubbed"] = all(len({one for one in group if one == one}) < 2 for group in own)
        if not rollout["stubbed"]:
            return found
        weights = self.trainer.reward_weights
        at = int(weights.abs().argmax())
        stub = torch.zeros_like(found)
        stub[1::2, at] = 1.0
        for one in range(found.shape[1]):
            given[one] = stub[:, one].tolist()
        return stub

    def wanted_advantages(self) -> list[float]:
        """Return the advantages that the rewards make by this trainer's ``scale_rewards``."""
        return make_advantages(self.rollout["rewards"], str(self.trainer.scale_rewards), EPSILON)

    @guarded
    def _begin_rollout(self, inputs: list[dict[str, Any]]) -> None:
        self.drawn_now.clear()
        super()._begin_rollout(inputs)
        rows = [{**row, "prompt": repr(row.get("prompt"))} for row in inputs]
        self.rollout["group_rows"] = tuple(hashlib.sha256(repr(row).encode()).hexdigest()[:12] for row in rows)

    def _end_rollout(self, batch: Any) -> None:
        self._note_rollout(batch)
        self._note_engine(batch)

    @guarded
    def _note_rollout(self, batch: Any) -> None:
        super()._end_rollout(batch)
        mask = batch["completion_mask"] * batch.get("tool_mask", 1)
        self.rollout["lengths"] = tuple(mask.sum(1).tolist())
        self.rollout["wanted"] = tuple(self.wanted_advantages())
        reference, old = batch.get("ref_per_token_logps"), batch.get("old_per_token_logps")
        if reference is not None and self.trainer.state.global_step == 0:
            old = self.rollout["old"] if old is None else old
            width = min(reference.shape[1], old.shape[1])
            apart = (reference[:, :width] - old[:, :width]).abs() * mask[:, :width]
            self.rollout["reference_difference"] = float(apart.nan_to_num().max())

    @guarded
    def _note_engine(self, batch: Any) -> None:
        """Compare the engine's weights and log-probabilities with the trainer's, at once, while both have them."""
        if not self.drawn_now:
            return
        from pytest_rlregress.agreement.engine import read_completions

        self.rollout["stale"] = self.find_stale()
        drawn = [one for output in self.drawn_now for one in read_completions(output)]
        self.rollout["engine_prompts"] = tuple(tuple(one.prompt_ids) for one in drawn)
        self.rollout["engine_completions"] = tuple(tuple(one.ids) for one in drawn)
        completions = self.rollout["completions"]
        if self.rollout["engine_completions"] != completions:
            self.rollout["no_gap"] = "the completions aren't those that the engine drew last"
            return
        self._compare_logprobs(batch, drawn)

    def _compare_logprobs(self, batch: Any, drawn: list[Any]) -> None:
        """Compare what the engine said of its tokens with the trainer, for completions that are trained on."""
        from pytest_rlregress.agreement.comparison import compare

        args, rollout = self.trainer.args, self.rollout
        rows = [row for row, length in enumerate(rollout["lengths"]) if length]
        if not rows:
            rollout["no_gap"] = "no completion has a trained token"
            return
        kept = [drawn[row] for row in rows]
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        sampling = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
        old, numbers = batch.get("old_per_token_logps"), None
        if old is not None:
            numbers = [old[row][: len(drawn[row].ids)].tolist() for row in rows]
        prompts = [batch["prompt_ids"][row][batch["prompt_mask"][row].bool()].tolist() for row in rows]
        llm = self.trainer.vllm_generation.llm
        found = compare(llm, self.trainer.model, kept, prompts=prompts, trainer=numbers, **sampling)
        rollout |= {"gap": found.gap, "floor": found.floor}
        trainers = [
            tuple(said - apart for said, apart in zip(one.logprobs, row, strict=True))
            for one, row in zip(kept, found.per_token, strict=True)
        ]
        if len(rows) == len(drawn):
            rollout["logprobs"] = tuple((tuple(one.logprobs), row) for one, row in zip(drawn, trainers, strict=True))
        if not found.agrees:
            rollout["cause"] = str(found.explain())
        rollout["cached_gap"] = probe.measure_cached(llm, self.trainer.model)

    def find_stale(self) -> tuple[str, ...]:
        """Return the names of the engine's weights that aren't the trainer's; none where they can't be read."""
        try:
            return super().find_stale()
        except (NotImplementedError, KeyError) as error:
            self.rollout["no_weights"] = f"the engine's weights can't be read: {error}"
            return ()

    @guarded
    def _note_pass(self, model: Any, inputs: Any, compute: Callable[..., Any]) -> None:
        """Note the ratio of this pass; of the first micro batch of a step also a second pass and two gradients."""
        trainer, now = self.trainer, self.logprobs
        if now is None:
            return
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        old = inputs.get("old_per_token_logps")
        if old is not None and trainer.state.global_step + 1 == self.rollout.get("number"):
            apart = float(((now - old).abs() * mask).max())
            self.step["ratio_difference"] = max(apart, self.step.get("ratio_difference", 0.0))
        if "second_pass" in self.step:
            return
        kept = copy.deepcopy(trainer._metrics)
        with torch.no_grad(), torch.random.fork_rng():
            compute(model, inputs)
        trainer._metrics = kept
        again = self.logprobs if self.logprobs is not None else now
        self.step["second_pass"] = float(((again - now).abs() * mask).max())
        self.step["dropouts"] = find_dropouts(trainer.model)
        if self.step["second_pass"] <= SAME_BATCH or self.step["dropouts"]:  # a module's dropout is left out there
            self.step |= passes.measure(trainer, model, inputs, compute)

    @guarded
    def on_step_begin(self, *arguments: Any, **named: Any) -> None:
        """Keep the weights before the step."""
        super().on_step_begin(*arguments, **named)
        if self.awaits_resume:
            self.awaits_resume = False
            self.resumed = {name: one.clone() for name, one in find_savable(self.trainer).items()}
            self.moments = len(self.trainer.optimizer.state)

    @guarded
    def on_pre_optimizer_step(self, *arguments: Any, **named: Any) -> None:
        """Note the gradients, and the learning rate that they are taken with."""
        super().on_pre_optimizer_step(*arguments, **named)
        self.gradients = {name: p.grad.clone() for name, p in self._find_trained().items() if p.grad is not None}
        rates = [group["lr"] for group in self.trainer.optimizer.param_groups]
        self.step["learning_rate"] = float(max(rates))

    def compare_gradients(self, expected: Mapping[str, torch.Tensor]) -> None:
        """Note the cosine of the step's gradient and the closed form's."""
        names = [name for name in expected if name in self.gradients]
        one = torch.cat([self.gradients[name].flatten().double() for name in names])
        other = torch.cat([expected[name].flatten().double() for name in names])
        self.step["direction"] = float(torch.nn.functional.cosine_similarity(one, other, dim=0))

    @guarded
    def on_step_end(self, *arguments: Any, **named: Any) -> None:
        """Recompute what the step should have done by the closed form."""
        super().on_step_end(*arguments, **named)

    @guarded
    def on_log(self, *arguments: Any, **named: Any) -> None:
        """Record the step, whose line of the log is complete now."""
        super().on_log(*arguments, **named)

    def find_unseen(self) -> dict[str, str]:
        """Return which properties of this step can't be seen, each with the reason."""
        trainer, rollout, found = self.trainer, self.rollout, super().find_unseen()
        found.pop("agreement after", None)
        form = found.pop("gradient norm", None)
        unseen = {**found, **({"gradient's norm": form, "direction": form} if form else {})}
        fresh = trainer.state.global_step == rollout.get("number")
        again = f"the step trains again on what was sampled for step {rollout.get('number')}"
        for name in ("engine's prompts", "sync", "agreement", "cached prompts"):
            if not trainer.use_vllm:
                unseen[name] = NO_ENGINE
            elif not fresh:
                unseen[name] = again
        if "no_weights" in rollout:
            unseen["sync"] = rollout["no_weights"]
        if "no_gap" in rollout:
            unseen |= dict.fromkeys(("agreement", "engine's prompts", "cached prompts"), rollout["no_gap"])
        if "ratio_difference" not in self.step:
            unseen["ratio"] = again if not fresh else "TRL computes no old log-probabilities here: its ratio is 1"
        if "reference_difference" not in rollout:
            unseen["reference"] = "beta is 0: there is no reference model" if not trainer.beta else "of the first step"
        if "split_difference" not in self.step:
            unseen["micro batches"] = "a micro batch is random, has an odd number of rows, or no gradient"
        if "masked_difference" not in self.step:
            unseen["masked tokens"] = "nothing is masked in the micro batch that was looked at"
        if trainer.multi_objective_aggregation != "sum_then_normalize":
            unseen["advantages"] = f"TRL aggregates by {trainer.multi_objective_aggregation}"
        if self.resumed:
            unseen["update"] = "the schedule of the learning rate ended before the resume"
        if "reward_difference" not in rollout:
            unseen["rewards used"] = "a model gives them"
        if self.broken:
            unseen |= {name: BROKEN for name in RehearsalRecord.properties if not self._is_seen(name)}
        return unseen

    def _name_tokens(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.tokenizer.decode([one]) for one in ids)

    def _is_seen(self, name: str) -> bool:
        fields = RehearsalRecord.properties[name][0] or ("rewards",)
        others = {"number", "longest", "ending_ids", "epsilon", "grad_norm", "group_size"}
        return all(one in self.rollout or one in self.step or one in others for one in fields)

    def make_record(self, **fields: Any) -> StepRecord:
        """Make the record of a step, and write it."""
        names = (
            *("stubbed", "own_rewards", "reward_difference", "group_rows", "engine_prompts", "engine_completions"),
            *("wanted", "gap", "floor", "cause", "cached_gap", "logprobs", "reference_difference", "lengths"),
        )
        more = {name: self.rollout[name] for name in names if name in self.rollout}
        ids = getattr(self.trainer, "eos_token_ids", None)
        if ids:
            fields["ending_ids"] = frozenset(ids)
        record = RehearsalRecord(
            group_size=self.trainer.num_generations,
            pieces=tuple(map(self._name_tokens, fields["completions"][:3])),
            truncated_masked=self.trainer.mask_truncated_completions,
            **{**fields, **more},
        )
        events.write("step", record=to_plain(record))
        return record
