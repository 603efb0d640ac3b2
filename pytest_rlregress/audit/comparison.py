"""How far two columns of log-probabilities are apart, over all pieces of a batch, and whether they are of one text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_rlregress.audit import checks
from pytest_rlregress.audit.batch import TokenRows
from pytest_rlregress.audit.findings import Finding, Place

#: Fewer tokens than that are too few to tell what is unrelated from chance.
_TOKENS = 64
_COLUMNS = ("old_log_probs", "rollout_log_probs")


@dataclass
class ColumnComparison:
    """Sums of |difference| between the trainer's log-probabilities and the engine's, over trained tokens.

    Attributes:
        gap: As they are, over ``tokens``.
        apart: One token apart, over ``pairs``.
        largest: The largest difference, at ``place``.
    """

    gap: float = 0.0
    tokens: int = 0
    apart: float = 0.0
    pairs: int = 0
    largest: float = 0.0
    place: Place | None = None

    def add(self, rows: TokenRows, start: int) -> None:
        """Add rows, the first of which is the batch's row ``start``."""
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
            self.largest, self.place = float(difference[row, token]), Place(start + row, token)

    def notes(self, names: Mapping[str, str]) -> list[str]:
        """Return the gap, in a sentence."""
        if not self.tokens:
            return []
        one, other = (names.get(name, name) for name in _COLUMNS)
        mean = f"{one} and {other} are {self.gap / self.tokens:.3g} nats a token apart"
        if self.place is None:
            return [mean]
        return [f"{mean}, at most {self.largest:.3g} (row {self.place.row}, token {self.place.token})"]

    def unrelated(self, names: Mapping[str, str]) -> list[Finding]:
        """Return a finding where the columns are no nearer to each other than each to its neighbour's tokens."""
        if self.place is None or self.pairs < _TOKENS:
            return []
        gap, apart = self.gap / self.tokens, self.apart / self.pairs
        if gap <= 1e-3 or gap * 2 <= apart or math.isnan(gap):
            return []
        one, other = (names.get(name, name) for name in _COLUMNS)
        what = (
            f"is {gap:.3g} nats a token away from {other}, and {apart:.3g} from the same shifted by a token: the two "
            "are not of the same tokens, or not of the same weights"
        )
        instead = "look whether rows of one column were reordered, and whether the engine has the trainer's weights"
        return [Finding("shifted", one, what, instead, 1, 0, (self.place,))]
