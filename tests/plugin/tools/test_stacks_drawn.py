"""Stacks that nobody chose: what is drawn together, and what a record says of them."""

from __future__ import annotations

import datetime
import random
from types import SimpleNamespace

import pytest
from packaging.specifiers import SpecifierSet

NOT_JUDGED = {
    "verl 0.4.0 can't be driven this way: AssertionError: tokenizer or processor must be provided": "verl 0.4.0",
    "needs verl.experimental, which verl 0.4.0 doesn't have": "verl 0.4.0",
    "gives GRPOTrainer the mask of a rollout, which trl 0.27.2 doesn't have": "trl 0.27.2",
    "no golden of the miniature-step for this key": "others",
}
NOT_HERE = (
    "needs a GPU, this run is --hw=cpu",
    "needs wsl2, this is Linux",
    "prime-rl is not installed: from source: https://github.com/PrimeIntellect-ai/prime-rl",
)


def test_a_release_that_the_engine_does_not_take_is_drawn_again(script, monkeypatch):
    module, asked = script("stack_locks"), []

    def compile_for(request, packages, overrides, *more):
        asked.append(request.day)
        if len(asked) == 1:
            raise module.Unbuildable("no release of then")
        return f"transformers=={ {2: '4.49.0', 3: '5.2.0'}[len(asked)] }\n"

    monkeypatch.setattr(module, "_compile", compile_for)
    taken = SpecifierSet(">=4.56,<6,!=5.0.*")
    pin = module._draw_release("transformers", datetime.date(2026, 6, 1), random.Random(1), taken)
    assert pin == "transformers==5.2.0"
    assert len(set(asked)) == 3


def test_releases_that_nothing_satisfies_together_are_drawn_again(script, monkeypatch, tmp_path, capsys):
    stacks, drawn, ran = script("stacks"), [], []
    unbuildable = script("building").Unbuildable

    def resolve(request):
        drawn.append(request)
        if len(drawn) < 3:
            raise unbuildable(f"{request} can't be had")
        return f"# {request}\n"

    monkeypatch.setattr(stacks, "ENVIRONMENTS", tmp_path)
    monkeypatch.setattr(stacks.stack_locks, "draw", lambda seed: f"of {seed}")
    monkeypatch.setattr(stacks.stack_locks, "resolve", resolve)
    monkeypatch.setattr(stacks, "run_and_keep", lambda path: ran.append(path.read_text()) or True)
    assert stacks.run_drawn("7")
    assert stacks.run_drawn("7"), "the lock that is there is run again"
    assert ran == ["# of 7-3\n"] * 2
    assert drawn == ["of 7", "of 7-2", "of 7-3"]
    assert "drawn-7-2: of 7-2 can't be had" in capsys.readouterr().out

    drawn.clear()
    monkeypatch.setattr(stacks, "_DRAWS", 2)
    assert not stacks.run_drawn("8")
    assert drawn == ["of 8", "of 8-2"]


@pytest.fixture
def tests():
    """Tests as a record has them: two judged, then those that were not."""
    reasons = [("held", ""), ("absent", ""), ("blocked", "verl is broken: x"), ("passed", "")]
    reasons += [("unavailable", reason) for reason in (*NOT_JUDGED, *NOT_HERE)]
    return [
        SimpleNamespace(
            word=word, message="", extra=SimpleNamespace(failure=None if word == "passed" else "a", note=note)
        )
        for word, note in reasons
    ]


def test_judged_are_counted_of_those_that_can_run_here(script, tests):
    judged = script("stacks").count_judged(tests)
    assert judged.word == f"2 of {2 + len(NOT_JUDGED)}"
    assert judged.note == "verl 0.4.0 (2), trl 0.27.2 (1), others (1)"
    assert not judged.bad
