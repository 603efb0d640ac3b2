"""Whether two sides' greedy completions, and their log-probabilities, are the same but for rounding.

PYTEST_DONT_REWRITE: the messages are complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from pytest_rlregress.agreement.causes import FACTOR, RESOLUTION
from pytest_rlregress.agreement.completions import Completion


def check_logprobs_close(
    a: Sequence[Completion],
    b: Sequence[Completion],
    names: tuple[str, str] = ("hf", "vllm"),
    *,
    atol: float | None = None,
) -> None:
    """Assert that two lists of greedy completions of the same prompts are the same but for rounding.

    Token by token the log-probabilities may be ``atol`` apart. Where the tokens differ, each side must have given its
    own token and the other's log-probabilities that are no more than twice that apart: a tie that rounding decides;
    what follows of that completion is not compared. Without ``top_logprobs`` a side says nothing of the other's token.

    Args:
        a: Completions of one side, from ``generate_greedy(…, top_logprobs=5)``.
        b: Those of the other side.
        names: What the message calls the sides.
        atol: In nats. Default: 8 times as far as two ways through the model of ``hf_runner`` were apart at any of
            these tokens; one side's completions are from there, then.

    Raises:
        AssertionError: They come apart: the first place, with what each side gave either token.
        ValueError: They are not of the same prompts, have no token, or nothing says how far apart they may be.
    """
    __tracebackhide__ = True
    if [one.prompt_ids for one in a] != [one.prompt_ids for one in b]:
        raise ValueError(f"{len(a)} completions of {names[0]} and {len(b)} of {names[1]} are not of the same prompts")
    if not any(one.ids for one in [*a, *b]):
        raise ValueError(f"no completion of {names[0]} or {names[1]} has a token: there is nothing to compare")
    allowed = _measured([*a, *b]) if atol is None else atol
    for number, (one, other) in enumerate(zip(a, b, strict=True)):
        if found := _apart(one, other, names, allowed):
            raise AssertionError(f"prompt {number}, {found}")


def _measured(completions: Sequence[Completion]) -> float:
    """As far as a token's log-probabilities may be apart, in nats.

    Measured in float32 on a CPU: vLLM and transformers up to 1.5 times as far as the model's own two ways.
    """
    __tracebackhide__ = True
    rounding = [gap for one in completions for gap in one.rounding or ()]
    if not rounding:
        raise ValueError("neither side is of hf_runner, whose completions say what rounding makes: give atol= in nats")
    return FACTOR * max(*rounding, RESOLUTION)


def _apart(one: Completion, other: Completion, names: tuple[str, str], allowed: float) -> str | None:
    """Return the first place where two completions come apart, in words."""
    for place, (mine, yours) in enumerate(zip_longest(one.ids, other.ids)):
        where = f"token {place}"
        if mine is None or yours is None:
            short, long, name = (one, other, names[0]) if mine is None else (other, one, names[1])
            went_on = f"the other side went on with {_token(long, place)}"
            return f"{where}: {name} ended before it ({short.finish_reason}), {went_on}"
        if mine != yours:
            if _tie(one, place, yours, allowed) and _tie(other, place, mine, allowed):
                return None
            return (
                f"{where}: {names[0]} drew {_token(one, place)} and gave {names[1]}'s {_given(one, place, yours)}; "
                f"{names[1]} drew {_token(other, place)} and gave {names[0]}'s {_given(other, place, mine)}: more "
                f"than a tie, which {2 * allowed:.2g} nats would be"
            )
        gap = abs(one.logprobs[place] - other.logprobs[place])
        if not gap <= allowed:
            return (
                f"{where}, {_token(one, place)} of {names[0]}: {names[1]} gave it {other.logprobs[place]:.6f}, "
                f"{gap:.2g} nats apart where rounding makes up to {allowed:.2g}"
            )
    return None


def _token(side: Completion, place: int) -> str:
    """Return a token that a side drew: its id, text and log-probability."""
    text = side.text_of([side.ids[place]])
    return f"{side.ids[place]}{'' if text is None else f' {text!r}'} at {side.logprobs[place]:.6f}"


def _given(side: Completion, place: int, token: int) -> str:
    """Return the log-probability that a side gave a token which it did not draw."""
    if side.top_logprobs is None:
        return "token something unknown: without top_logprobs= nothing is said of it"
    given = side.top_logprobs[place].get(token)
    return f"token {f'less than its {len(side.top_logprobs[place])} best' if given is None else f'{given:.6f}'}"


def _tie(side: Completion, place: int, token: int, allowed: float) -> bool:
    """Return whether a side gave a token as much as its own, but for rounding."""
    given = side.top_logprobs[place].get(token) if side.top_logprobs else None
    return given is not None and abs(side.logprobs[place] - given) <= 2 * allowed
