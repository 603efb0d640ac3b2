"""What is kept until the last row is read: of each row its group, its reward and a hash of its sample; and how far two
columns of log-probabilities are apart, and whether they are of one text."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_rlregress.audit import checks
from pytest_rlregress.audit.batch import TokenRows
from pytest_rlregress.audit.findings import Finding, Place
from pytest_rlregress.audit.group_checks import as_number

if TYPE_CHECKING:
    import torch

#: A reward of a row is the first of these that there is, before what a KL penalty makes of it.
_REWARDS = ("token_level_scores", "rewards", "token_level_rewards", "advantages")
#: Fewer tokens than that are too few to tell what is unrelated from chance.
_TOKENS = 64
_COLUMNS = ("old_log_probs", "rollout_log_probs")


@dataclass
class SeenRows:
    """Rows so far.

    Attributes:
        names: What the batch calls each column, by the names used here.
        group: Of each row; by its prompt where the batch has no ids of groups.
        rewards: Of each row, with the column that they are of; none where there is no such column.
        samples: Of each row, what is the same for the same tokens.
        lengths: Tokens of each response.
        texts: The response of each row as text; none where there is no such column.
        log_probs: Their sum for each row; none where there is no such column.
        gap: Sum of |difference| between the trainer's log-probabilities and the engine's, over ``tokens`` trained ones.
        apart: The same one token apart, over ``pairs``.
        largest: The largest difference, at ``place``.
    """

    names: Mapping[str, str]
    group: list[Hashable] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    reward_column: str = ""
    samples: list[Hashable] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    gap: float = 0.0
    tokens: int = 0
    apart: float = 0.0
    pairs: int = 0
    largest: float = 0.0
    place: Place | None = None

    def add(self, rows: TokenRows | None, values: Mapping[str, Any]) -> None:
        """Keep what is needed of these rows."""
        self._add_groups(rows, values)
        self._add_rewards(rows, values)
        if isinstance(texts := values.get("texts"), list):
            self.texts += map(str, texts)
        if rows is not None:
            self._add_samples(rows)
            self._add_gap(rows)

    def _add_samples(self, rows: TokenRows) -> None:
        if rows.ids is None or rows.responses is None:
            return
        sampled = rows.attended & ~_before_response(rows)
        self.samples += _hashes(rows.responses, sampled)
        self.lengths += sampled.sum(dim=1).tolist()
        if log_probs := list(rows.log_probs().values()):
            self.log_probs += log_probs[0].masked_fill(~rows.mask, 0).double().sum(dim=1).tolist()

    def _add_groups(self, rows: TokenRows | None, values: Mapping[str, Any]) -> None:
        if "uid" in values:
            uids = values["uid"]
            uids = uids.tolist() if hasattr(uids, "tolist") else uids
            self.group += [one if isinstance(one, int) else str(one) for one in uids]
        elif isinstance(values.get("prompts"), list):  # texts, or conversations
            self.group += map(str, values["prompts"])
        elif rows is not None and rows.ids is not None and rows.attention is not None:
            width = rows.mask.shape[1]
            prompt = rows.attention.clone()
            prompt[:, -width:] &= _before_response(rows)
            if prompt.any():
                self.group += _hashes(rows.ids, prompt)

    def _add_rewards(self, rows: TokenRows | None, values: Mapping[str, Any]) -> None:
        columns = values if rows is None else rows.columns
        name = next((name for name in _REWARDS if name in columns), None)
        if name is None:
            return
        value, self.reward_column = columns[name], self.names[name]
        if isinstance(value, list):
            numbers = map(as_number, value)
            self.rewards += [math.nan if number is None else number for number in numbers]
            return
        if rows is not None and value.shape == rows.mask.shape:
            value = value.masked_fill(~rows.mask, 0)
        if value.dim() == 2:
            value = value.sum(dim=1)
        self.rewards += value.tolist()

    def _add_gap(self, rows: TokenRows) -> None:
        if not {*_COLUMNS} <= rows.columns.keys():
            return
        one, other = (rows.columns[name] for name in _COLUMNS)
        mask = rows.mask
        sums, counts = checks.gaps(one, other, mask)
        apart, pairs = checks.gaps(one[:, 1:], other[:, :-1], mask[:, 1:] & mask[:, :-1])
        self.gap += float(sums.double().sum())
        self.tokens += int(counts.sum())
        self.apart += float(apart.double().sum())
        self.pairs += int(pairs.sum())
        difference = (one - other).abs().masked_fill(~mask, 0).nan_to_num(0, 0, 0)
        largest = int(difference.argmax()) if difference.numel() else 0
        if difference.numel() and float(difference.flatten()[largest]) > self.largest:
            row, token = divmod(largest, mask.shape[1])
            self.largest, self.place = float(difference[row, token]), Place(rows.start + row, token)

    def note_gap(self) -> list[str]:
        """Return the gap, in a sentence; none where the batch doesn't have both columns."""
        if not self.tokens:
            return []
        one, other = (self.names[name] for name in _COLUMNS)
        mean = f"{one} and {other} are {self.gap / self.tokens:.3g} nats a token apart"
        if self.place is None:
            return [mean]
        return [f"{mean}, at most {self.largest:.3g} (row {self.place.row}, token {self.place.token})"]

    def find_unrelated(self) -> list[Finding]:
        """Return a finding where the columns are no nearer to each other than each to its neighbour's tokens."""
        if self.place is None or self.pairs < _TOKENS:
            return []
        gap, apart = self.gap / self.tokens, self.apart / self.pairs
        if gap <= 1e-3 or gap * 2 <= apart or math.isnan(gap):
            return []
        one, other = (self.names[name] for name in _COLUMNS)
        what = (
            f"is {gap:.3g} nats a token away from {other}, and {apart:.3g} from the same shifted by a token: the two "
            "are not of the same tokens, or not of the same weights"
        )
        instead = "look whether rows of one column were reordered, and whether the engine has the trainer's weights"
        return [Finding("shifted", one, what, instead, 1, 0, (self.place,))]


def _before_response(rows: TokenRows) -> torch.Tensor:
    """Find what is before the first trained token, where columns are of prompt and response together, as OpenRLHF's."""
    import torch

    if rows.ids is None:
        return torch.zeros_like(rows.mask)
    if "prompts" in rows.columns or rows.mask.shape[1] < rows.ids.shape[1] - 1:
        return torch.zeros_like(rows.mask)
    return rows.mask.cumsum(dim=1) == 0


def _hashes(ids: torch.Tensor, kept: torch.Tensor) -> list[Hashable]:
    """Hash each row's kept ids in order, wherever they stand."""
    import torch

    # A factor for each place, by the mixing of splitmix64, which wraps around as int64 does here.
    factors = torch.arange(1, ids.shape[1] + 2, device=ids.device) * -7046029254386353131
    factors = (factors ^ (factors >> 30)) * -4658895280553007687
    factors = (factors ^ (factors >> 27)) * -7723592293110705685
    place = kept.cumsum(dim=1)
    hashes = ((ids.long() + 1) * factors[place] * kept).sum(dim=1)
    return [(hashed, count) for hashed, count in zip(hashes.tolist(), place[:, -1].tolist(), strict=True)]
