"""A batch in one form whatever trainer it is of: what verl, TRL and OpenRLHF call its columns, and rows of it as ids,
masks and columns of the response."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_rlregress.audit.findings import Finding, found_rows
from pytest_rlregress.util.coverage import Unchecked
from pytest_rlregress.util.text import plural

if TYPE_CHECKING:
    import torch


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
    "texts": ("output", "completion"),
}
#: Columns that say what a row was worth.
REWARDS = frozenset({"token_level_scores", "token_level_rewards", "rewards", "advantages"})
LOG_PROBS = ("old_log_probs", "rollout_log_probs", "ref_log_prob")
#: Columns of one number for each token of the response.
OF_RESPONSES = (*LOG_PROBS, "token_level_scores", "token_level_rewards", "returns", "values")


def find_columns(columns: Mapping[str, Any], mapped: Mapping[str, str]) -> tuple[dict[str, str], int]:
    """Return what the batch calls each column, by the names used here, and how many rows all of them have.

    Args:
        columns: Those of the batch.
        mapped: What the user says, as here; it goes before what is known of trainers.

    Raises:
        BatchError: The user names a column that is not in the batch, or something that is not known here; no column is
            known; they differ in rows; a mask is missing.
    """
    for name, column in mapped.items():
        if name not in NAMES:
            raise BatchError(f"--map {name}={column}: {name} isn't a known name. Known: {', '.join(NAMES)}")
        if column not in columns:
            raise BatchError(f"--map {name}={column}: the batch has no column {column}. It has {_list(columns)}")
    known = {name: next((one for one in names if one in columns), None) for name, names in NAMES.items()}
    taken = set(mapped.values())
    found = {
        name: column
        for name, column in ({**known, **mapped}).items()
        if column and (name in mapped or column not in taken)
    }
    if not found:
        raise BatchError(f"it has no column that is known here. It has {_list(columns)}; --map NAME=COLUMN says which "
                         f"is which: {', '.join(NAMES)}")  # fmt: skip
    counts = {column: len(columns[column]) for column in found.values()}
    least, most = min(counts, key=lambda name: counts[name]), max(counts, key=lambda name: counts[name])
    if counts[least] != counts[most]:
        raise BatchError(
            f"its columns differ in rows: {least} has {counts[least]:,} and {most} has {counts[most]:,}. Every column "
            "has one row for each sample"
        )
    if not counts[least]:
        raise BatchError("it has no rows")
    if has_tokens(found):
        needs_masks(found, columns)
    elif not REWARDS & found.keys():
        names = ", ".join(column for name in sorted(REWARDS) for column in NAMES[name])
        raise BatchError(
            f"it has no tokens and no rewards: is it a data set? A batch or a logged rollout has one of {names}. It "
            f"has {_list(columns)}; --map rewards=COLUMN names a column of rewards"
        )
    return found, counts[least]


def name_of(names: Mapping[str, str], *known: str) -> str:
    """Return the batch's name of the first of these columns that it has."""
    return next((names[one] for one in known if one in names), known[0])


def has_tokens(names: Collection[str]) -> bool:
    """Return whether columns of these names say something of tokens."""
    return bool({"input_ids", "responses", "response_mask", "completion_mask", "attention_mask"} & {*names})


def list_none(*names: str) -> Unchecked:
    """Say that a batch has none of these columns, by all of their names."""
    return Unchecked(f"there is none of {', '.join(column for name in names for column in NAMES[name])}")


def _list(columns: Iterable[str], most: int = 20) -> str:
    """Names of columns in a sentence."""
    names = sorted(map(str, columns))
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) + more) or "none"


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
            f"it has {said}, without which padding cannot be told from tokens. Looked for {names} (or TRL's "
            f"completion_mask and prompt_mask together). The batch has {_list(columns)}. Another name? "
            f"--map {lacking[0]}=COLUMN"
        )


_IDS = ("input_ids", "prompts", "responses", "position_ids")
_DIMENSIONS = {"rewards": (1, 2), "advantages": (1, 2), "position_ids": (2, 3)}
_LENGTHS = "keep one number for each token of the response in every column, and cut or pad all of them together"


@dataclass
class TokenRows:
    """Rows of a batch.

    Attributes:
        names: What the batch calls each column, by the names used here.
        start: Where in the batch the first of them is.
        ids: Prompt and response, ``(rows, all tokens)``; None where there are none.
        attention: As ``ids``, bool.
        responses: ``(rows, tokens)``, the last of ``ids``; None where there are none.
        attended: As ``responses``, bool: no padding.
        mask: As ``responses``, bool: trained on.
        columns: The other columns, by the names used here; those of the response are as wide as ``mask``.
        findings: What was found wrong with their lengths; such a column is not in ``columns``.
    """

    names: Mapping[str, str]
    start: int
    ids: torch.Tensor | None
    attention: torch.Tensor | None
    responses: torch.Tensor | None
    attended: torch.Tensor
    mask: torch.Tensor
    columns: dict[str, Any]
    findings: list[Finding]

    def name(self, *known: str) -> str:
        """Return the batch's name of the first of these columns that it has."""
        return name_of(self.names, *known)

    def log_probs(self) -> dict[str, torch.Tensor]:
        """Return the columns of log-probabilities."""
        return {name: self.columns[name] for name in LOG_PROBS if name in self.columns}


def token_rows(values: Mapping[str, Any], names: Mapping[str, str], start: int = 0) -> TokenRows:
    """Bring rows into this form.

    Args:
        values: Tensors by the names used here; texts, as of a logged batch, are not looked at.
        names: What the batch calls each of them.
        start: Where in the batch the first of them is.

    Raises:
        BatchError: A column has another shape or dtype than it can have.
    """
    import torch

    def join(left: torch.Tensor | None, right: torch.Tensor) -> torch.Tensor:
        return right if left is None else torch.cat([left.to(right.dtype), right], dim=1)

    parts = {
        name: _check_kind(name, names[name], value)
        for name, value in values.items()
        if name not in ("uid", "texts") and not isinstance(value, list)
    }
    if "completion_mask" in parts:  # TRL: padding and end, of the completion alone; what tools said is apart
        completion = parts.pop("completion_mask").bool()
        trained = completion & parts["tool_mask"].bool() if "tool_mask" in parts else completion
        parts.setdefault("response_mask", trained)
        parts.setdefault("attention_mask", join(parts.get("prompt_mask"), completion))
    needs_masks(parts, names.values())
    for name in _IDS:
        if name in parts and parts[name].dtype != torch.int32:  # of unsigned ones torch knows little
            parts[name] = parts[name].long()
    for name in (*OF_RESPONSES, "advantages", "rewards"):
        if name in parts and not parts[name].is_floating_point():
            parts[name] = parts[name].double()
    mask, attention = parts.pop("response_mask").bool(), parts.pop("attention_mask").bool()
    responses, ids, prompts = parts.pop("responses", None), parts.pop("input_ids", None), parts.get("prompts")
    # How many tokens a response has: what most of the ids, the columns and the mask say.
    said = [parts[name].shape[1] for name in OF_RESPONSES if name in parts and parts[name].dim() == 2]
    width = max(set(said), key=said.count) if said else mask.shape[1]
    width = width if responses is None else responses.shape[1]
    if not width:
        raise BatchError("its responses are 0 tokens wide")
    whole = attention.shape[1]
    if mask.shape[1] > width and mask.shape[1] == whole:
        mask = mask[:, -width:]  # a mask of prompt and response
    if ids is None and responses is not None:
        ids = join(prompts if prompts is not None and prompts.shape[1] + width == whole else None, responses)

    # Columns that are not as wide as they must be; such columns of the response are taken out.
    wrong = {}
    wide = f"the responses are {width} wide"
    if mask.shape[1] != width:
        wrong["response_mask"] = (mask.shape[1], wide)
    for name in (*OF_RESPONSES, "advantages"):
        if name in parts and parts[name].dim() == 2 and parts[name].shape[1] != width:
            wrong[name] = (parts.pop(name).shape[1], wide)
    if whole < width:
        wrong["attention_mask"] = (whole, f"the responses alone are {width} wide")
    for name, value in (("input_ids", ids), ("position_ids", parts.get("position_ids"))):
        if value is not None and value.shape[-1] != whole:
            wrong[name if name in names else "responses"] = (value.shape[-1], f"the attention mask is {whole} wide")
    if prompts is not None and responses is not None and prompts.shape[1] + width != whole and "input_ids" in names:
        wrong["prompts"] = (prompts.shape[1], f"the attention mask is {whole} wide and the responses are {width}")
    findings = [
        finding
        for name, (has, but) in wrong.items()
        for finding in found_rows(
            "lengths", names.get(name, name), range(len(mask)), f"is {has} tokens wide, and {but}", _LENGTHS
        )
    ]

    if mask.shape[1] != width:
        mask = mask.new_zeros(len(mask), width)
    attended = attention[:, -width:] if whole >= width else mask
    if ids is not None and (ids.shape != attention.shape or whole < width):
        ids = None
    if responses is None and ids is not None:
        responses = ids[:, -width:]
    return TokenRows(names, start, ids, attention, responses, attended, mask, parts, findings)


def _check_kind(name: str, column: str, value: Any) -> Any:
    """Return a tensor that has the dimensions that it must have, and whole numbers where it must.

    Raises:
        BatchError: It hasn't.
    """
    if getattr(value, "is_nested", False):
        raise BatchError(f"the column {column} is a nested tensor; pad it: torch.nested.to_padded_tensor")
    dimensions = _DIMENSIONS.get(name, (2,))
    if value.dim() not in dimensions:
        wanted = " or ".join(plural(one, "dimension") for one in dimensions)
        raise BatchError(
            f"the column {column} has the shape {tuple(value.shape)}; {name} has {wanted}: rows"
            + (" and tokens" if 2 in dimensions else "")
        )
    if name in _IDS and value.is_floating_point():
        raise BatchError(f"the column {column} is {str(value.dtype).removeprefix('torch.')}; {name} are whole numbers")
    return value
