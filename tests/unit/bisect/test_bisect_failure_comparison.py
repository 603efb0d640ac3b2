"""Bad is the same failure, and nothing else: a table, drawn failures, and judges that must not get through either."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_trials import make_run

from pytest_rlregress.commands.bisect import follow
from pytest_rlregress.commands.bisect.follow import combine_runs, compare_with_bad_end
from pytest_rlregress.failures.observations import Observation, describe, normalise
from pytest_rlregress.failures.verdicts import Outcome
from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.trials.search import State

TEST = "tests/test_it.py::test_it"
GOOD, BAD, UNKNOWN = State.GOOD, State.BAD, State.UNKNOWN


def failed(message, *classes, verdict="failed", named=(), failure=None, **outcome):
    names = tuple(classes) or ("builtins.RuntimeError",)
    return Observation(
        TEST, Outcome("failed", "call", names, message, **outcome), verdict, failure=failure, named=named
    )


def crashed(signal, message=None):
    message = message or f"died of {signal} (whatever)"
    return Observation(TEST, Outcome("crashed", "call", message=message, signal=signal), "crashed")


def hung(*frames, message="no end after 60 s"):
    return Observation(TEST, Outcome("hung", "call", message=message, frames=frames), "hung")


def ended(verdict, kind="passed", message="", **more):
    return Observation(TEST, Outcome(kind, message=message), verdict, **more)


def sided(verdict, *classes, message="", failure="drift"):
    return failed(message, *classes, verdict=verdict, failure=failure)


OOM = (
    "CUDA out of memory. Tried to allocate {} GiB. GPU 0 has a total capacity of 79.10 GiB of which {} MiB is free.\n"
    "Process {} has 78 GiB memory in use."
)
RAY = 'ray::work() (pid={}, ip=10.0.0.{})\n  File "/x/it.py", line {}, in work\n{}'
ENGINE = "Engine core initialization failed. See root cause above. Failed core proc(s): {}"
SAME = {
    "numbers": (failed(OOM.format("2.00", "30.38", 71)), failed(OOM.format("4.50", "1.25", 9233))),
    "unit": (failed("took 3.2 s for 512 MiB"), failed("took 410 ms for 1.5 GiB")),
    "address": (failed("<Lock at 0x7f00ab12> is held"), failed("<Lock at 0x55cc01> is held")),
    "path": (failed("No such file: '/tmp/a/x.json'"), failed("No such file: '/home/u/.cache/x.json'")),
    "temporary name": (failed("cannot open tmpab1_x9zq"), failed("cannot open tmpqqqq77aa")),
    "hash": (failed("no revision 3f1c2aa9"), failed("no revision 99bb01cd")),
    "uuid": (
        failed("job 1b4e28ba-2fa1-11d2-883f-0016d3cca427 died"),
        failed("job aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa died"),
    ),
    "version": (failed("needs 5.0.0rc1 or newer"), failed("needs 4.57.6 or newer")),
    "local version": (failed("torch 2.13.0+cpu is too old"), failed("torch 2.9.1+cu128 is too old")),
    "long value": (failed(f"cannot parse '{'a b ' * 20}'"), failed(f"cannot parse '{'xyz, ' * 30}'")),
    "later lines": (failed("mask is too short\nfoo"), failed("mask is too short\nbar")),
    "moved class": (failed("full", "torch.cuda.OutOfMemoryError"), failed("full", "torch.OutOfMemoryError")),
    "assertion": (
        failed("assert 3 == 4", "builtins.AssertionError"),
        failed("assert 3 == 11", "builtins.AssertionError"),
    ),
    "Ray task": (
        failed(RAY.format(71, 4, 9, "ValueError: no reward for 3")),
        failed(RAY.format(8, 19, 12, "ValueError: no reward for 5")),
    ),
    "engine": (
        failed(ENGINE, log="pid=7 ValueError: no room for 3 blocks\n"),
        failed(ENGINE, log="pid=9 started\npid=9 ValueError: no room for 1 blocks\nbye\n"),
    ),
    "no message, same place": (
        failed("", "builtins.AssertionError", frames=("/a/lib/core.py:check",)),
        failed("", "builtins.AssertionError", frames=("/b/x/core.py:check",)),
    ),
    "signal": (crashed("SIGSEGV"), crashed("SIGSEGV", "died of SIGSEGV (Segmentation fault)")),
    "memory limit": (
        crashed(None, "killed: it used 3.1 GiB of memory, its limit is 3 GiB"),
        crashed(None, "killed: it used 3.22 GiB of memory, its limit is 3 GiB"),
    ),
    "hang in the test": (
        hung("/py/threading.py:wait", "/a/tests/test_it.py:test_it"),
        hung("/py/queue.py:get", "/b/tests/test_it.py:test_it"),
    ),
    "hang elsewhere": (hung("/a/ray/worker.py:get"), hung("/py/wait.py:wait", "/b/ray/worker.py:get")),
    "documented": (sided("reproduced", "builtins.ValueError"), sided("returned", "builtins.TypeError")),
    "documented by what it looks like": (
        failed("x", "builtins.ValueError", verdict="regressed", failure="drift", named=("oom", "drift")),
        failed("y", "builtins.TypeError", named=("oom",)),
    ),
    "undocumented on its side": (sided("changed", message="x 1"), sided("changed", message="x 2")),
    "import": (
        replace(failed("No module named 'x'", "builtins.ModuleNotFoundError"), verdict="uncollected"),
        failed("No module named 'x'", "builtins.ModuleNotFoundError"),
    ),
}
OTHER = {
    "class": (failed("full", "builtins.OSError"), failed("full", "builtins.RuntimeError")),
    "subclass": (failed("x", "a.Mine", "builtins.ValueError"), failed("x", "builtins.ValueError")),
    "words": (failed("mask is too short"), failed("mask is too long")),
    "a short name": (failed("No module named 'apex'"), failed("No module named 'flash_attn'")),
    "a number in a name": (failed("expected float16"), failed("expected float32")),
    "file": (failed("No such file: '/tmp/a/x.json'"), failed("No such file: '/tmp/a/y.json'")),
    "exit code": (failed("ended with exit code 1"), failed("ended with exit code 3")),
    "exit": (
        crashed(None, "the process ended with exit code 1 in the middle of the test"),
        crashed(None, "the process ended with exit code 0 in the middle of the test"),
    ),
    "Ray task": (
        failed(RAY.format(71, 4, 9, "ValueError: no reward for 3")),
        failed(RAY.format(71, 4, 9, "KeyError: 'reward'")),
    ),
    "engine": (
        failed(ENGINE, log="pid=7 ValueError: no room for 3 blocks\n"),
        failed(ENGINE, log="pid=7 ImportError: no such symbol\n"),
    ),
    "no message, other place": (
        failed("", "builtins.AssertionError", frames=("/a/core.py:check",)),
        failed("", "builtins.AssertionError", frames=("/a/core.py:load",)),
    ),
    "signal": (crashed("SIGSEGV"), crashed("SIGFPE")),
    "a worker's signal": (failed("worker died", signal="SIGSEGV"), failed("worker died", signal="SIGKILL")),
    "crash for a failure": (crashed("SIGSEGV"), failed("died of SIGSEGV (whatever)")),
    "time-out for a failure": (hung("/a/test_it.py:test_it"), failed("no end after 60 s")),
    "hang in another place": (hung("/a/tests/test_it.py:test_it"), hung("/a/tests/test_it.py:engine")),
    "stall for a time-out": (hung(message="stalled: no end 4 s after its engine logged an error"), hung()),
    "documented": (sided("changed", "builtins.ValueError"), sided("reproduced", "builtins.TypeError")),
    "other documented": (sided("reproduced", message="x"), sided("reproduced", message="y", failure="oom")),
}
PLAIN = {
    "passed": (ended("passed"), GOOD, "passed"),
    "held": (ended("held", failure="drift", side="guards"), GOOD, "held"),
    "absent": (ended("absent", failure="drift", side="reproduces"), GOOD, "absent"),
    "skipped": (ended("unavailable", "skipped", "needs vllm"), UNKNOWN, "did not run: needs vllm"),
    "blocked": (ended("blocked", "blocked", "vllm is broken"), UNKNOWN, "did not run: vllm is broken"),
    "not contained": (
        crashed(None, "could not be contained: No space left"),
        UNKNOWN,
        "could not be contained: No space left",
    ),
    "missing": (None, UNKNOWN, "no such test here"),
}


def check_table(judge):
    for name, (one, other) in SAME.items():
        for this, bad in ((one, other), (other, one), (one, one)):
            assert judge(this, make_run(), bad)[0] is BAD, name
    for name, (one, other) in OTHER.items():
        for this, bad in ((one, other), (other, one)):
            state, reason = judge(this, make_run(), bad)
            assert (state, reason) == (UNKNOWN, f"fails otherwise: {describe(this)}"), name
    for name, (this, state, reason) in PLAIN.items():
        for bad in (failed("x"), None):
            assert judge(this, make_run(), bad) == (state, reason), name


def test_compares_each_outcome_with_the_bad_end():
    check_table(compare_with_bad_end)


@pytest.mark.parametrize(
    "mutant",
    [
        lambda this, bad: True,
        lambda this, bad: this.outcome == bad.outcome,
        lambda this, bad: this.outcome.exceptions[:1] == bad.outcome.exceptions[:1],
        lambda this, bad: normalise(this.outcome.message) == normalise(bad.outcome.message),
    ],
    ids=["any failure", "the raw text", "the class alone", "the text alone"],
)
def test_table_rejects_broken_comparisons(monkeypatch, mutant):
    monkeypatch.setattr(follow, "is_same_failure", mutant)
    with pytest.raises(AssertionError):
        check_table(compare_with_bad_end)


CLASSES = st.sampled_from(["RuntimeError", "ValueError", "AssertionError", "OutOfMemoryError", "EngineDeadError"])
WORDS = st.lists(
    st.sampled_from(["mask", "logits", "rank", "float16", "Qwen2", "'labels'", "expected", "got", "(cuda:"]), min_size=1
)
NUMBERS = (st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False)).map(str)
VOLATILE = {
    "{number}": NUMBERS,
    "k={number},": NUMBERS.map("k={},".format),
    "({number}):": NUMBERS.map("({}):".format),
    "{address}": st.integers(0, 2**48).map(hex),
    "{path}": st.text("abcxyz019_-", min_size=1).map(lambda name: f"/tmp/{name}/data.json"),
    "{seconds}": st.floats(0, 1e4).map(lambda seconds: f"{seconds:.2f} s"),
}


@st.composite
def two_of_one_failure(draw):
    """A class, and two messages that differ in what is volatile, if in anything."""
    words = draw(st.lists(WORDS.map(" ".join) | st.sampled_from(list(VOLATILE)), min_size=1, max_size=6))
    messages = (" ".join(draw(VOLATILE[word]) if word in VOLATILE else word for word in words) for _ in range(2))
    return (draw(CLASSES), *messages)


@given(two_of_one_failure(), CLASSES)
@EXAMPLES
def check_drawn(one, other_class):
    name, first, second = one
    bad = failed(first, f"a.{name}")
    assert compare_with_bad_end(failed(second, f"b.{name}"), make_run(), bad)[0] is BAD
    if other_class != name:
        assert compare_with_bad_end(failed(second, f"b.{other_class}"), make_run(), bad)[0] is UNKNOWN


def test_matches_other_numbers_but_never_another_class():
    check_drawn()


@pytest.mark.parametrize(
    "mutant",
    [lambda this, bad: True, lambda this, bad: this.outcome.message == bad.outcome.message],
    ids=["any failure", "the raw text"],
)
def test_drawn_failures_reject_broken_comparisons(monkeypatch, mutant):
    monkeypatch.setattr(follow, "is_same_failure", mutant)
    with pytest.raises(AssertionError):
        check_drawn()


@given(two_of_one_failure())
@EXAMPLES
def test_normalising_is_idempotent(one):
    assert normalise(normalise(one[1])) == normalise(one[1])


def test_any_failure_is_bad_while_the_ends_are_proven():
    for one in (failed("x"), crashed("SIGFPE"), hung(), sided("reproduced"), sided("changed")):
        assert compare_with_bad_end(one, make_run(), None) == (BAD, describe(one))


def test_other_hardware_gives_an_unknown_state():
    lost, kept = make_run(hardware="cpu"), make_run(hardware="h100 of NVIDIA H100")
    for observation in (ended("passed"), failed("x")):
        state, reason = compare_with_bad_end(observation, lost, failed("x"), kept.hardware)
        assert state is UNKNOWN
        assert reason == "hardware changed: cpu, the bad end ran on h100 of NVIDIA H100"
        assert compare_with_bad_end(observation, kept, failed("x"), kept.hardware)[0] is not UNKNOWN


def test_unseen_test_is_unknown_with_a_reason():
    bad = failed("x")
    assert compare_with_bad_end(None, make_run(trouble="the run had no end after 9 s"), bad) == (
        UNKNOWN,
        "the run had no end after 9 s",
    )
    file = replace(
        failed("No module named 'x'", "builtins.ImportError"),
        test="tests/test_it.py",
        verdict="uncollected",
        failure="",
    )
    other = make_run({file.test: file})
    assert compare_with_bad_end(None, other, bad) == (UNKNOWN, f"was not run: {describe(file)}")
    assert other.find(TEST) == file
    assert other.find("tests/test_other.py::test_it") is None
    conftest = replace(file, test="tests/conftest.py")
    assert make_run({conftest.test: conftest}).find(TEST) == conftest
    assert make_run({TEST: bad, conftest.test: conftest}).find(TEST).outcome == bad.outcome


def test_repeats_agree_or_are_flaky():
    good, bad, unknown = (GOOD, "passed"), (BAD, "x: 1"), (UNKNOWN, "no end after 9 s")
    assert combine_runs([bad, (BAD, "x: 2")]) == bad
    assert combine_runs([unknown, unknown]) == unknown
    assert combine_runs([good, bad, good]) == (UNKNOWN, "flaky: 2 good, 1 bad of 3")
    assert combine_runs([good, unknown]) == (UNKNOWN, "flaky: 1 good, 1 unknown of 2 (no end after 9 s)")
    assert combine_runs([]) == (UNKNOWN, "was not run")


def test_describes_a_failure_in_one_line():
    assert describe(failed("\n  a\nb", "x.y.MyError")) == "MyError: a"
    assert describe(failed("", "x.MyError")) == "MyError"
    assert describe(replace(failed("a", "b.C"), outcome=Outcome("failed", "setup", ("b.C",), "a"))) == "in set-up: C: a"
    assert describe(crashed("SIGFPE")) == "died of SIGFPE (whatever)"


@pytest.mark.parametrize(
    ("text", "steady"),
    [
        ("not found: 'C:\\Users\\rl\\data\\train.parquet'", "not found: '…/train.parquet'"),
        (r"\\wsl.localhost\Debian\train.parquet", "…/train.parquet"),
        ("//host.name", "…/host.name"),
    ],
)
def test_a_path_of_windows_is_steady_too(text, steady):
    assert normalise(text) == steady


@given(st.text(st.sampled_from("aB1.:/\\ '#x0")))
def test_any_text_can_be_made_steady(text):
    normalise(text)
