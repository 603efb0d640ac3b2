"""The data of a run of verl's: the rows that a rehearsal takes, and what all of them show at their real size."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytest_rlregress.commands.rehearse import events, prompts

#: Rows of the validation's data.
VALIDATED = 2
#: A column that a reward is looked up by, and one that has the answer, as verl's reward managers read them.
NEEDED = ("data_source", "reward_model")


class DataError(ValueError):
    """A file that verl can't train on; the message says which, and why."""


def load(files: Any, key: str, prompt: str, needed: Sequence[str] = NEEDED) -> Any:
    """Return all rows of one or several files as a data set.

    Args:
        files: As verl has them.
        key: Of verl's, that names them.
        prompt: The column of the prompts.
        needed: Other columns.

    Raises:
        DataError: A file is missing, has no such column or isn't one of verl's.
    """
    import datasets

    datasets.disable_progress_bars()
    parts = []
    for name in [files] if isinstance(files, str) else list(files or ()):
        path = Path(os.path.expanduser(name))
        kind = {".parquet": "parquet", ".json": "json", ".jsonl": "json"}.get(path.suffix)
        if kind is None:
            raise DataError(f"{key}: {name} is neither .parquet nor .json nor .jsonl")
        if not path.is_file():
            raise DataError(f"{key}: there is no file {name}")
        try:
            parts.append(datasets.load_dataset(kind, data_files=str(path), cache_dir=os.environ.get("TMPDIR"))["train"])
        except Exception as error:  # of pyarrow, of datasets
            raise DataError(f"{key}: {name} can't be read: {str(error).splitlines()[0]}") from None
        for column in (prompt, *needed):
            if column not in parts[-1].column_names:
                what = "the column data.prompt_key names" if column == prompt else "which verl's reward managers read"
                names = ", ".join(parts[-1].column_names)
                raise DataError(f"{key}: {name} has no column {column!r}, {what}; it has {names}")
    if not parts or not sum(map(len, parts)):
        raise DataError(f"{key}: there are no rows")
    return datasets.concatenate_datasets(parts)


def look_at(dataset: Any, prompt: str, tokenizer: Any, options: dict[str, Any], get: Callable[[str], Any]) -> None:
    """Write how long all prompts are, and what their template does."""
    reader = SimpleNamespace(_tokenizer=tokenizer, chat_template_kwargs=options, processing_class=tokenizer)
    renamed = dataset if prompt == "prompt" else dataset.rename_column(prompt, "prompt")
    limit = {"key": "data.max_prompt_length", "tokens": get("data.max_prompt_length")}
    cut = {"error": "verl ends there", "left": "verl cuts their beginning", "right": "verl cuts their end"}
    limit["comes"] = cut.get(get("data.truncation"), "verl cuts them")
    if get("data.filter_overlong_prompts"):
        limit["comes"] = ""
    prompts.look_at(reader, renamed, limit)


def flatten(dataset: Any, prompt: str) -> Any:
    """Return a data set whose columns are what verl calls a reward function with."""
    import datasets

    rows = dataset.select(range(min(len(dataset), prompts.ROWS)))

    def flat(row: dict[str, Any]) -> dict[str, Any]:
        answer = (row.get("reward_model") or {}).get("ground_truth")
        return {"prompt": row[prompt], "data_source": row.get("data_source"), "ground_truth": answer}

    found = [flat(row) for row in rows]
    try:
        return datasets.Dataset.from_list(found)
    except Exception:  # answers of several types
        return datasets.Dataset.from_list([{**row, "ground_truth": str(row["ground_truth"])} for row in found])


def select(dataset: Any, prompt: str, wanted: int, room: int, count: Callable[[Any], int]) -> list[int]:
    """Return the numbers of the first rows that fit, each prompt once; the last is the longest of those looked at."""
    found: dict[str, int] = {}
    longest, most = None, -1
    for at, one in enumerate(dataset.select(range(min(len(dataset), 64 * wanted)))[prompt]):
        length = count(one)
        if length > room or str(one) in found:
            continue
        if len(found) < wanted:
            found[str(one)] = at
        if length > most:
            longest, most = at, length
    rows = list(found.values())
    if longest is not None and longest not in rows:
        rows[-1] = longest
    return rows


def write(dataset: Any, rows: Sequence[int], file: Path, key: str, old: Any) -> str:
    """Write some rows as they are into a file of the rehearsal's, and return its name."""
    dataset.select(rows).to_parquet(str(file))
    events.note_change(key, f"{old}, {len(dataset)} rows", f"{len(rows)} of them", "seconds instead of hours")
    return str(file)
