"""Check that a policy's loss, or its advantages, depends on nothing but the trained tokens.

``gradient_of(loss, expected)`` and ``advantages_of(function, expected)`` compare with a closed form in float64 at once;
``.unchanged_by(…)`` of what they return splits, pads, packs and reorders the batch and compares again.

PYTEST_DONT_REWRITE: the messages are complete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_rlregress.agreement.policy_batch import CHANGES, PolicyBatch, drawn_batch, places, taken, under_mask

if TYPE_CHECKING:
    import torch

    PerToken = Callable[["PolicyBatch"], torch.Tensor]

#: How many times the measured rounding two results may be apart: sums in another order, over a few dozen tokens.
TIMES_FLOOR = 8


def _weights(name: str) -> PerToken:
    """Return the gradient of a policy's loss before any update: minus the advantage, times a token's weight."""

    def gradient(batch: PolicyBatch) -> torch.Tensor:
        tokens = {
            "token-mean": batch.batch_tokens,
            "sequence-mean": batch.batch_sequences * batch.mask.sum(-1, keepdim=True),
            "sequence-sum": batch.batch_sequences,
        }
        return -batch.advantages.double() * batch.mask / tokens[name]

    return gradient


#: How a loss weighs tokens: each trained token of the batch alike; each sequence alike, and its tokens alike; or by the
#: sum over a sequence's tokens, mean over sequences.
WEIGHTS: Mapping[str, PerToken] = {name: _weights(name) for name in ("token-mean", "sequence-mean", "sequence-sum")}


def gradient_of(loss: PerToken, expected: str | PerToken, batch: PolicyBatch | None = None) -> Invariance:
    """Check a policy's loss at learning rate 0, and return what checks that it depends on the trained tokens alone.

    The check: with old log-probabilities equal to the new ones the ratio is 1, and the gradient with respect to each
    log-probability is minus the advantage times the token's weight.

    Args:
        loss: Takes a ``PolicyBatch``, gives a scalar tensor. The gradients of micro batches are added up, as
            ``backward()`` does: a loss whose trainer divides it by their number divides by ``batch.parts``.
        expected: "token-mean", "sequence-mean" (mean over tokens, then over sequences) or "sequence-sum" (sum over
            tokens, mean over sequences); or a function of a ``PolicyBatch`` that gives the gradient at learning rate 0
            in float64, ``[rows, tokens]``, by a formula of its own.
        batch: To use instead of ``drawn_batch()``; float32, at least 4 rows of unequal length, with padding.

    Raises:
        AssertionError: The gradient is zero, or not the expected one; says by how much.
        ValueError: ``expected`` is none of the names.
    """
    __tracebackhide__ = True

    def gradient(part: PolicyBatch) -> torch.Tensor:
        __tracebackhide__ = True
        import torch

        log_probs = part.log_probs.detach().clone().requires_grad_()
        value = loss(replace(part, log_probs=log_probs))
        if not value.requires_grad:
            raise AssertionError("the loss does not depend on the log-probabilities: its gradient is zero")
        if not torch.isfinite(value):
            raise AssertionError(f"the loss is {value.item()}")
        (found,) = torch.autograd.grad(value, log_probs, allow_unused=True)
        return torch.zeros_like(log_probs) if found is None else found

    return _checked("gradient", gradient, expected, batch)


def advantages_of(function: PerToken, expected: PerToken, batch: PolicyBatch | None = None) -> Invariance:
    """Check advantages against a closed form, and return what checks that they depend on the trained tokens alone.

    Args:
        function: Takes a ``PolicyBatch``, of which it uses ``rewards``, ``mask`` and ``groups``; gives
            ``[rows, tokens]``. What it gives for tokens that are not trained on does not count.
        expected: The same in float64, by a formula of its own.
        batch: As for ``gradient_of``; the two halves of its rows hold whole groups.

    Raises:
        AssertionError: All advantages are zero, or not the expected ones; says by how much.
    """
    __tracebackhide__ = True
    import torch

    def trained(part: PolicyBatch) -> torch.Tensor:
        __tracebackhide__ = True
        return torch.where(part.mask.bool(), function(part), 0.0)

    return _checked("advantage", trained, expected, batch, left_out=("dynamic-batches", "packing"))


def _checked(
    what: str, function: PerToken, expected: str | PerToken, batch: PolicyBatch | None, left_out: Sequence[str] = ()
) -> Invariance:
    __tracebackhide__ = True
    if isinstance(expected, str):
        if expected not in WEIGHTS:
            raise ValueError(f"no weights {expected!r}; there are {', '.join(WEIGHTS)}, or a function of your own")
        expected = WEIGHTS[expected]
    checked = Invariance(
        what, function, batch or drawn_batch(), tuple(name for name in CHANGES if name not in left_out)
    )
    said = checked.difference(function(checked.on_policy), expected(checked.on_policy), "the closed form's")
    if said:
        raise AssertionError(f"at learning rate 0 {said}" if what == "gradient" else said)
    return checked


@dataclass(frozen=True)
class Invariance:
    """A function that gives a number for each token; ``unchanged_by`` checks that it stays when the batch is recast."""

    what: str
    function: PerToken
    batch: PolicyBatch
    applicable: Sequence[str] = tuple(CHANGES)

    def unchanged_by(self, *names: str) -> None:
        """Recast the batch, on policy and off policy, and check that each token's number stays.

        Without names all that apply: advantages need whole groups, so neither packing nor dynamic batches.

        ``micro-batches``      two of as many rows
        ``dynamic-batches``    two of unequally many rows
        ``padding``            five tokens wider
        ``packing``            all sequences in one row, without padding
        ``row-order``          the last row first
        ``masked-values``      other numbers where the mask is 0
        ``masked-non-finite``  NaN and infinity where the mask is 0

        Raises:
            AssertionError: Says which, and by how much; for each that changes it.
            ValueError: A name is none of these.
        """
        __tracebackhide__ = True
        said = [sentence for name in names or self.applicable if (sentence := self.change(name))]
        if said:
            raise AssertionError("; ".join(said))

    def change(self, name: str) -> str:
        """Return the sentence with which ``unchanged_by`` would fail, "" if it would not."""
        __tracebackhide__ = True
        if name not in CHANGES:
            raise ValueError(f"no change {name!r}; there are {', '.join(CHANGES)}")
        told, recast, garbage = CHANGES[name]
        origins = recast(places(self.batch), self.batch)
        for batch in (self.on_policy, self.batch):
            for value in garbage or [0.0]:
                given = batch.with_floats(under_mask(batch, value)) if garbage else batch
                try:
                    said = self.difference(self._joined(given, origins), self.function(batch), "the whole batch's")
                except AssertionError as error:  # the function itself refuses
                    said = str(error)
                if said:
                    return f"{told.format(value)} {said}"
        return ""

    @cached_property
    def on_policy(self) -> PolicyBatch:
        """The batch at learning rate 0: sampled by the policy that is trained."""
        return replace(self.batch, old_log_probs=self.batch.log_probs)

    @cached_property
    def floor(self) -> float:
        """Measured rounding: how far float32 is from float64, of the largest number; one float32 step at least.

        Raises:
            AssertionError: They differ in the upper half of the digits: in such a precision nothing can be compared.
        """
        __tracebackhide__ = True
        import torch

        step = float(torch.finfo(torch.float32).eps)
        floor = step
        for batch in (self.on_policy, self.batch):
            exact = self.function(batch.with_floats(torch.Tensor.double)).double()
            if exact.any():
                floor = max(floor, float((self.function(batch) - exact).abs().max() / exact.abs().max()))
        if not floor < step**0.5:
            raise AssertionError(f"the {self.what} is {floor:.2g} off in float32: it is not computed in float32")
        return floor

    def difference(self, found: torch.Tensor, wanted: torch.Tensor, whose: str) -> str:
        """Return in a sentence how ``found`` differs from ``wanted``, "" if by no more than rounding."""
        __tracebackhide__ = True
        import torch

        found, wanted = found.double(), wanted.double()
        largest = wanted.abs().max()
        if not (odd := ~torch.isfinite(found)).any() and not largest > 0:
            return f"the {self.what} of {whose[:-2]} is zero: nothing can be compared"
        if odd.any():
            return f"the {self.what} is {found[odd][0].item()} for {int(odd.sum())} of {odd.numel()} tokens"
        if not found.any():
            return f"the {self.what} is zero everywhere"
        tolerance = TIMES_FLOOR * self.floor * largest
        if (found - wanted).abs().max() <= tolerance:
            return ""
        times = (found * wanted).sum() / wanted.square().sum()
        if (found - times * wanted).abs().max() <= tolerance * times.abs():
            return f"the {self.what} is {times.item():.3g} times {whose}"
        row, token = divmod(int((found - wanted).abs().argmax()), wanted.shape[1])
        one, other = found[row, token].item(), wanted[row, token].item()
        compared = f"{one / other:.3g} times {whose}" if other else f"{one:.3g}, {whose} is 0"
        return f"the {self.what} of row {row}, token {token} is {compared}"

    def _joined(self, batch: PolicyBatch, origins: Sequence[torch.Tensor]) -> torch.Tensor:
        """Join what the function gives for the parts, each token where it is in the whole batch."""
        __tracebackhide__ = True
        whole = 0.0 * self.batch.log_probs.double().flatten()
        for origin in origins:
            found = self.function(replace(taken(batch, origin), parts=len(origins))).double()
            inside = origin >= 0
            if found[~inside].any():
                raise AssertionError(f"the {self.what} of padding is {found[~inside].abs().max():.3g}")
            whole = whole.index_add(0, origin[inside], found[inside])
        return whole.reshape(self.batch.mask.shape)
