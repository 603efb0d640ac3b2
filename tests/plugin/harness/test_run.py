"""A run end to end, on scenarios of one's own: verdicts, table, exit codes, bad input."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import needs
import pytest
from made_failures import FAILURES, write_failures

from pytest_rlregress.failures.verdicts import Verdict
from pytest_rlregress.harness import settings

SCENARIO = """
import pytest

@pytest.mark.reproduces("short-column")
def test_act():
    {act}

@pytest.mark.guards("short-column")
def test_remedy():
    {remedy}
"""
DOCUMENTED = "raise AssertionError('column x is short')"


@pytest.fixture
def scenario(pytester, run, short_column):
    """Run one scenario: ``scenario(act, remedy, *args)``."""

    def scenario(act, remedy, *args, hw="--hw=cpu"):
        (pytester.path / "mine" / "test_scenario.py").write_text(SCENARIO.format(act=act, remedy=remedy))
        return run({}, *([hw] if hw else []), "mine", *args)

    return scenario


#: Of each failure its act, its remedy and the verdicts on both.
VERDICTS = {
    "documented": (DOCUMENTED, "pass", "REPRODUCED", "HELD"),
    "harmless": ("len('')", "pass", "ABSENT", "HELD"),
    "divides": ("import ctypes; ctypes.CDLL(None).div(1, 0)", "pass", "REPRODUCED", "HELD"),
    "skips": ("pytest.skip('no card')", "pass", "UNAVAILABLE", "HELD"),
    "elsewhere": (DOCUMENTED, "pass", "REPRODUCED", "UNAVAILABLE"),
    "raises": ("raise ValueError('other')", "pass", "CHANGED", "HELD"),
    "aborts": ("import os; os.abort()", "pass", "CRASHED", "HELD"),
    "hangs": ("import time; time.sleep(99)", "pass", "HUNG", "HELD"),
    "remedy-fails": (DOCUMENTED, DOCUMENTED, "REPRODUCED", "REGRESSED"),
    "returns": (DOCUMENTED, "pass", "RETURNED", "HELD"),
}
IN_ENTRY = {"returns": ('remedy = "r"', 'remedy = "r"\nabsent_since = { pytest = "1.0" }')}
IN_FILE = {"elsewhere": ("@pytest.mark.guards", '@pytest.mark.needs("windows")\n@pytest.mark.guards')}


@pytest.mark.parametrize("code", [0, 1])
def test_each_pair_of_tests_gets_its_verdicts(pytester, run, short_column, code):
    """In the lines of the tests, the table, the summary and junit."""
    chosen = {name: case for name, case in VERDICTS.items() if code == any(Verdict(v.lower()).fails for v in case[2:])}
    assert len(chosen) == 5
    folder = pytester.path / "mine"
    for name, (act, remedy, *_) in chosen.items():
        write_failures(folder, FAILURES.replace("short-column", name).replace(*IN_ENTRY.get(name, ("", ""))))
        text = SCENARIO.replace(*IN_FILE.get(name, ("", ""))).replace("short-column", name)
        (folder / f"test_{name.replace('-', '_')}.py").write_text(text.format(act=act, remedy=remedy))
    result = run({}, "--hw=cpu", "mine", "-v", "--rl-timeout=4", "--junitxml=junit.xml")
    assert result.ret == code
    junit = {
        (case.get("classname").rpartition(".")[2], case.get("name")): next(
            one.get("value") for one in case.iter("property") if one.get("name") == "rlregress_verdict"
        )
        for case in ET.parse(pytester.path / "junit.xml").iter("testcase")
    }
    failed = set()
    for name, (_, _, *words) in chosen.items():
        module = f"test_{name.replace('-', '_')}"
        file = f"mine/{module}.py"
        result.stdout.fnmatch_lines_random([f"*{file}::test_act* {words[0]} *", f"*{file}::test_remedy* {words[1]} *"])
        result.stdout.fnmatch_lines_random([f"| {name}*H20*{words[0].lower()} 1/1*{words[1].lower()} 1/1*"])
        for word, test in zip(words, ("test_act", "test_remedy"), strict=True):
            assert junit[module, test] == word.lower()
            if Verdict(word.lower()).fails:
                failed.add(f"{word} {file}::{test}")
    words = tuple(f"{verdict.name} " for verdict in Verdict if verdict.fails)
    assert {line.partition(" - ")[0] for line in result.outlines if line.startswith(words)} == failed
    if code:
        result.stdout.fnmatch_lines(
            ["- returns: 1 of 1 reproduction returned: `reproduced on pytest * (absent since 1.0)`"]
        )


def test_strict_makes_unexpected_absence_an_error(scenario, pytester):
    expected = SCENARIO.replace('"short-column")', '"short-column", expected="absent")', 1)
    (pytester.path / "mine" / "test_expected.py").write_text(expected.format(act="len('')", remedy="pass"))
    result = scenario("len('')", "pass", "--rl-strict", "-v")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*test_expected.py::test_act ABSENT *"])
    said = "absent: the failing call did no harm, which was not expected on this stack"
    assert result.outlines.count(f"E   {said}") + result.outlines.count(said) == 1


def test_table_fits_and_xdist_and_junit_carry_the_verdicts(scenario, pytester):
    result = scenario("import ctypes; ctypes.CDLL(None).div(1, 0)", "pass", "-n2", "-v", "--junitxml=out.xml", hw=None)
    assert result.ret == 0
    start = next(i for i, line in enumerate(result.outlines) if line.startswith("| failure "))
    assert all(len(line) <= 114 for line in result.outlines[start : start + 3])
    result.stdout.fnmatch_lines(["| short-column*H20*reproduced 1/1*held 1/1*"])
    properties = {
        (case.get("name"), entry.get("name")): entry.get("value")
        for case in ET.parse(pytester.path / "out.xml").iter("testcase")
        for entry in case.iter("property")
    }
    assert properties["test_act", "rlregress_verdict"] == "reproduced"
    assert properties["test_remedy", "rlregress_side"] == "guards"


@pytest.fixture
def stand_in(pytester):
    """A package with a real integer division by zero, in a frame of the name that sigfpe-embedding documents."""
    folder = pytester.mkpydir("stand_in")
    (folder / "vocab_parallel_embedding.py").write_text(
        "import ctypes\ndef apply():\n    ctypes.CDLL(None).div(1, 0)\n"
    )


@pytest.mark.slow
@needs.stack
def test_native_sigfpe_matches_its_documented_signature(run, stand_in):
    result = run(
        """
        import pytest

        @pytest.mark.reproduces("sigfpe-embedding")
        @pytest.mark.isolated(fresh=True)  # what it needs of the stack is not imported for it
        def test_act():
            from stand_in.vocab_parallel_embedding import apply
            apply()
        """,
        "--hw=cpu",
        "test_it.py",
        "-v",
    )
    result.stdout.fnmatch_lines(
        ["*test_act* REPRODUCED *", "| sigfpe-embedding*reproduced 1/1*", "*not expected on this stack*"]
    )


def test_failing_test_names_the_documented_failure_it_looks_like(run, stand_in, monkeypatch):
    monkeypatch.setenv("CI", "true")  # where pytest's summary cuts nothing
    result = run(
        """
        import pytest

        @pytest.mark.isolated
        def test_mine():
            from stand_in.vocab_parallel_embedding import apply
            apply()

        @pytest.mark.isolated
        def test_other():
            assert 1 == 2
        """
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["* this looks like sigfpe-embedding *", "cause: *cublasLt*", "remedy: *"])
    assert result.stdout.str().count("this looks like") == 1


def test_list_prints_every_profile(run):
    result = run("def test_it(): raise SystemExit", "--hw=list", here=True)
    assert result.ret == 0
    for name in (
        "cpu",
        "h20",
        "h100",
        "h200",
        "b200",
        "a100",
        "a6000",
        "l4",
        "rtx-5070-ti",
        "rtx-pro-6000-blackwell",
        "t4",
    ):
        result.stdout.re_match_lines([rf"\W*{name}\b.*"])


def test_hardware_run_without_hardware_test_fails(run, two_cards):
    plain = "import pytest\n@pytest.mark.isolated\ndef test_plain(): pass\n"
    result = run(f"{plain}@pytest.mark.hw('h100', count=3)\ndef test_three(): pass\n", two_cards, "test_it.py")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["FAILED on h100: --hw=h100 ran no hardware test*", "Not tried, 1 test, for want of: *3*"]
    )


@pytest.mark.parametrize(
    ("args", "ini", "words"),
    [
        (("--hw=h100",), "", "--hw=h100 asks for NVIDIA H100, but this machine has no GPU"),
        (("--hw=h1000",), "", "--hw=h1000 isn't a hardware profile. Did you mean h100"),
        (("--rl-require=vlm",), "", "command line --rl-require: 'vlm' is not allowed. Allowed: a comma-separated list"),
        (("--rl-timeout=soon",), "", "line --rl-timeout: 'soon' is not allowed. Allowed: a positive number of seconds"),
        ((), "rlregress_timeout = -1", "rlregress_timeout in tox.ini: '-1' is not allowed"),
        ((), "rlregress_scenarios = nowhere", "in tox.ini: 'nowhere' is not allowed. Allowed: existing folders"),
        ((), "rlregress_subjects = align", "in tox.ini: 'align' is not allowed. Allowed: lines of the form"),
        pytest.param(
            (),
            "rlregress_subjects = alin_batches = m:f",
            "exercises 'alin_batches'. Did you mean align_batches",
            marks=needs.stack,
        ),
    ],
)
def test_bad_settings_are_usage_errors(pytester, run, args, ini, words):
    pytester.makeini(f"[pytest]\n{ini}\n")
    result = run("def test_it(): pass", *args, *(["--hw=cpu"] if ini else []), here=True)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert words in result.stderr.str()
    assert "Traceback" not in result.stderr.str()


def test_guards_run_the_users_subject_and_the_table_shows_it(pytester, run, short_column):
    pytester.makeini("[pytest]\nrlregress_subjects = align_batches = mytrainer:align\n")
    pytester.makepyfile(mytrainer="def align(batches, from_memory_db):\n    return batches\n")
    pytester.syspathinsert()
    mine = pytester.path / "mine"
    write_failures(mine, FAILURES.replace('remedy = "r"', 'remedy = "r"\nsubject = "align_batches"'))
    (mine / "test_it.py").write_text(
        "import pytest\n@pytest.mark.guards('short-column')\ndef test_it(subject):\n    assert subject([1], 0) == [2]\n"
    )
    result = run({}, "--hw=cpu", "mine")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["- short-column: 1 of 1 guard regressed under `mytrainer:align`*"])


@pytest.mark.parametrize(
    ("options", "marker"), [((), 'reproduces("short-colum")'), (("--hw=cpu",), "isolated(timeoutt=3)")]
)
def test_wrong_marker_is_reported_under_xdist(run, short_column, options, marker):
    result = run(f"import pytest\n@pytest.mark.{marker}\ndef test_it(): pass", "-n2", *options, "test_it.py")
    assert result.ret not in (pytest.ExitCode.OK, pytest.ExitCode.INTERNAL_ERROR)
    assert any("Did you mean short-column?" in line or "timeoutt not allowed" in line for line in result.outlines)
    assert result.stdout.str().count("ERROR collecting") == 1
    assert "Traceback" not in result.stdout.str()


#: Of each setting a value for the command line, the environment and the ini file.
VALUES = {
    "hw": ("cpu", "h100", "h200"),
    "strict": ("true", "false", "false"),
    "require": ("torch", "vllm", "ray"),
    "timeout": ("1", "2", "3"),
    "memory": ("1GiB", "2GiB", "3GiB"),
    "stall": ("1", "2", "3"),
    "inline": ("true", "false", "false"),
    "long": ("true", "false", "false"),
    "quick": ("true", "false", "false"),
    "failure": ("a", "b,c", "d e"),
    "component": ("vllm", "ray,trl", "torch"),
    "record_dir": ("a", "b", "c"),
    "update_goldens": ("true", "false", "false"),
    "goldens": ("a", "b", "c"),
    "expect": ("a/it.toml", "b/it.toml", "c/it.toml"),
    "scenarios": ("a", "b", "c"),
    "hardware": ("a", "b", "c"),
    "subjects": ("x = a:f", "x = b:f", "x = c:f"),
}


@pytest.mark.parametrize("option", settings.OPTIONS, ids=lambda option: option.name)
def test_command_line_overrides_environment_and_ini_file(pytester, monkeypatch, option):
    for name in "abc":
        (pytester.mkdir(name) / "it.toml").touch()
    line, environment, ini = VALUES[option.name]
    monkeypatch.delenv(option.env, raising=False)

    def found(*args):
        value, source = settings.resolve_one(pytester.parseconfig(*args), option.name)
        return value, source.partition(" ")[0]

    def parsed(text):
        return option.parse(text, pytester.path)

    assert found() == (option.default, "default")
    pytester.makeini(f"[pytest]\n{option.key} = {ini}\n")
    assert found() == (parsed(ini), option.key)
    monkeypatch.setenv(option.env, environment)
    assert found() == (parsed(environment), "environment")
    if option.takes is not None:
        assert found(f"{option.flag}={line}" if option.takes else option.flag) == (parsed(line), "command")
