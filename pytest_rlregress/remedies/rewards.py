"""Remedies for rewards."""

from __future__ import annotations

import inspect
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from verl.protocol import DataProto

__all__ = ["MathScores", "math_scores", "reward_of_policy"]


@dataclass(frozen=True)
class MathScores:
    """What answers are worth, and which could not be judged.

    Attributes:
        scores: Of each answer 1.0 if it is right, 0.0 if it is wrong, None if nobody can say: leave it out.
        errors: Of each answer that is None, by its index, the reason. How many there are belongs into the metrics.
    """

    scores: list[float | None]
    errors: dict[int, str]


def math_scores(answers: Sequence[str], solutions: Sequence[str], seconds: float = 10.0) -> MathScores:
    """Compare answers with solutions by math-verify, in a process of its own: from any thread, and never without end.

    math-verify's own timeouts are an alarm, which only the main thread has; here the process is what ends. One that
    does, or is ended from outside, is followed by another.

    Args:
        answers: Texts with an answer in LaTeX or as an expression.
        solutions: As many texts with the right one.
        seconds: How long to work on one answer.

    Returns:
        A score or an error for each: what takes too long, a solution without a mathematical meaning, an exception of
        math-verify and the end of the process are errors, not wrong answers.

    Raises:
        ValueError: Answers and solutions differ in number.
        RuntimeError: The process does not start, as where math-verify is missing.
    """
    if len(answers) != len(solutions):
        raise ValueError(f"{len(answers)} answers but {len(solutions)} solutions")
    scores: list[float | None] = []
    errors: dict[int, str] = {}
    judge: _Judge | None = None
    try:
        for index, pair in enumerate(zip(answers, solutions, strict=True)):
            if judge is None or judge.has_ended:
                judge = _Judge()
            score, error = judge.asked(pair, seconds)
            scores.append(score)
            if error:
                errors[index] = error
    finally:
        if judge:
            judge.end()
    return MathScores(scores, errors)


class _Judge:
    """A Python of its own that reads pairs of answer and solution and writes what they come to, a line each."""

    def __init__(self) -> None:
        """Start it, and wait until it has imported what it needs."""
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", "from pytest_rlregress.remedies.rewards import _judge; _judge()"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        ready = self._line(seconds=600.0)
        if ready != "ready":
            self.end()
            raise RuntimeError(f"math-verify did not start: {ready or 'no word of it'}")

    @property
    def has_ended(self) -> bool:
        """Whether nobody is there to be asked any more."""
        return self.process.returncode is not None

    def asked(self, pair: tuple[str, str], seconds: float) -> tuple[float | None, str | None]:
        """Return a score, or None and an error; the process is ended where there is no reply."""
        with suppress(OSError):  # of a process that has ended: so does its output
            print(json.dumps(pair), file=self.process.stdin, flush=True)
        line = self._line(seconds)
        if line:
            score, error = json.loads(line)
            return score, error
        self.end()
        return None, f"not done after {seconds} s" if line is None else "the process that judges has ended"

    def end(self) -> None:
        """Kill it, and collect what is left."""
        self.process.kill()
        self.process.wait()
        with suppress(OSError):
            self.process.stdin.close()  # type: ignore[union-attr]

    def _read(self) -> None:
        with self.process.stdout as lines:  # type: ignore[union-attr]
            for line in lines:
                self.lines.put(line.strip())
        self.lines.put("")

    def _line(self, seconds: float) -> str | None:
        try:
            return self.lines.get(timeout=seconds)
        except queue.Empty:
            return None


def _judge() -> None:
    """Read pairs as JSON, write score and error as JSON. What libraries print goes elsewhere."""
    replies, sys.stdout = sys.stdout, sys.stderr
    try:
        from math_verify import parse, verify
    except ImportError as error:
        print(error, file=replies)
        return
    # Older releases cannot tell errors from wrong answers.
    told = {"raise_on_error": True} if "raise_on_error" in inspect.signature(verify).parameters else {}
    parse("$1$", parsing_timeout=None)  # the first takes longer, and is no answer's fault
    print("ready", file=replies)
    for line in sys.stdin:
        answer, solution = json.loads(line)
        reply: tuple[float | None, str | None]
        try:
            right = parse(solution, parsing_timeout=None, **told)
            if not right:
                raise ValueError(f"no mathematical meaning in the solution {solution!r}")
            found = parse(answer, parsing_timeout=None, **told)
            reply = float(verify(right, found, timeout_seconds=None, **told)), None
        except Exception as raised:
            reply = None, f"{type(raised).__name__}: {raised}"
        print(json.dumps(reply), file=replies)


def reward_of_policy(manager: Callable[[DataProto], torch.Tensor], data: DataProto, pad_token_id: int) -> torch.Tensor:
    """Have a reward manager of verl's score what the policy wrote, without what tools wrote between it.

    Args:
        manager: Reads ``prompts``, ``responses`` and ``attention_mask``, and returns rewards of ``[rows, response]``.
        data: verl ``DataProto`` with ``response_mask``, 1 where the policy wrote; left as it is. The manager gets its
            columns and meta info too.
        pad_token_id: What shortened responses are filled up with.

    Returns:
        Shape ``[rows, response]``, float32: each row's reward at the last token that the policy wrote. A row without
        any is not scored, and all 0.
    """
    import torch

    mask = data.batch["response_mask"].bool()
    rewards = torch.zeros_like(mask, dtype=torch.float32)
    [rows] = mask.any(1).nonzero(as_tuple=True)
    if not len(rows):
        return rewards
    mask, batch = mask[rows], data.batch[rows]
    prompts, width = batch["prompts"], mask.shape[1]
    order = (~mask).int().argsort(stable=True)  # the policy's tokens first
    kept = mask.gather(1, order)
    responses = batch["responses"].gather(1, order).masked_fill(~kept, pad_token_id)
    there = torch.cat([batch["attention_mask"][:, :-width], kept], 1)
    columns = {key: column[rows.cpu().numpy()] for key, column in data.non_tensor_batch.items()}
    tensors = {"prompts": prompts, "responses": responses, "attention_mask": there}
    policy = type(data).from_dict(tensors, columns, dict(data.meta_info))
    last = width - 1 - mask.int().flip(1).argmax(1)
    rewards[rows, last] = manager(policy).sum(1).to(rewards.dtype)
    return rewards
