"""A run's reward functions on trial: called by themselves with answers that are known, each in bounded time.

They run in a process of their own, forked before the engine starts: one that never returns is ended.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytest_rlregress.commands.rehearse import events

#: Columns that hold the right answer, by the names that data sets have.
GOLD = ("solution", "answer", "ground_truth", "final_answer", "target", "gold", "label", "expected")
#: How a completion may give its answer.
FORMS = {
    "plain": "{}",
    "sentence": "The answer is {}.",
    "boxed": "The answer is $\\boxed{{{}}}$.",
    "tagged": "<think>\nI count.\n</think>\n<answer>\n{}\n</answer>",
    "in one line": "<think>I count.</think><answer>{}</answer>",
    "marked": "I count.\n#### {}",
}
LONG = 10_000
#: Rows that are looked at, at most.
ROWS = 50_000
#: Seconds that one call may take.
LIMIT = 20.0
ALIKE = 10


def run(functions: Any, dataset: Any, generations: int, whole: Any = None) -> None:
    """Try each reward function on the first row of the data, and on one with an empty column; write what it gave.

    Args:
        functions: One or several.
        dataset: The rehearsal's rows.
        generations: Completions of a prompt.
        whole: All rows of the user.
    """
    several = functions if isinstance(functions, list) else [functions]
    row = next(iter(dataset), None) if dataset is not None else None
    for function in several:
        name = getattr(function, "__name__", type(function).__name__)
        if not callable(function) or hasattr(function, "parameters"):
            events.note_unrehearsed(
                f"the reward of {function if isinstance(function, str) else name}", "a model gives it"
            )
        elif row is None or "prompt" not in row:
            events.note_unrehearsed(f"the reward function {name} on trial", "there is no row with a prompt")
        else:
            gold = next((key for key in GOLD if isinstance(row.get(key), (str, int, float))), None)
            known = gold is not None and gold in inspect.signature(function).parameters
            odd = find_odd_row(whole)
            trials = _try_in_a_process(function, dict(row), gold, generations, odd)
            events.write("reward", name=name, gold=gold, uses_gold=known, rows=generations, trials=trials)


def find_odd_row(dataset: Any) -> tuple[int, dict[str, Any]] | None:
    """Return the first row that has nothing in a column, with its number; None if there is no such row."""
    if not hasattr(dataset, "select"):
        return None
    for name in dataset.column_names:
        column = dataset[:ROWS][name]
        empty = next((at for at, value in enumerate(column) if value is None), None)
        if empty is not None:
            return empty, dict(dataset[empty])
    return None


def make_cases(gold: Any) -> dict[str, list[str]]:
    """Return the completions of each trial, by its name; several where an answer has several forms."""
    cases = {
        "empty": [""],
        f"{LONG:,} characters": ["a " * (LONG // 2)],
        "not an answer": ["qwxz ) ( \\boxed{ <answer>"],
    }
    if gold is not None:
        right = [form.format(gold) for form in FORMS.values()]
        cases["right"] = right
        cases["wrong"] = [form.format(make_wrong(gold)) for form in FORMS.values()]
        cases["cut off"] = [one[: max(1, len(one) // 2)] for one in right]
        cases[f"right, {LONG:,} characters"] = ["a " * (LONG // 2) + right[2]]
    return cases


def make_wrong(gold: Any) -> str:
    """Return an answer that isn't the right one: another number, or its letters turned around."""
    text = str(gold)
    number = re.search(r"\d+", text)
    if number:
        return text[: number.start()] + str(int(number[0]) + 1) + text[number.end() :]
    return text[::-1] + "x"


def _call(function: Any, row: Mapping[str, Any], texts: list[str]) -> Any:
    """Call a reward function as TRL does."""
    from transformers import TrainerState

    chat = not isinstance(row["prompt"], str)
    completions = [[{"role": "assistant", "content": one}] if chat else one for one in texts]
    columns = {key: [value] * len(texts) for key, value in row.items() if key not in ("prompt", "completion")}
    given = function(
        prompts=[row["prompt"]] * len(texts),
        completions=completions,
        completion_ids=[[1] * max(1, len(one) // 4) for one in texts],
        trainer_state=TrainerState(),
        log_extra=lambda *_: None,
        log_metric=lambda *_: None,
        **columns,
    )
    return asyncio.run(given) if inspect.iscoroutine(given) else given


def _try_all(
    function: Any, row: Mapping[str, Any], gold: str | None, generations: int, odd: Any = None
) -> Iterator[dict[str, Any]]:
    """Yield each trial twice: as it begins, and with what came of it."""
    cases = make_cases(row[gold] if gold else None)
    odd_row = [(f"of row {odd[0]}, which has nothing in a column", ["1"], odd[1])] if odd else []
    several = cases.get("right", ["a b c"])[:1] * generations
    alike = [("alike", several[:1])] * ALIKE
    calls = [(name, texts, row) for name, texts in (*cases.items(), (f"{generations} completions", several), *alike)]
    for name, texts, columns in [*calls, *odd_row]:
        yield {"case": name}
        begun = time.monotonic()
        try:
            given = _call(function, columns, texts)
            found: dict[str, Any] = {"values": _describe(given), "asked": len(texts)}
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        yield {"case": name, "seconds": time.monotonic() - begun, **found}


def _describe(given: Any) -> list[Any] | str:
    """Return rewards as JSON has them: numbers, None, and what isn't one of these as its type's name."""
    if hasattr(given, "tolist"):
        given = given.tolist()
    if not isinstance(given, (list, tuple)):
        return type(given).__name__
    return [one if one is None or isinstance(one, (int, float)) else _to_number(one) for one in given]


def _to_number(one: Any) -> Any:
    try:
        return float(one) if not isinstance(one, str) else f"the text {one[:20]!r}"
    except (TypeError, ValueError):
        return f"a {type(one).__name__}"


def _try_in_a_process(
    function: Any, row: Mapping[str, Any], gold: str | None, generations: int, odd: Any = None
) -> list[dict[str, Any]]:
    """Run the trials in a forked process; the one that takes too long is the last, with no outcome."""
    with tempfile.NamedTemporaryFile("r", dir=events.folder(), suffix=".trials") as file:
        child = os.fork()
        if not child:
            with suppress(BaseException), open(file.name, "a", encoding="utf-8") as written:
                for trial in _try_all(function, row, gold, generations, odd):
                    print(json.dumps(trial), file=written, flush=True)
            os._exit(0)
        path, seen, since, hung = Path(file.name), 0, time.monotonic(), False
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            size = path.stat().st_size
            if size != seen:
                seen, since = size, time.monotonic()
            if time.monotonic() - since > LIMIT:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                hung = True
                break
            time.sleep(0.02)
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    done = [line for line in lines if "seconds" in line]
    if len(lines) % 2:
        done.append({"case": lines[-1]["case"], "hung" if hung else "died": True})
    return done
