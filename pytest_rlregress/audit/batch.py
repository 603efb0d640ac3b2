"""A batch, or some rows of it, in one form whatever trainer it is of: ids, masks, and columns of the response."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_rlregress.audit.columns import LOG_PROBS, OF_RESPONSES, needs_masks
from pytest_rlregress.audit.columns import BatchError as BatchError
from pytest_rlregress.audit.findings import Finding, found_rows
from pytest_rlregress.util.text import plural

if TYPE_CHECKING:
    import torch

_IDS = ("input_ids", "prompts", "responses", "position_ids")
_DIMENSIONS = {"rewards": (1, 2), "advantages": (1, 2), "position_ids": (2, 3)}
_LENGTHS = "keep one number for each token of the response in every column, and cut or pad all of them together"


@dataclass
class TokenRows:
    """Rows of a batch.

    Attributes:
        ids: Prompt and response, ``(rows, all tokens)``; None where there are none.
        attention: As ``ids``, bool.
        responses: ``(rows, tokens)``, the last of ``ids``; None where there are none.
        attended: As ``responses``, bool: no padding.
        mask: As ``responses``, bool: trained on.
        columns: The other columns, by the names used here; those of the response are as wide as ``mask``.
        findings: What was found wrong with their lengths; such a column is not in ``columns``.
    """

    ids: torch.Tensor | None
    attention: torch.Tensor | None
    responses: torch.Tensor | None
    attended: torch.Tensor
    mask: torch.Tensor
    columns: dict[str, Any]
    findings: list[Finding]

    def log_probs(self) -> dict[str, torch.Tensor]:
        """Return the columns of log-probabilities."""
        return {name: self.columns[name] for name in LOG_PROBS if name in self.columns}


def token_rows(values: Mapping[str, Any], names: Mapping[str, str]) -> TokenRows:
    """Bring rows into this form.

    Args:
        values: Tensors by the names used here.
        names: What the batch calls each of them.

    Raises:
        BatchError: A column has another shape or dtype than it can have.
    """
    import torch

    def join(left: torch.Tensor | None, right: torch.Tensor) -> torch.Tensor:
        return right if left is None else torch.cat([left.to(right.dtype), right], dim=1)

    parts = {name: _check_kind(name, names.get(name, name), value) for name, value in values.items()}
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
    return TokenRows(ids, attention, responses, attended, mask, parts, findings)


def _check_kind(name: str, column: str, value: Any) -> Any:
    """Return a tensor that has the dimensions that it must have, and whole numbers where it must.

    Raises:
        BatchError: It hasn't.
    """
    if not hasattr(value, "dim") or name == "uid":
        return value
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
