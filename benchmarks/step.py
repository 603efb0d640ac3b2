"""The miniature step (generate + train + sync) against TRL's GRPOTrainer on the same model, questions and lengths.

TRL generates with transformers, its default; both make two optimizer steps a rollout of 16 completions of 16 tokens.
The two alternate in one process: TRL's callback runs one of our steps after each of its own.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

WARM, STEPS = 3, 15


def main() -> None:
    """Run both and print a table."""
    os.environ.setdefault("WANDB_MODE", "disabled")
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from pytest_rlregress.fixtures import arithmetic, ray_cluster, rollout_actor, step_rollout, tiny_qwen, training_step

    torch.set_num_threads(1)  # a model this small gains nothing from a second one, and Ray gives the engine one too
    qwen = tiny_qwen.build()
    tokenizer = qwen.tokenizer()
    settings = training_step.StepSettings()
    prompts = step_rollout.text_prompts(settings, tokenizer, 0)
    questions = [prompt.problem for prompt in prompts]
    training_step.draw_prompts = lambda *_: prompts
    training_step.ending_ids = lambda *_: [tokenizer.eos_token_id]  # in TRL below nothing ends a completion
    ours: list[float] = []
    theirs: list[float] = []

    class Alternate(TrainerCallback):
        """Times TRL's steps, a rollout's `epochs` of them together, and runs one of ours after them."""

        def __init__(self, steps: Iterator[Any]) -> None:
            self.steps, self.elapsed = steps, 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.begun = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            self.elapsed += time.perf_counter() - self.begun
            if state.global_step % settings.epochs == 0:
                theirs.append(self.elapsed)
                self.elapsed = 0.0
                ours.append(next(self.steps).seconds)

    with (
        tempfile.TemporaryDirectory() as folder,
        ray_cluster.start(say=print),
        rollout_actor.start(qwen.directory, print, max_model_len=settings.max_model_len) as engine,
    ):
        arguments = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            per_device_train_batch_size=settings.prompts * settings.samples_per_prompt,
            num_generations=settings.samples_per_prompt,
            max_completion_length=settings.response_length,
            num_iterations=settings.epochs,
            max_steps=settings.epochs * (WARM + STEPS),
            learning_rate=settings.learning_rate,
            epsilon=settings.clip_low,
            epsilon_high=settings.clip_high,
            loss_type="grpo",
            beta=0.0,
            generation_kwargs={"min_new_tokens": settings.response_length},
        )
        GRPOTrainer(
            model=qwen.model(),
            reward_funcs=lambda completions, answer, **_: [
                arithmetic.reward(turn["content"], wanted) for [turn], wanted in zip(completions, answer, strict=True)
            ],
            args=arguments,
            train_dataset=Dataset.from_list([{"prompt": q.messages, "answer": q.answer} for q in questions]),
            processing_class=tokenizer,
            callbacks=[
                Alternate(
                    training_step.train(qwen.model().train(), qwen.model(), tokenizer, engine, settings, WARM + STEPS)
                )
            ],
        ).train()

    theirs_median = statistics.median(theirs[WARM:])
    ours_median = statistics.median(ours[WARM:])
    longest = max(len(prompt.ids) for prompt in prompts)
    print(f"\nA warm step, median of {STEPS}, alternating; prompts of up to {longest} tokens:")
    print(f"  TRL GRPOTrainer   {1000 * theirs_median:7.1f} ms")
    print(f"  miniature step    {1000 * ours_median:7.1f} ms")
    print(f"  miniature / TRL   {ours_median / theirs_median:7.2f}     (wanted: at most 1)")
