"""Records and events of rehearsals, as small as they can be."""

from __future__ import annotations

from dataclasses import replace

from pytest_rlregress.commands.rehearse.record import RehearsalRecord, make_advantages, to_plain

PROMPTS = ((1, 2), (1, 2), (3, 4), (3, 4))
COMPLETIONS = ((5, 6), (7, 9), (8, 9), (5, 5))
REWARDS = ((0.0, 1.0), (1.0, 0.0))


def make_record(number=1, **changed):
    """Make the record of a sound step: two prompts of two completions, 9 ends one, two tokens at most."""
    record = RehearsalRecord(
        number=number,
        not_seen={"reference": "beta is 0"},
        expected_prompts=PROMPTS,
        completions=COMPLETIONS,
        longest=2,
        ending_ids=frozenset({9}),
        rewards=REWARDS,
        own_rewards=REWARDS,
        prompts=PROMPTS,
        trained_tokens=COMPLETIONS,
        advantages=tuple(make_advantages(REWARDS, "group", 1e-4)),
        wanted=tuple(make_advantages(REWARDS, "group", 1e-4)),
        epsilon=1e-4,
        loss=0.0,
        expected_loss=0.0,
        grad_norm=1.0,
        expected_grad_norm=1.0,
        without_gradient=(),
        unmoved=(),
        update_difference=1e-3,
        stale=(),
        reward_difference=0.0,
        group_size=2,
        group_rows=("a", "a", "b", "b"),
        engine_prompts=PROMPTS,
        engine_completions=COMPLETIONS,
        gap=1e-7,
        floor=1e-7,
        cached_gap=1e-7,
        logprobs=(((-1.0, -2.0), (-1.0, -2.0)),) * 4,
        ratio_difference=0.0,
        second_pass=0.0,
        split_difference=1e-7,
        masked_difference=1e-7,
        direction=1.0,
        learning_rate=1e-5,
        lengths=(2, 2, 2, 2),
        pieces=(("a", "b"), ("c", "."), ("d", ".")),
        texts=("ab", "c.", "d.", "aa"),
    )
    return replace(record, **changed)


def make_events(*records):
    """Make the events of a rehearsal whose steps these are."""
    return [
        *({"kind": "step", "record": to_plain(record)} for record in records),
        {"kind": "trained", "steps": len(records), "seconds": 1.0},
    ]
