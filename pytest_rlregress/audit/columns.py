"""Names of a batch's columns in verl, TRL and OpenRLHF, and under which of them a batch has what the checks need."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping


class BatchError(Exception):
    """A batch that cannot be audited: what it is, what is wrong, what is allowed."""


#: The columns by the names used here (verl's, where it has one), and what verl, TRL and OpenRLHF call them.
NAMES: dict[str, tuple[str, ...]] = {
    "input_ids": ("input_ids", "sequences"),
    "prompts": ("prompts", "prompt_ids", "prompt", "input"),
    "responses": ("responses", "completion_ids"),
    "attention_mask": ("attention_mask",),
    "prompt_mask": ("prompt_mask",),
    "completion_mask": ("completion_mask",),
    "response_mask": ("response_mask", "action_mask", "loss_mask"),
    "tool_mask": ("tool_mask",),
    "position_ids": ("position_ids",),
    "old_log_probs": ("old_log_probs", "old_per_token_logps", "action_log_probs"),
    "rollout_log_probs": ("rollout_log_probs", "sampling_per_token_logps", "logprobs"),
    "ref_log_prob": ("ref_log_prob", "ref_per_token_logps", "base_action_log_probs"),
    "token_level_scores": ("token_level_scores", "rm_scores"),
    "token_level_rewards": ("token_level_rewards",),
    "rewards": ("rewards", "reward", "score"),
    "advantages": ("advantages", "advantage"),
    "returns": ("returns",),
    "values": ("values",),
    "uid": ("uid",),
}
LOG_PROBS = ("old_log_probs", "rollout_log_probs", "ref_log_prob")
#: Columns of one number for each token of the response.
OF_RESPONSES = (*LOG_PROBS, "token_level_scores", "token_level_rewards", "returns", "values")


def find_columns(columns: Collection[str], mapped: Mapping[str, str]) -> dict[str, str]:
    """Which column is what: the name used here, and the batch's own.

    Args:
        columns: Those of the batch.
        mapped: What the user says, as here; it goes before what is known of trainers.

    Raises:
        BatchError: The user names a column that is not in the batch, or something that is not known here.
    """
    for name, column in mapped.items():
        if name not in NAMES:
            raise BatchError(f"--map {name}={column}: {name} isn't a known name. Known: {', '.join(NAMES)}")
        if column not in columns:
            raise BatchError(f"--map {name}={column}: the batch has no column {column}. It has {listed(columns)}")
    found = {name: next((one for one in names if one in columns), None) for name, names in NAMES.items()}
    taken = set(mapped.values())
    return {
        name: column
        for name, column in ({**found, **mapped}).items()
        if column and (name in mapped or column not in taken)
    }


def listed(columns: Iterable[str], most: int = 20) -> str:
    """Names of columns in a sentence."""
    names = sorted(map(str, columns))
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) + more) or "none"


def same_rows(found: Mapping[str, str], rows: Mapping[str, int]) -> int:
    """Return the number of rows that all of the columns have.

    Raises:
        BatchError: They differ; it names two of them.
    """
    counts = {column: rows[column] for column in found.values() if column in rows}
    if not counts:
        raise BatchError(f"it has no column that is known here. It has {listed(rows)}; --map NAME=COLUMN says which is "
                         f"which: {', '.join(NAMES)}")  # fmt: skip
    least, most = min(counts, key=lambda name: counts[name]), max(counts, key=lambda name: counts[name])
    if counts[least] != counts[most]:
        raise BatchError(
            f"its columns differ in rows: {least} has {counts[least]:,} and {most} has {counts[most]:,}. Every column "
            "has one row for each sample"
        )
    if not counts[least]:
        raise BatchError("it has no rows")
    return counts[least]


def needs_masks(found: Mapping[str, str], columns: Iterable[str]) -> None:
    """See that there is a mask of what is trained on and one of what is attended to.

    Raises:
        BatchError: One of the two is missing.
    """
    masks = {"response_mask": "what is trained on", "attention_mask": "what is attended to, and what is padding"}
    lacking = [name for name in masks if not {name, "completion_mask"} & found.keys()]
    if lacking:
        said = " and ".join(f"no {name} ({masks[name]})" for name in lacking)
        names = "; ".join(f"{name}: {', '.join(NAMES[name])}" for name in lacking)
        raise BatchError(
            f"it has {said}, without which padding cannot be told from tokens. Looked for {names}; TRL's "
            f"completion_mask and prompt_mask are both. It has {listed(columns)}. Where the mask has another name: "
            f"--map {lacking[0]}=COLUMN"
        )
