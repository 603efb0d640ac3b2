"""The prompts of a run's data: which rows a rehearsal takes, and what all of them show at their real size."""

from __future__ import annotations

import time
from typing import Any

from pytest_rlregress.commands.rehearse import events

#: Rows that are looked at, at most, and the seconds that it may take.
ROWS, SECONDS = 50_000, 60.0
#: A longer prompt isn't taken into the rehearsal, in characters.
LONGEST = 3000


def select_rows(dataset: Any, wanted: int) -> Any:
    """Return the first rows of a data set that aren't too long, the last of them replaced by the longest of all."""
    if not hasattr(dataset, "select"):
        events.note_change("rows", "a stream", f"its first {wanted}", "seconds instead of hours")
        return dataset.take(wanted)
    if "prompt" not in dataset.column_names:
        return dataset.select(range(min(len(dataset), wanted)))
    lengths = [len(str(prompt)) for prompt in dataset[:ROWS]["prompt"]]
    short = [row for row, length in enumerate(lengths) if length <= LONGEST]
    if not short:
        return dataset.select([min(range(len(lengths)), key=lengths.__getitem__)])
    rows = short[:wanted]
    longest = max(short, key=lengths.__getitem__)
    if longest not in rows:
        rows[-1] = longest
    if len(rows) < len(dataset):
        said = f"{len(rows)}: the first, and the longest of at most {LONGEST} characters, row {longest}"
        events.note_change("rows", len(dataset), said, "seconds instead of hours")
    return dataset.select(rows)


def look_at(trainer: Any, dataset: Any, limit: dict[str, Any] | None = None) -> None:
    """Write how long the prompts are, which don't fit the user's context, and what their template does.

    ``limit`` has the ``key`` of a prompt's most ``tokens``, and what ``comes`` of a longer one; "" if it is left out.
    """
    tokenizer = getattr(trainer, "_tokenizer", trainer.processing_class)
    options = getattr(trainer, "chat_template_kwargs", None) or {}
    if not hasattr(dataset, "select") or "prompt" not in dataset.column_names:
        events.write("prompts", rows=0, why="the data is a stream, or an environment gives the prompts")
        return
    begun = time.monotonic()
    lengths: list[int] = []
    few = dataset.select(range(min(len(dataset), ROWS)))
    first = few[0]["prompt"]
    for start in range(0, len(few), 256):
        part = few[start : start + 256]["prompt"]
        if isinstance(first, str):
            ids = tokenizer(text=part)["input_ids"]
        else:
            texts = [
                tokenizer.apply_chat_template(one, add_generation_prompt=True, tokenize=False, **options)
                for one in part
            ]
            ids = tokenizer(text=texts, add_special_tokens=False)["input_ids"]
        lengths += map(len, ids)
        if time.monotonic() - begun > SECONDS:
            break
    longest = max(range(len(lengths)), key=lengths.__getitem__)
    events.write(
        "prompts",
        rows=len(dataset),
        lengths=lengths,
        longest=lengths[longest],
        longest_row=longest,
        seconds=time.monotonic() - begun,
        limit=limit,
        **_describe_opening(tokenizer, first, options),
    )


def _describe_opening(tokenizer: Any, prompt: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Say how a prompt begins and ends: BOS ids, and whether the answer's turn is opened."""
    bos = tokenizer.bos_token_id
    if not isinstance(prompt, str):
        opened, closed = (
            tokenizer.apply_chat_template(prompt, add_generation_prompt=one, tokenize=False, **options)
            for one in (True, False)
        )
        ids = tokenizer(opened, add_special_tokens=False)["input_ids"]
        return {"kind_of_prompt": "chat", "opened": opened != closed, "bos": _count_bos(ids, bos), "end": opened[-40:]}
    ids = tokenizer(text=prompt)["input_ids"]
    found = {"kind_of_prompt": "text", "opened": None, "bos": _count_bos(ids, bos), "end": prompt[-40:]}
    if getattr(tokenizer, "chat_template", None):
        opening = _find_opening(tokenizer, options)
        specials = [one for one in tokenizer.all_special_tokens if one and one in prompt]
        if opening and specials:  # it was rendered before
            found["opened"] = prompt.rstrip().endswith(opening.rstrip())
    return found


def _find_opening(tokenizer: Any, options: dict[str, Any]) -> str:
    """Return what the chat template opens the answer's turn with."""
    chat = [{"role": "user", "content": "1"}]
    opened, closed = (
        tokenizer.apply_chat_template(chat, add_generation_prompt=one, tokenize=False, **options)
        for one in (True, False)
    )
    return opened.removeprefix(closed) if opened.startswith(closed) else ""


def _count_bos(ids: list[int], bos: int | None) -> int:
    """Return how many BOS ids a prompt begins with."""
    count = 0
    while bos is not None and count < len(ids) and ids[count] == bos:
        count += 1
    return count
