"""A batch, or some rows of it, in one form whatever trainer it is of: ids, masks, and columns of the response."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_rlregress.audit.columns import LOG_PROBS, OF_RESPONSES, checked_kind, needs_masks
from pytest_rlregress.audit.columns import BatchError as BatchError
from pytest_rlregress.audit.findings import Finding, Place, found_rows

if TYPE_CHECKING:
    import torch

_IDS = ("input_ids", "prompts", "responses", "position_ids")
_LENGTHS = "keep one number for each token of the response in every column, and cut or pad all of them together"


@dataclass(frozen=True)
class Ragged:
    """Rows of differing length, without padding: the values of all rows, and how many each row has."""

    values: torch.Tensor
    lengths: torch.Tensor

    def padded(self, width: int, left: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Padded with 0 to ``(rows, width)``, and a mask of what is no padding; what is longer is cut."""
        import torch

        at = torch.arange(width)
        mask = at < self.lengths[:, None]
        source = (self.lengths.cumsum(0) - self.lengths)[:, None] + at
        found = self.values.new_zeros(mask.shape)
        found[mask] = self.values[source[mask]]
        if left:
            back = (at - (width - self.lengths.clamp(max=width))[:, None]) % max(width, 1)
            found, mask = found.gather(1, back), mask.gather(1, back)
        return found, mask


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
    findings: list[Finding] = field(default_factory=list)

    def log_probs(self) -> dict[str, torch.Tensor]:
        """The columns of log-probabilities."""
        return {name: self.columns[name] for name in LOG_PROBS if name in self.columns}


def token_rows(values: Mapping[str, Any], names: Mapping[str, str]) -> TokenRows:
    """Bring rows into this form.

    Args:
        values: Tensors, ``Ragged`` or lists, by the names used here.
        names: What the batch calls each of them.

    Raises:
        BatchError: A column has another shape or dtype than it can have.
    """
    import torch

    parts = dict(values)
    findings = _pad(parts, names)
    _check_kinds(parts, names)
    if "completion_mask" in parts:  # TRL: padding and end, of the completion alone; what tools said is apart
        completion = parts.pop("completion_mask").bool()
        parts.setdefault(
            "response_mask", completion & parts["tool_mask"].bool() if "tool_mask" in parts else completion
        )
        parts.setdefault("attention_mask", _joined(parts.get("prompt_mask"), completion))
    needs_masks(parts, names.values())
    for name in _IDS:
        if name in parts and parts[name].dtype != torch.int32:  # of unsigned ones torch knows little
            parts[name] = parts[name].long()
    for name in (*OF_RESPONSES, "advantages", "rewards"):
        if name in parts and not parts[name].is_floating_point():
            parts[name] = parts[name].double()
    mask, attention = parts.pop("response_mask").bool(), parts.pop("attention_mask").bool()
    responses, ids = parts.pop("responses", None), parts.pop("input_ids", None)
    width = _response_width(parts, responses, mask)
    if not width:
        raise BatchError("its responses are 0 tokens wide")
    if mask.shape[1] > width and mask.shape[1] == attention.shape[1]:
        mask = mask[:, -width:]  # a mask of prompt and response
    if ids is None and responses is not None:
        prompts = parts.get("prompts")
        whole = prompts is not None and prompts.shape[1] + responses.shape[1] == attention.shape[1]
        ids = _joined(prompts if whole else None, responses)
    findings += _widths(parts, names, width, mask, attention, responses, ids)
    if mask.shape[1] != width:
        mask = mask.new_zeros(len(mask), width)
    attended = attention[:, -width:] if attention.shape[1] >= width else mask
    if ids is not None and (ids.shape != attention.shape or ids.shape[1] < width):
        ids = None
    if responses is not None and responses.shape[1] != width:
        responses = None
    if responses is None and ids is not None:
        responses = ids[:, -width:]
    if "own_lengths" in parts:
        mask = mask & parts.pop("own_lengths")
    return TokenRows(ids, attention, responses, attended, mask, parts, findings)


def _joined(left: torch.Tensor | None, right: torch.Tensor) -> torch.Tensor:
    import torch

    return right if left is None else torch.cat([left.to(right.dtype), right], dim=1)


def _response_width(parts: Mapping[str, Any], responses: torch.Tensor | None, mask: torch.Tensor) -> int:
    """How many tokens a response has: what most say of the ids, the mask and the columns."""
    if responses is not None:
        return int(responses.shape[1])
    said: list[int] = [parts[name].shape[1] for name in OF_RESPONSES if name in parts and parts[name].dim() == 2]
    return max(set(said), key=said.count) if said else int(mask.shape[1])


def _widths(
    parts: dict[str, Any],
    names: Mapping[str, str],
    width: int,
    mask: torch.Tensor,
    attention: torch.Tensor,
    responses: torch.Tensor | None,
    ids: torch.Tensor | None,
) -> list[Finding]:
    """Columns that are not as wide as they must be; such columns of the response are taken out."""
    wrong = {}
    if mask.shape[1] != width:
        wrong["response_mask"] = (mask.shape[1], f"the responses are {width} wide")
    for name in (*OF_RESPONSES, "advantages"):
        if name in parts and parts[name].dim() == 2 and parts[name].shape[1] != width:
            wrong[name] = (parts.pop(name).shape[1], f"the responses are {width} wide")
    whole = attention.shape[1]
    if whole < width:
        wrong["attention_mask"] = (whole, f"the responses alone are {width} wide")
    for name, value in (("input_ids", ids), ("position_ids", parts.get("position_ids"))):
        if value is not None and value.shape[-1] != whole:
            wrong[name if name in names else "responses"] = (value.shape[-1], f"the attention mask is {whole} wide")
    prompts = parts.get("prompts")
    if prompts is not None and responses is not None and prompts.shape[1] + width != whole and "input_ids" in names:
        wrong["prompts"] = (prompts.shape[1], f"the attention mask is {whole} wide and the responses are {width}")
    rows = list(range(len(mask)))
    return [
        finding
        for name, (has, but) in wrong.items()
        for finding in found_rows("lengths", names.get(name, name), rows, f"is {has} tokens wide, and {but}", _LENGTHS)
    ]


def _pad(parts: dict[str, Any], names: Mapping[str, str]) -> list[Finding]:
    """Pad ragged columns in place; the lengths are the masks. Rows whose columns differ are findings."""
    for name in ("input_ids", "attention_mask", "position_ids"):  # of prompt and response in one: not padded apart
        if isinstance(parts.get(name), Ragged):
            del parts[name]
    ragged = {name: value for name, value in parts.items() if isinstance(value, Ragged)}
    if not ragged:
        return []
    lead = next(
        (name for name in ("responses", "completion_mask", "response_mask", *OF_RESPONSES) if name in ragged), ""
    )
    findings: list[Finding] = []
    for name in ("prompts", "prompt_mask"):
        if name in ragged:
            width = int(ragged[name].lengths.max())
            parts[name], is_token = ragged[name].padded(width, left=True)
            parts.setdefault("prompt_mask", is_token)
    if not lead:
        return findings
    lengths, width = ragged[lead].lengths, int(ragged[lead].lengths.max())
    enough = None
    for name in [name for name in ragged if name not in ("prompts", "prompt_mask")]:
        parts[name], is_token = ragged[name].padded(width)
        enough = is_token if enough is None else enough & is_token
        own = ragged[name].lengths
        findings += found_rows(
            "lengths",
            names[name],
            (own != lengths).nonzero()[:, 0].tolist(),
            f"has not as many tokens as {names[lead]} in its row",
            _LENGTHS,
            lambda row, own=own: Place(row, None, f"{int(own[row])}, and {int(lengths[row])} in {names[lead]}"),  # type: ignore[misc]
        )
    parts["own_lengths"] = enough
    parts.setdefault("completion_mask", ragged[lead].padded(width)[1])
    return findings


def _check_kinds(parts: dict[str, Any], names: Mapping[str, str]) -> None:
    for name, value in parts.items():
        if not hasattr(value, "dim") or name in ("uid", "own_lengths"):
            continue
        dims = {"rewards": (1, 2), "advantages": (1, 2), "position_ids": (2, 3)}.get(name, (2,))
        checked_kind(name, names.get(name, name), value, dims, name in _IDS)
