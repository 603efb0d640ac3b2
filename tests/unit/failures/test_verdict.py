"""The judge, as a table: side and outcome in, verdict out."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from installed import CHECKOUT

from pytest_rlregress.failures.catalogue import Failure
from pytest_rlregress.failures.signatures import Example, Signature
from pytest_rlregress.failures.silent import SilentFailure
from pytest_rlregress.failures.verdicts import Outcome, Rank, Verdict, judge, rank

FAILURE = Failure(
    id="sigfpe-in-gemm",
    title="t",
    seen_on="H20",
    components={},
    cause="c",
    remedies={"any": "r"},
    source=Path("short_column/failure.toml"),
    signatures=(
        Signature(exception="AssertionError", message=Example("column '{name}' of {number} rows")),
        Signature(signal="SIGFPE", frames=(Example("embedding.py:apply"),)),
        Signature(log=Example("cublasLt")),
        Signature(kind="hung", log=Example("400 Bad Request")),
    ),
)
PASSED = Outcome("passed")
SILENT = Outcome(
    "failed",
    exceptions=(f"{SilentFailure.__module__}.{SilentFailure.__name__}", "builtins.AssertionError"),
    message="half of the weights are old",
)
DOCUMENTED = Outcome(
    "failed", exceptions=("builtins.AssertionError", "builtins.Exception"), message="column 'x' of 2 rows"
)
WRAPPED = Outcome("failed", exceptions=DOCUMENTED.exceptions, message="cause: column\n       'x' of 2\n       rows")
OTHER_WORDS = Outcome(
    "failed", exceptions=("builtins.AssertionError", "builtins.Exception"), message="column x is short"
)
OTHER_CLASS = Outcome(
    "failed", exceptions=("builtins.ValueError", "builtins.Exception"), message="column 'x' of 2 rows"
)
SUBCLASS = Outcome("failed", exceptions=("verl.Bad", "builtins.AssertionError"), message="column 'x' of 2 rows")
IN_SETUP = Outcome("failed", "setup", DOCUMENTED.exceptions, DOCUMENTED.message)
FPE = Outcome("crashed", message="died of SIGFPE", signal="SIGFPE", frames=("vllm/embedding.py:apply",))
FPE_ELSEWHERE = Outcome("crashed", message="died of SIGFPE", signal="SIGFPE", frames=("numpy/core.py:divide",))
SEGV = Outcome("crashed", message="died of SIGSEGV", signal="SIGSEGV", frames=("vllm/embedding.py:apply",))
IN_LOG = Outcome("failed", exceptions=("builtins.RuntimeError",), message="engine died", log="... cublasLt ...")
HUNG = Outcome("hung", message="no end after 2 s")
STALLED = Outcome("hung", message="no end", log='"POST /v1/completions" 400 Bad Request')
REFUSED = Outcome("failed", exceptions=("builtins.OSError",), message="refused", log=STALLED.log)
SKIPPED = Outcome("skipped", message="needs 2 GPUs")
BLOCKED = Outcome("blocked", message="vllm-engine is broken: RuntimeError: no device")
LACKS = Outcome("failed", exceptions=("builtins.ImportError",), message="no x", lacks="needs verl.x, …")
LACKS_IN_SETUP = replace(LACKS, phase="setup")
DOCUMENTED_LACK = replace(DOCUMENTED, lacks="needs verl.x, …")
MISTAKE = Outcome("failed", exceptions=("builtins.NameError",), message="x", mistake="a mistake of the test: x")
DOCUMENTED_MISTAKE = replace(DOCUMENTED, mistake="a mistake of the test: x")
UNDRIVEN = replace(IN_SETUP, undriven="verl 0.4.1 can't be driven this way: ValueError: no tokenizer")
DIED_IN_SETUP = replace(SEGV, phase="setup")


@pytest.mark.parametrize(
    ("outcome", "keywords", "verdict"),
    [
        (PASSED, {}, "absent"),
        (PASSED, {"expected": "absent"}, "absent"),
        (DOCUMENTED, {}, "reproduced"),
        (DOCUMENTED, {"expected": "absent"}, "reproduced"),
        (DOCUMENTED, {"gone": "verl 1.0"}, "returned"),
        (WRAPPED, {}, "reproduced"),
        (SILENT, {}, "reproduced"),
        (OTHER_WORDS, {}, "changed"),
        (OTHER_CLASS, {}, "changed"),
        (SUBCLASS, {}, "reproduced"),
        (FPE, {}, "reproduced"),
        (FPE_ELSEWHERE, {}, "crashed"),
        (STALLED, {}, "reproduced"),
        (REFUSED, {}, "changed"),
        (SEGV, {}, "crashed"),
        (IN_LOG, {}, "reproduced"),
        (HUNG, {}, "hung"),
        (SKIPPED, {}, "unavailable"),
        (BLOCKED, {}, "blocked"),
        (LACKS, {}, "unavailable"),
        (LACKS_IN_SETUP, {}, "unavailable"),
        (DOCUMENTED_LACK, {}, "reproduced"),
        (DOCUMENTED_MISTAKE, {}, "reproduced"),
    ],
)
def test_reproduces_test_gets_its_verdict(outcome, keywords, verdict):
    judgement = judge("reproduces", outcome, FAILURE, **keywords)
    assert judgement.verdict == verdict
    assert judgement.fails == (Verdict(verdict).fails)


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (PASSED, "held"),
        (DOCUMENTED, "regressed"),
        (OTHER_CLASS, "regressed"),
        (SILENT, "regressed"),
        (FPE, "crashed"),
        (HUNG, "hung"),
        (SKIPPED, "unavailable"),
        (BLOCKED, "blocked"),
        (LACKS, "unavailable"),
        (LACKS_IN_SETUP, "unavailable"),
        (DOCUMENTED_LACK, "regressed"),
        (DOCUMENTED_MISTAKE, "regressed"),
    ],
)
def test_guards_test_gets_its_verdict(outcome, verdict):
    judgement = judge("guards", outcome, FAILURE)
    assert judgement.verdict == verdict
    assert judgement.fails == (Verdict(verdict).fails)


@pytest.mark.parametrize("side", ["reproduces", "guards"])
@pytest.mark.parametrize("outcome", [IN_SETUP, DIED_IN_SETUP, MISTAKE])
def test_failure_outside_the_act_is_not_a_verdict(side, outcome):
    assert judge(side, outcome, FAILURE) is None


@pytest.mark.parametrize("side", ["reproduces", "guards"])
def test_component_that_fails_before_the_act_is_unavailable_unless_driven_before(side):
    judgement = judge(side, UNDRIVEN, FAILURE)
    assert (judgement.verdict, judgement.fails, judgement.note) == ("unavailable", False, UNDRIVEN.undriven)
    assert judge(side, UNDRIVEN, FAILURE, promised=True).fails == (side == "guards")
    assert judge(side, UNDRIVEN, FAILURE, driven=True) is None


@pytest.mark.parametrize("outcome", [OTHER_CLASS, SEGV, HUNG, DOCUMENTED, PASSED])
@pytest.mark.parametrize("side", ["reproduces", "guards"])
def test_bad_verdict_begins_with_the_releases_it_was_not_tried_with(side, outcome):
    plain = judge(side, outcome, FAILURE)
    note = f"not tried with verl 0.4.1: {plain.note}" if plain.fails else plain.note
    assert judge(side, outcome, FAILURE, untried="not tried with verl 0.4.1") == replace(plain, note=note)


@pytest.mark.parametrize(
    ("outcome", "note"),
    [
        (OTHER_WORDS, "signature 1: the class matches, the message does not: AssertionError: column x is short"),
        (OTHER_CLASS, "signature 1: the message matches, the class does not: ValueError: column 'x' of 2 rows"),
        (REFUSED, "signature 4: the log matches, the way it ended does not: OSError: refused"),
        (replace(REFUSED, log=""), "no documented signature: OSError: refused"),
    ],
)
def test_changed_verdict_says_how_close_the_match_was(outcome, note):
    assert judge("reproduces", outcome, FAILURE).note == note


def test_absent_is_a_notice_and_an_error_only_when_strict():
    assert not judge("reproduces", PASSED, FAILURE).fails
    assert "not expected" in judge("reproduces", PASSED, FAILURE).note
    assert judge("reproduces", PASSED, FAILURE, strict=True).fails
    assert not judge("reproduces", PASSED, FAILURE, strict=True, expected="absent").fails


def test_promised_guard_fails_if_it_skips():
    assert judge("guards", SKIPPED, FAILURE, promised=True).fails
    assert not judge("reproduces", SKIPPED, FAILURE, promised=True).fails
    assert judge("guards", SKIPPED, FAILURE, promised=True).note == "needs 2 GPUs"


def test_failure_without_signatures_is_never_reproduced():
    assert judge("reproduces", DOCUMENTED, replace(FAILURE, signatures=())).verdict == "changed"


def test_ranks_verdicts_as_good_failing_or_nothing():
    assert {rank(word) for word in ("pending", "skipped", "unavailable", "from the future")} == {Rank.NOTHING}
    assert {rank(word) for word in ("passed", "held", "absent")} == {Rank.GOOD}
    assert {rank(word) for word in ("failed", "error", "regressed", "hung")} == {Rank.FAILING}


def test_reading_a_run_says_what_every_verdict_does_to_the_run():
    page = (CHECKOUT / "docs/reading-a-run.md").read_text()
    rows = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("| `")]
    said = {word: cells[-1].strip() for cells in rows if len(cells) == 4 for word in re.findall(r"`(\w+)`", cells[0])}
    for verdict in Verdict:
        does = "fails" if verdict.fails else "skipped" if verdict.rank is Rank.NOTHING else "passes"
        assert said[verdict].startswith(does)
        assert verdict.letter.isupper() == verdict.fails
