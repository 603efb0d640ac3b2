"""``rlregress upgrade`` as a user runs it, on tiny packages: a small environment, a folder of wheels, a project."""

from __future__ import annotations

import inspect
import re
import signal
import subprocess
import time

import pytest
from bench import open_bench
from made_failures import write_failures
from patience import PATIENCE

from pytest_rlregress import cli

pytestmark = pytest.mark.slow

FAILURES = """
    id = "tool-fails"
    title = "The tool fails"
    seen_on = "tool 1"
    components = {}
    cause = "nobody knows"
    remedy = "use the other one"
    says = ["boom"]

    id = "thing-slips"
    title = "The thing slips"
    seen_on = "thing 1"
    components = {}
    cause = "nobody knows"
    remedy = "hold it"
    says = ["slipped"]

    id = "log-lost"
    title = "The log is lost"
    seen_on = "wandb 1"
    components = { wandb = ">=1" }
    cause = "nobody knows"
    remedy = "write it down"
    says = ["lost"]
"""
TESTS = {
    "mine/tool_fails/test_tool.py": """
        import pytest

        @pytest.mark.reproduces("tool-fails")
        def test_act():
            import tool
            tool.act()

        @pytest.mark.guards("tool-fails")
        def test_remedy():
            import tool
            assert tool.remedy() == 42
    """,
    "mine/thing_slips/test_thing.py": """
        import pytest

        @pytest.mark.reproduces("thing-slips")
        def test_act():
            raise RuntimeError("it slipped")

        @pytest.mark.guards("thing-slips")
        def test_remedy():
            import thing
            if not hasattr(thing, "hold"):
                pytest.skip("this thing has no hold")
            assert thing.hold() == 42
    """,
    "log/test_log.py": """
        import pytest

        @pytest.mark.needs("wandb")
        @pytest.mark.guards("log-lost")
        def test_remedy():
            import wandb
            assert wandb.VERSION
    """,
    "test_own.py": """
        import thing

        def test_always_bad():
            assert False

        def test_thing():
            assert thing
    """,
}


def _fill(bench):
    folder = bench.folder
    for name, text in TESTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(inspect.cleandoc(text))
    write_failures(folder / "mine", inspect.cleandoc(FAILURES))
    bench.add("tool", "1", "def act(): raise RuntimeError('boom')\ndef remedy(): return 42")
    bench.add("tool", "2", "def act(): pass\ndef remedy(): return 42")
    bench.add("thing", "1", "def hold(): return 42")
    bench.add("thing", "2", "def hold(): return 41")
    bench.add("thing", "3", "")
    bench.add("late", "1", "")
    bench.add("late", "2", "", ["thing>=2"])
    bench.add("free", "1", "")
    bench.add("free", "2", "")
    bench.add("cap", "0.5", "")
    bench.add("cap", "1", "", ["free<2"])
    bench.add("trl", "1", "")
    bench.add("trl", "0.9", "")
    bench.add("wide", "1", "")
    bench.add("wide", "2", "", ["trl<1"])
    bench.add("front", "0.5", "")
    bench.add("front", "1", "", ["helper>=1"])
    bench.add("helper", "0.5", "", ["cap<1"])
    bench.add("helper", "1", "")
    bench.add("wandb", "1", "VERSION = 1")
    bench.add("wandb", "2", "raise ImportError('libwandb.so: undefined symbol')")
    bench.add("sitecustomize", "1", "")
    bench.add("sitecustomize", "2", "import os\nos._exit(9)")
    names = ("tool", "thing", "late", "free", "cap", "trl", "wide", "front", "helper", "wandb", "sitecustomize")
    bench.install(**dict.fromkeys(names, "1"))
    return bench


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    with open_bench(tmp_path_factory.mktemp("upgrade"), "upgrade") as bench:
        yield _fill(bench)


MINE = ("mine", "--scenarios=mine")


def effects(answer):
    return {(one["name"], one["side"]): one["effect"] for one in answer["changes"]}


def environments(bench):
    return {path: path.read_text() for path in bench.cache.glob("environments/*/rlregress-complete")}


def test_safe_upgrade_names_a_removable_workaround(bench):
    rc, out, said, answer = bench.ask("tool==2", *MINE, "--output=safe.txt")
    assert rc == 0, out + said
    assert out.startswith("Safe, and 1 workaround can be removed: tool-fails (1 package moves, 3 tests unchanged).")
    assert effects(answer) == {("tool-fails", "reproduces"): "absent"}
    assert answer["asked_for"] == ["tool 1 -> 2"]
    before, after = bench.user.text.splitlines(), (bench.folder / "safe.txt").read_text().splitlines()
    assert set(after) - set(before) == {"tool==2"}
    assert len(answer["tried"]) == 2
    # Asked again: all is known, and nothing is run.
    again, same, said, _ = bench.ask("tool==2", *MINE, "--output=safe.txt")
    assert (again, same.split("What moves")[0]) == (rc, out.split("What moves")[0])
    assert "2 trials known" in said
    assert "[1]" not in said


def test_unsafe_upgrade_names_the_regressed_test(bench):
    rc, out, said, answer = bench.ask("late==2", "thing==2", *MINE, "--output=unsafe.txt")
    assert rc == 1, out + said
    assert out.startswith("Not safe: thing-slips regressed; --stepwise finds the largest safe set.")
    assert effects(answer) == {("thing-slips", "guards"): "worse"}
    assert "assert 41 == 42" in out
    assert not (bench.folder / "unsafe.txt").exists()


def test_finds_the_largest_safe_set_and_why_others_are_left_out(bench):
    bench.folder.joinpath("mine.txt").write_text("thing<3  # mine\nsitecustomize==1\nwandb<2\n")
    words = ("--all", "--stepwise", "--requirements=mine.txt", "--output=largest.txt", *MINE)
    rc, out, said, answer = bench.ask(*words)
    assert rc == 1, out + said
    assert (
        "Not safe: thing-slips regressed; the largest safe set is 1 of 3 upgrades, without late 1 -> 2, thing 1 ->"
        in (" ".join(out.split()))
    )
    assert answer["safe_set"]["kept"] == ["tool 1 -> 2"]
    left_out = {one["upgrade"][0]: one["reason"] for one in answer["safe_set"]["left_out"]}
    assert left_out["late 1 -> 2"] == "needs thing 1 -> 2"
    assert left_out["thing 1 -> 2"].startswith("thing-slips (guards): held 1 -> regressed 1: AssertionError")
    assert (set((bench.folder / "largest.txt").read_text().split()) ^ set(bench.user.text.split())) == {
        "tool==1",
        "tool==2",
    }
    assert "3 packages would move" in said


@pytest.mark.nightly
def test_dependencies_of_a_left_out_upgrade_are_left_out(bench):
    bench.folder.joinpath("below.txt").write_text("thing<3\n")
    rc, out, said, answer = bench.ask("late==2", "tool==2", "--stepwise", "--requirements=below.txt", *MINE)
    assert rc == 1, out + said
    assert answer["moved_along"] == ["thing 1 -> 2"]
    assert answer["safe_set"]["kept"] == ["tool 1 -> 2"]
    (left_out,) = answer["safe_set"]["left_out"]
    assert left_out["upgrade"] == ["late 1 -> 2"]
    assert left_out["reason"].startswith("thing-slips (guards): held 1 -> regressed 1")
    assert len(answer["tried"]) == len({one["label"] for one in answer["tried"]}) <= 4


def test_lost_coverage_is_not_a_regression_and_known_failures_lead(bench):
    rc, out, said, answer = bench.ask("thing", "test_own.py", *MINE)
    assert rc == 0, out + said
    assert answer["asked_for"] == ["thing 1 -> 3"]
    first, second, third = out.splitlines()[:3]
    assert first == "Bad here already, and not counted: test_own.py::test_always_bad."
    assert second.startswith("Safe (1 package moves")
    assert third == "Coverage is lost, as tests can no longer be driven: thing-slips."
    assert "this thing has no hold" in str(answer["changes"])


@pytest.mark.nightly
def test_component_broken_by_the_upgrade_is_named_and_unsafe(bench):
    rc, out, said, _ = bench.ask("wandb==2", "log", "--scenarios=mine")
    assert rc == 1, out + said
    assert "undefined symbol" in out
    assert "wandb" in out.split("What moves")[0]


@pytest.mark.nightly
def test_environment_where_pytest_does_not_start_gives_no_answer(bench):
    rc, out, said, _ = bench.ask("sitecustomize==2", *MINE)
    assert (rc, out) == (2, ""), out + said
    assert "the tests cannot be run with the upgrade: pytest ended with exit code 9" in said
    # Stepwise it is one more upgrade that is left out.
    rc, out, said, answer = bench.ask("sitecustomize==2", "tool==2", "--stepwise", *MINE)
    assert rc == 1, out + said
    assert "the tests could not be run with all of it, pytest ended with exit code 9" in " ".join(out.split())
    assert answer["safe_set"]["kept"] == ["tool 1 -> 2"]


def test_upgrade_that_changes_nothing_is_safe_without_a_run(bench):
    rc, out, said, answer = bench.ask("tool==1", *MINE)
    assert (rc, out) == (0, "Nothing would change: what tool==1 mine asks for is what is installed.\n"), said
    assert answer["tried"] == []


@pytest.mark.parametrize(
    ("words", "said_last"),
    [
        (
            ["free==2"],
            "free 2 cannot be installed here: cap 1 requires free<2. It can with --may-downgrade cap (cap 1 -> 0.5)",
        ),
        (["tool==2", "--requirements=pins.txt"], "tool 2 cannot be installed here: pins.txt forbids it"),
        (
            ["late==2", "thing==1"],
            "late 2 and thing 1 cannot be installed here with all else that is asked for",
        ),
        (
            ["wide==2"],
            "wide 2 cannot be installed here: it needs trl 0.9, and trl 1 is installed. "
            "It can with --may-downgrade trl (trl 1 -> 0.9)",
        ),
        (  # front 0.5 would need no helper: what was named doesn't fall out
            ["helper<1", "--may-downgrade=front"],
            "helper 0.5 cannot be installed here: front 1 requires helper>=1. "
            "It can with --may-downgrade cap (cap 1 -> 0.5)",
        ),
    ],
)
def test_conflict_is_one_sentence_that_names_the_forbidding_package(bench, words, said_last):
    (bench.folder / "pins.txt").write_text("# of mine\ntool<1.5\n")
    kept = environments(bench)
    rc, _, said, _ = bench.ask(*words, *MINE)
    assert rc == 2
    assert said.splitlines()[-1] == f"rlregress upgrade: {said_last}"
    assert environments(bench) == kept


def test_package_stays_if_its_newest_release_is_forbidden(bench):
    rc, out, said, answer = bench.ask("free", *MINE)
    assert (rc, answer["tried"]) == (0, []), said
    assert out == "free stays at 1: 2 cannot be installed here: cap 1 requires free<2.\nNothing would change.\n"


def test_downgrading_a_trainer_is_not_safe(bench):
    words = ("wide==2", "--may-downgrade=trl", "mine/tool_fails/test_tool.py", "--scenarios=mine", "--output=back.txt")
    rc, out, said, answer = bench.ask(*words)
    assert (rc, answer["safe"]) == (1, False), out + said
    assert out.startswith("trl goes back from 1 to 0.9; beside that nothing gets worse (2 packages move")
    assert out.splitlines()[1] == "Without a step back nothing moves: stay as it is here."
    assert not (bench.folder / "back.txt").exists()


def test_a_documented_failure_may_be_named_beside_a_file(bench):
    rc, out, said, answer = bench.ask("tool==2", "tool-fails", "test_own.py", "--scenarios=mine")
    assert rc == 0, out + said
    assert "2 tests unchanged" in out  # the guard of tool-fails and test_thing; nothing of thing-slips
    assert effects(answer) == {
        ("tool-fails", "reproduces"): "absent",
        ("test_own.py::test_always_bad", ""): "bad before",
    }


def test_downgrades_a_package_if_allowed(bench):
    rc, out, said, answer = bench.ask(
        "free==2", "--may-downgrade=cap", "mine/tool_fails/test_tool.py", "--scenarios=mine"
    )
    assert rc == 0, out + said
    assert answer["moved_along"] == ["cap 1 -> 0.5"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["tool==7", "mine"], "tool: version 7 cannot be installed here: .* Newest that can be installed here: 2"),
        (["tool>2", "mine"], "tool: no release is >2: .*Newest that can be installed here: 2"),
        (["tool==x!", "mine"], "'tool==x!' isn't a package with a version"),
        (["tool[more]==2", "mine"], "its name and its version"),
        (["none==2", "mine"], "none is not installed here"),
        (["pytest-rlregress==2", "mine"], "is what compares"),
        ([], "name what is to be upgraded"),
        (["mine"], "mine: not installed here, so taken for tests"),
        (["tool", "tols"], "failure id 'tols' is not in the catalogue.*Nor is a package of that name installed"),
        (["tool", "no/test_it.py"], "there is no file no/test_it.py"),
        (["tool", "--requirements=twice.txt", "mine"], "tool 2 cannot be installed here: twice.txt forbids it"),
        (
            ["tool", "--requirements=broken.txt", "mine"],
            "could not be resolved: .*broken.*|could not be resolved: .*two words",
        ),
        (["tool", "--requirements=gone.txt", "mine"], "No such file or directory: 'gone.txt'"),
        (["tool", "--may-downgrade=none", "mine"], "--may-downgrade none: not installed here"),
        (["tool", "--output=/dev/null/safe.txt", "mine"], "Not a directory|File exists"),
        (["tool", "--nonsense", "mine"], "unrecognized arguments: --nonsense"),
        (["tool", "test_own.py::test_gone"], "the tests cannot be run here: no such test here"),
    ],
)
def test_rejects_a_wrong_request_in_one_sentence(bench, words, why):
    (bench.folder / "twice.txt").write_text("tool>1\ntool<=1\n")
    (bench.folder / "broken.txt").write_text("tool<9\ntwo words\n")
    rc, out, said, _ = bench.ask(*words)
    assert (rc, out) == (2, ""), out + said
    assert re.search(why, " ".join(said.split())), said
    assert [line.startswith("rlregress") for line in said.splitlines()].count(True) == 1, said


def test_tests_may_follow_two_dashes(bench, monkeypatch, capsys):
    monkeypatch.chdir(bench.folder)
    for words in (["--", "none==2", "mine"], ["none==2", "--fresh", "--", "mine"], ["none==2", "mine", "--fresh"]):
        assert cli.main(["upgrade", "--no-network", f"--cache-dir={bench.cache}", *words]) == 2
        assert "none is not installed here" in capsys.readouterr().err


# -- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_names_an_unreachable_index(bench):
    away = {"UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple", "UV_FIND_LINKS": ""}
    command = [bench.path / "bin/rlregress", "upgrade", "tool==2", *MINE, f"--cache-dir={bench.cache}"]
    asked = subprocess.run(
        command, cwd=bench.folder, env={**bench.environ, **away}, capture_output=True, text=True, timeout=120
    )
    assert asked.returncode == 2, asked.stdout + asked.stderr
    assert "Check the network" in asked.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("stage", ["would move", "running the tests", "[1]"])
def test_resumes_after_an_interrupt(bench, stage):
    version, other = {"would move": ("2", "1"), "running the tests": ("2", "2"), "[1]": ("3", "1")}[stage]
    words = ("late==1", f"thing=={version}", f"free=={other}", "--may-downgrade=cap", "tool==2", *MINE)
    process = bench.start(*words)
    for line in process.stderr:
        if stage in line:
            break
    time.sleep(0 if stage == "would move" else 1)  # while it is built, or while its tests run
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, said
    assert "To go on from here:\n  rlregress upgrade late==1" in said
    rc, out, said, answer = bench.ask(*words)
    assert rc == (1 if version == "2" else 0), out + said
    assert [one["label"] for one in answer["tried"]] == ["as it is here", "with all upgrades"]
    assert ("1 trial known" in said) is (stage == "[1]")
    for complete in environments(bench):
        assert (complete.parent / "bin/python").exists()
