"""``rlregress bisect`` as a user runs it, on tiny packages: a small environment, a folder of wheels, a project."""

from __future__ import annotations

import inspect
import re
import signal
import time

import pytest
from bench import open_bench
from made_failures import write_failures
from patience import PATIENCE

from pytest_rlregress import cli
from pytest_rlregress.scenarios.dependencies.wheel_index import sdist

pytestmark = pytest.mark.slow

BROKEN = "raise ValueError('the answer is lost')"
TEST = """
    import thing

    def test_answer():
        assert thing.answer() == 42

    def test_name():
        assert thing.NAME == "thing"

    def test_late():
        assert thing.LATE
"""


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    with open_bench(tmp_path_factory.mktemp("bisect"), "bisect") as bench:
        (bench.folder / "test_thing.py").write_text(inspect.cleandoc(TEST))
        yield _filled(bench)


def _add_thing(bench, version, answer="return 42", late=True):
    bench.add("thing", version, f'NAME, LATE = "thing", {late}\ndef answer():\n    {answer}\n')


def _filled(bench):
    for version in ("1.0", "1.1", "1.2"):
        _add_thing(bench, version)
    sdist(bench.wheels, "thing", "1.3")
    _add_thing(bench, "1.4", BROKEN)
    _add_thing(bench, "1.5")
    for version in ("1.6", "1.7", "1.8"):
        _add_thing(bench, version, "return 41", late=version != "1.8")
    for version in ("2.0", "2.1", "2.2", "2.3"):
        _add_thing(bench, version, "return 41" if version == "2.3" else "return 42" if version == "2.0" else BROKEN)
    bench.install(thing="1.0")
    return bench


def test_finds_the_release_that_broke_a_test(bench):
    rc, out, said, answer = bench.ask("thing", "--good", "1.0", "--bad", "1.8", "test_thing.py")
    assert rc == 0, out + said
    assert "Broke in thing 1.6" in out
    assert "last good: 1.5" in out
    (culprit,) = answer["culprits"]
    assert [culprit[key]["label"] for key in ("last_good", "first_bad")] == ["1.5", "1.6"]
    assert answer["also_flip"] == ["test_thing.py::test_late"]
    assert "rlregress bisect thing --good 1.5 --bad 1.6 test_thing.py" in out
    trials = [one["label"] for one in answer["tried"]]
    assert len(trials) == len(set(trials)) <= 2 + 4 + 1  # nine candidates, one of them unknown
    assert "1.3" not in "".join(trials)
    # Asked again: all is known, and nothing is run.
    again, same, said, _ = bench.ask("thing", "--good", "1.0", "--bad", "1.8", "test_thing.py")
    assert (again, same.split("trials,")[0]) == (rc, out.split("trials,")[0])
    assert said.count("\n") == 1, said  # how many trials are known
    assert f"{len(trials)} trials known" in said


@pytest.mark.nightly
def test_finds_the_release_that_repaired_a_test(bench):
    rc, out, _, _ = bench.ask("thing", "--good", "2.0", "--bad", "1.8", "test_thing.py::test_late")
    assert rc == 0
    assert "Repaired in thing 2.0; last bad: 1.8" in out


@pytest.mark.nightly
def test_documented_failure_of_a_scenario_of_the_users(bench):
    folder = bench.folder / "mine"
    folder.mkdir()
    write_failures(
        folder,
        inspect.cleandoc("""
        id = "wrong-answer"
        title = "The answer is off by one"
        seen_on = "thing 1.6"
        components = {}
        cause = "nobody knows"
        remedy = "ask again"
        says = ["silent: the answer is"]
        """),
    )
    (folder / "wrong_answer/test_wrong_answer.py").write_text(
        inspect.cleandoc("""
        import pytest

        @pytest.mark.long  # named, it is run
        @pytest.mark.reproduces("wrong-answer")
        def test_answer():
            import thing

            assert thing.answer() == 42, f"silent: the answer is {thing.answer()}"
        """)
    )
    words = ("thing", "--good=1.5", "--bad=1.6", "mine/wrong-answer", "--scenarios=mine")
    rc, out, said, answer = bench.ask(*words)
    assert rc == 0, out + said
    (culprit,) = answer["culprits"]
    assert [culprit[key]["verdict"] for key in ("last_good", "first_bad")] == ["absent", "reproduced"]
    assert answer["documented"]["remedy"] == "ask again"


@pytest.mark.nightly
def test_untestable_releases_narrow_the_answer_to_a_set(bench):
    rc, out, _, answer = bench.ask("thing", "--good", "2.0", "--bad", "2.3", "test_thing.py::test_answer")
    assert rc == 3, out
    (culprit,) = answer["culprits"]
    assert {one["label"] for one in culprit["between"]} == {"2.1", "2.2"}
    assert all("fails otherwise: ValueError: the answer is lost" in one["reason"] for one in culprit["between"])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ["thing", "--good=1.8", "--bad=1.0", "test_thing.py::test_answer"],
            "The ends are swapped.* --good=1.0 --bad=1.8",
        ),
        (["thing", "--good=1.0", "--bad=1.8", "test_thing.py::test_gone"], "no such test here"),
    ],
)
def test_explains_ends_with_unexpected_outcomes(bench, words, why):
    rc, out, said, _ = bench.ask(*words)
    assert rc == 1, out + said
    assert re.search(why, " ".join(out.split())), out + said


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["thing", "--good=1.0", "--bad=1.8", "test_gone.py::test_it"], "there is no file test_gone.py"),
        (["thing", "--good=1.0", "--bad=1.8", "mask-length-drfit"], "Did you mean mask-length-drift"),
        (["thing", "--good=1.0", "--bad=1.8", "launch/mask-length-drift"], "is in batch/, not in launch/"),
        (["thing", "--good=1.0", "--bad=1.0", "test_thing.py"], "thing: the good end and the bad end are the same"),
        (
            ["thing", "--good=1.0", "--bad=1.9", "test_thing.py"],
            "the bad end 1.9 cannot .*Newest that can be",
        ),
        (
            ["thing", "--good=1.0", "--bad=1.9", "batch/mask_length_drift/test_mask_length_drift.py::test_x"],
            "the bad end 1.9 cannot be",
        ),
        (["thing", "--good=1.0", "--bad=1.3", "test_thing.py"], "1.3 cannot .*no usable wheels"),
        (["think", "--good=1.0", "--bad=1.8", "test_thing.py"], "think: .*think was not found.*Check the name"),
        (["thing", "--good=1.0", "test_thing.py"], "give two ends"),
        (["--good=1.0", "--bad=1.8"], "name the package"),
        (["thing", "--good=1.0", "--bad=1.8"], "name the test"),
        (["--good-lock=none.txt", "--bad-lock=none.txt", "test_thing.py"], "none.txt: cannot be read"),
        (["--from-record=none", "--to-record=none"], "none: cannot be read"),
        (["--revisions=a..b", "--repo=.", "test_thing.py"], "no git checkout"),
        (["thing", "--good=1.0", "--bad=1.8", "--repeat=0", "test_thing.py"], "'0' isn't a number from 1 on"),
        (["thing", "--good=1.0", "--bad=1.8", "--timeout=no", "test_thing.py"], "--timeout: .*a positive number"),
        (["thing", "--good=1.0", "--bad=1.8", "--pytest=-k 'one", "test_thing.py"], "No closing quotation"),
        (
            ["thing", "--good=1.0", "--bad=1.8", "--json=/dev/null/a.json", "test_thing.py"],
            "Not a directory|File exists",
        ),
        (["thing", "--good=1.0", "--bad=1.8", "--bda=2", "test_thing.py"], "unrecognized arguments: --bda=2"),
    ],
)
def test_rejects_a_wrong_request_in_one_sentence(bench, words, why, monkeypatch, capsys):
    monkeypatch.chdir(bench.folder)
    try:
        rc = cli.main(["bisect", *words, "--no-network", f"--cache-dir={bench.cache}"])
    except SystemExit as refused:
        rc = refused.code
    said = capsys.readouterr().err
    assert rc == 2, said
    assert re.search(why, said), said
    assert said.splitlines()[-1].startswith("rlregress"), said


@pytest.mark.nightly
def test_resumes_after_an_interrupt(bench):
    words = ("thing", "--good", "1.0", "--bad", "1.7", "test_thing.py::test_answer")
    process = bench.start(*words)
    for line in process.stderr:
        if line.startswith("[2]"):
            break
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, said
    assert "rlregress bisect thing --good 1.0 --bad 1.7 test_thing.py::test_answer" in said
    rc, out, said, answer = bench.ask(*words)
    assert rc == 0, said
    assert "known from before" in said
    assert "Broke in thing 1.6" in out
    assert len(answer["tried"]) == len({one["label"] for one in answer["tried"]})


@pytest.mark.nightly
def test_finds_two_upgrades_that_only_break_together(bench):
    for name in ("one", "two", "three", "four"):
        for version in ("1", "2", "3"):
            bench.add(name, version, f"VERSION = {version}")
    (bench.folder / "test_pair.py").write_text(
        inspect.cleandoc("""
        import four, one, two

        def test_pair():
            assert (two.VERSION, four.VERSION) < (2, 3) or four.VERSION < 2
        """)
    )
    for file, version in (("good.txt", "1"), ("bad.txt", "3")):
        names = ("one", "two", "three", "four")
        bench.folder.joinpath(file).write_text("".join(f"{name}=={version}\n" for name in names))
    rc, out, said, answer = bench.ask("--good-lock=good.txt", "--bad-lock=bad.txt", "test_pair.py")
    assert rc == 0, out + said
    assert answer["changed"]["changed"] == 4
    assert {one.split()[0] for one in answer["changed"]["minimal"]} == {"two", "four"}
    releases = {one["name"]: (one["last_good"]["label"], one["first_bad"]["label"]) for one in answer["culprits"]}
    assert releases == {"two": ("1", "2"), "four": ("1", "2")}
    # What runs in the environments of the ends wrote down is the same bisect: all of it is known.
    before, after = (bench.record("test_pair.py", **dict.fromkeys(names, version)) for version in ("1", "3"))
    rc, same, said, _ = bench.ask(f"--from-record={before}", f"--to-record={after}", "test_pair.py")
    assert rc == 0, same + said
    assert f"{len(answer['tried'])} trials known" in said
    assert same.splitlines()[0] == out.splitlines()[0]
    rc, _, said, _ = bench.ask(f"--from-record={after}", f"--to-record={before}")
    assert rc == 2
    assert f"no test went from good in {after} to bad in {before}" in said


@pytest.mark.nightly
def test_disagreeing_runs_are_reported_as_flaky(bench):
    for version in ("1", "2", "3"):
        body = f"""
        import pathlib
        seen = pathlib.Path("seen-{version}")
        def answer():
            seen.write_text(seen.read_text() + "x" if seen.exists() else "x")
            return {{"1": 42, "3": 41}}.get("{version}") or 41 + len(seen.read_text()) % 2
        """
        bench.add("coin", version, body)
    (bench.folder / "test_coin.py").write_text("import coin\n\ndef test_coin():\n    assert coin.answer() == 42\n")
    rc, out, said, answer = bench.ask("coin", "--good=1", "--bad=3", "--repeat=2", "test_coin.py")
    assert rc == 3, out + said
    assert "flaky: 1 good, 1 bad of 2" in out
    assert [one["label"] for one in answer["culprits"][0]["between"]] == ["2"]
