"""An entry's subject: what it may be, how it is looked up before anything runs, and what a complaint names."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from made_failures import write_failures

from pytest_rlregress import cli
from pytest_rlregress.failures import catalogue
from pytest_rlregress.harness import subjects

ENTRY = """
id = "reasoning-is-rewarded"
title = "A completion is rewarded for its reasoning"
seen_on = "any"
components = {}
cause = "c"
remedy = "r"
subject = "SUBJECT"
"""
MODULES = {
    "mylab": """
print("printed while it was imported")
def visible_text(completion): return completion
def takes_more(completion, **options): return completion
def by_name(completion, *, end): return completion
def two(completion, end): return completion
class Rewards:
    visible_text = staticmethod(visible_text)
LIMIT = 4096
""",
    "mylab_lacks": "import no_such_stack",
    "mylab_is_a_script": "raise SystemExit('usage: mylab_is_a_script FILE')",
    "mylab_exits": "import os\nos._exit(3)",
    "mylab_hangs": "import time\ntime.sleep(600)",
    "mylab_dies": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
}
INI = "rlregress_subjects in tox.ini"


@pytest.fixture
def check(tmp_path, monkeypatch):
    """``check(subject, ini)``: what pytest does when it starts, over the shipped entries and one with that subject."""
    for name, code in MODULES.items():
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)

    def check(subject, ini=None):
        write_failures(tmp_path, ENTRY.replace("SUBJECT", subject))
        known = catalogue.load([catalogue.SHIPPED, tmp_path])
        settings = SimpleNamespace(
            subjects=ini or {}, source={"subjects": INI}, start_timeout=1.0 if "hangs" in subject else 60.0
        )
        subjects.check(settings, known)
        return known["reasoning-is-rewarded"], settings

    return check


@pytest.fixture
def unloaded():
    """Forget the modules that a test of this process has imported."""
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("subject", "instead"),
    [
        ("mylab:visible_text", None),
        ("mylab:Rewards.visible_text", None),
        ("mylab:visible_text", "mylab:takes_more"),
        ("mylab:takes_more", "mylab:visible_text"),
        ("mylab:by_name", "mylab:two"),
        ("builtins:max", "mylab:two"),  # has no signature to hold the other against
        ("clamp_max_tokens", None),
    ],
)
def test_accepts_a_subject_that_fits(check, unloaded, subject, instead):
    failure, settings = check(subject, {subject: instead} if instead else {})
    assert "mylab" not in sys.modules, "the user's modules are imported in another process"
    found = subjects.under_guards(failure, settings)
    assert found.__qualname__ == (instead or subject).rpartition(":")[2].rpartition(".")[2]


@pytest.mark.parametrize(
    ("subject", "words"),
    [
        (
            "mylab.visible_text",
            "'mylab.visible_text' is not allowed; allowed: a function of pytest_rlregress.remedies, or",
        ),
        ("mylab:", "'mylab:' is not allowed"),
        ("clamp_maxtokens", "has no function 'clamp_maxtokens'. Did you mean clamp_max_tokens?"),
        ("visible_text", "has no function 'visible_text'. Allowed: adapter_request, "),
        ("rollout", "has no function 'rollout'"),
        (
            "nolab.rewards:f",
            "nolab.rewards:f: cannot be imported: ModuleNotFoundError: No module named 'nolab'. Modules are",
        ),
        ("mylab_lacks:f", "mylab_lacks:f: cannot be imported: ModuleNotFoundError: No module named 'no_such_stack'"),
        ("mylab:visible_txt", "cannot be imported: AttributeError: module 'mylab' has no attribute 'visible_txt'"),
        ("mylab:LIMIT", "mylab:LIMIT: is not callable: its type is int"),
        ("mylab_is_a_script:f", "cannot be imported: SystemExit: usage: mylab_is_a_script FILE"),
        ("mylab_exits:f", "mylab_exits:f: cannot be imported: the process that tried ended with exit code 3"),
        ("mylab_dies:f", "mylab_dies:f: cannot be imported: the process that tried ended with SIGKILL"),
        ("mylab_hangs:f", "mylab_hangs:f: cannot be imported: the process that tried was killed after 1 s"),
    ],
)
def test_wrong_entry_names_file_and_key(check, tmp_path, subject, words):
    with pytest.raises((catalogue.CatalogueError, subjects.SubjectError)) as caught:
        check(subject)
    place = f"{tmp_path / 'reasoning_is_rewarded' / 'failure.toml'}: failure reasoning-is-rewarded: key 'subject': "
    assert str(caught.value).startswith(place)
    assert words in str(caught.value)
    assert ("ini pythonpath" in str(caught.value)) == (subject == "nolab.rewards:f")


@pytest.mark.parametrize(
    ("ini", "words"),
    [
        ({"visible_text": "mylab:two"}, "no guard exercises 'visible_text'. Did you mean mylab:visible_text?"),
        ({"mylab:visible_txt": "mylab:two"}, "exercises 'mylab:visible_txt'. Did you mean mylab:visible_text?"),
        ({"mylab:visible_text": "mylab:two"}, "must be callable like mylab:visible_text(completion), but: missing"),
        ({"mylab:visible_text": "mylab:three"}, "mylab:visible_text = mylab:three: cannot be imported: AttributeError"),
        ({"mylab:visible_text": "mylab:LIMIT"}, "mylab:visible_text = mylab:LIMIT: is not callable"),
        ({"mylab:visible_text": "mylab_dies:f"}, "mylab_dies:f: cannot be imported: the process that tried ended with"),
    ],
)
def test_wrong_ini_line_names_the_ini(check, ini, words):
    with pytest.raises(subjects.SubjectError) as caught:
        check("mylab:visible_text", ini)
    assert str(caught.value).startswith(f"{INI}: ")
    assert words in str(caught.value)


def test_shipped_subjects_need_no_other_process(monkeypatch):
    def start(*_, **__):
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "run", start)
    settings = SimpleNamespace(subjects={}, source={"subjects": "default"}, start_timeout=60.0)
    subjects.check(settings, catalogue.load([catalogue.SHIPPED]))


def test_guard_names_a_wrong_subject_that_was_not_checked_before(check, unloaded, tmp_path):
    """Under ``-n`` without ``--hw`` only the workers know of the entries: the guard says as much."""
    failure, settings = check("mylab:visible_text")
    (tmp_path / "mylab.py").write_text("")
    with pytest.raises(subjects.SubjectError, match=r"failure.toml: failure .*: key 'subject': mylab:visible_text: "):
        subjects.under_guards(failure, settings)
    settings.subjects = {"mylab:visible_text": "mylab_lacks:f"}
    (tmp_path / "mylab.py").write_text(MODULES["mylab"])
    sys.modules.pop("mylab")
    with pytest.raises(subjects.SubjectError, match=f"{INI}: mylab:visible_text = mylab_lacks:f: cannot be imported"):
        subjects.under_guards(failure, settings)


def test_subject_is_listed_by_its_own_name(tmp_path, capsys):
    write_failures(tmp_path, ENTRY.replace("SUBJECT", "mylab.rewards:visible_text"))
    assert cli.main(["list", "--scenarios", str(tmp_path), "--markdown", "reasoning-is-rewarded"]) == 0
    assert "```python\nfrom mylab.rewards import visible_text\n```\n" in capsys.readouterr().out


@pytest.fixture
def scenario(pytester):
    """Put a scenario with that subject into ``lab/``, and mylab where ini ``pythonpath`` says."""

    def scenario(subject):
        folder = pytester.mkdir("lab")
        write_failures(folder, ENTRY.replace("SUBJECT", subject))
        (folder / "test_it.py").write_text(
            "import pytest\n@pytest.mark.guards('reasoning-is-rewarded')\n"
            "def test_it(subject):\n    assert subject.__module__ == 'mylab'"
        )
        pytester.makepyfile(**{"src/mylab": MODULES["mylab"]})
        pytester.makeini("[pytest]\npythonpath = src\nrlregress_scenarios = lab\n")
        return folder

    return scenario


@pytest.mark.parametrize("options", [["--hw=cpu"], ["--hw=cpu", "-n2"], []])
def test_wrong_entry_ends_pytest_at_once(scenario, run, options):
    folder = scenario("mylab:visible_txt")
    result = run({}, *options, "lab", here="-n2" not in options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    entry = folder / "reasoning_is_rewarded" / "failure.toml"
    words = f"ERROR: {entry}: failure reasoning-is-rewarded: key 'subject': mylab:visible_txt: cannot be"
    assert words in result.stderr.str()
    assert "Traceback" not in result.stderr.str()


@pytest.mark.parametrize("options", [["--hw=cpu"], ["-n2"]])
def test_ini_pythonpath_is_where_modules_are_found(scenario, run, options):
    scenario("mylab:visible_text")
    run({}, *options, "lab").assert_outcomes(passed=1)


CHECK = "def test_it(subject):\n    assert subject('2') == '2', subject.__module__\n"


@pytest.fixture
def checked(scenario, pytester):
    """A scenario whose remedy has checks of its own."""
    folder = scenario("mylab:visible_text")
    (folder / "reasoning_is_rewarded" / "remedy_checks.py").write_text(CHECK)
    pytester.makepyfile(**{"src/mytrainer": "def nothing(completion): return ''\n"})
    return pytester


@pytest.mark.parametrize("options", [["--hw=cpu"], ["--hw=cpu", "-n1"], ["--rl-inline"]])
def test_remedy_checks_guard_the_replacing_function(checked, run, options):
    ini = checked.path.joinpath("tox.ini")
    ini.write_text(ini.read_text() + "\nrlregress_subjects = mylab:visible_text = mytrainer:nothing\n")
    result = run({}, *options, "lab")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["- reasoning-is-rewarded: 2 of 2 guards regressed under `mytrainer:nothing`*"])


def test_checks_of_the_shipped_remedy_are_not_collected(checked, run):
    run({}, "--hw=cpu", "lab").assert_outcomes(passed=1)


def test_checks_named_on_the_command_line_are_ordinary_tests(checked, run):
    result = run({}, "--hw=cpu", "lab/reasoning_is_rewarded/remedy_checks.py")
    result.assert_outcomes(passed=1)
    assert "held" not in result.stdout.str()
