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


@dataclass
class _Pair:
    """Sums of |difference| over trained tokens, as they are and one token apart, and the largest."""

    gap: float = 0.0
    tokens: int = 0
    apart: float = 0.0
    pairs: int = 0
    largest: float = 0.0
    place: Place | None = None


class ColumnComparison:
    """Of the log-probabilities that a trainer has of the same tokens, each two columns but the reference's."""

    def __init__(self) -> None:
        self._pair = _Pair()
        self._columns: tuple[str, str] | None = None

    def add(self, rows: TokenRows, start: int) -> None:
        """Add rows, the first of which is the batch's row ``start``."""
        columns = {name: value for name, value in rows.log_probs().items() if name != "ref_log_prob"}
        if len(columns) < 2:
            return
        self._columns = ("old_log_probs", "rollout_log_probs")
        one, other = columns["old_log_probs"], columns["rollout_log_probs"]
        pair, mask = self._pair, rows.mask
        sums, counts = checks.gaps(one, other, mask)
        both = mask[:, 1:] & mask[:, :-1]
        apart, pairs = checks.gaps(one[:, 1:], other[:, :-1], both)
        pair.gap += float(sums.double().sum())
        pair.tokens += int(counts.sum())
        pair.apart += float(apart.double().sum())
        pair.pairs += int(pairs.sum())
        difference = (one - other).abs().masked_fill(~mask, 0).nan_to_num(0, 0, 0)
        largest = int(difference.argmax()) if difference.numel() else 0
        if difference.numel() and float(difference.flatten()[largest]) > pair.largest:
            row, token = divmod(largest, mask.shape[1])
            pair.largest, pair.place = float(difference[row, token]), Place(start + row, token)

    def notes(self, names: Mapping[str, str]) -> list[str]:
        """The gap, in a sentence."""
        pair = self._pair
        if self._columns is None or not pair.tokens:
            return []
        one, other = (names.get(name, name) for name in self._columns)
        mean = f"{one} and {other} are {pair.gap / pair.tokens:.3g} nats a token apart"
        if pair.place is None:
            return [mean]
        return [f"{mean}, at most {pair.largest:.3g} (row {pair.place.row}, token {pair.place.token})"]

    def unrelated(self, names: Mapping[str, str]) -> list[Finding]:
        """A finding where two columns are no nearer to each other than each to its neighbour's tokens."""
        pair = self._pair
        if self._columns is None or pair.place is None or pair.pairs < _TOKENS:
            return []
        gap, apart = pair.gap / pair.tokens, pair.apart / pair.pairs
        if gap <= 1e-3 or gap * 2 <= apart or math.isnan(gap):
            return []
        one, other = (names.get(name, name) for name in self._columns)
        what = (
            f"is {gap:.3g} nats a token away from {other}, and {apart:.3g} from the same shifted by a token: the two "
            "are not of the same tokens, or not of the same weights"
        )
        instead = "look whether rows of one column were reordered, and whether the engine has the trainer's weights"
        return [Finding("shifted", one, what, instead, 1, 0, (pair.place,))]
