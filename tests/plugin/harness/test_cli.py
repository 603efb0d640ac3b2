"""The command ``rlregress``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata

import pytest
from made_failures import FAILURES, write_failures
from patience import PATIENCE

from pytest_rlregress.cli import main
from pytest_rlregress.commands.list import list_command
from pytest_rlregress.failures import catalogue


def test_list_names_every_failure_with_its_remedy(capsys):
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    words = " ".join(printed.split())
    for failure in catalogue.load([catalogue.SHIPPED]).values():
        assert f"{failure.id}: {failure.title}" in words
        assert " ".join(failure.remedy.split())[:30] in words
    # a trainer's key with its whole path is one word, however long, and so is code in backticks
    spaced = [line for line in printed.splitlines() if " " in line.strip() and "`" not in line]
    assert all(len(line) <= 100 for line in spaced)


def test_list_prints_json(capsys):
    assert main(["list", "--json", "dataproto-concat-keys"]) == 0
    (failure,) = json.loads(capsys.readouterr().out)
    assert failure["subject"] == "align_batches"


@pytest.mark.parametrize(
    ("asked", "meant"), [("dataproto-concat-key-s", "dataproto-concat-keys"), ("sync-partial", "partial-weight-sync")]
)
def test_unknown_id_suggests_the_nearest(capsys, asked, meant):
    """The nearest ids, however far they are, not the first of the alphabet."""
    assert main(["list", asked]) == 2
    printed = capsys.readouterr()
    assert meant in printed.err.partition("Did you mean ")[2]
    assert not printed.out


def test_list_finds_failures_by_a_word(capsys):
    assert main(["list", "--brief", "Prefix"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("prefix-cache-stale-weights: ") for line in lines)
    assert 1 < len(lines) < 20


@pytest.mark.parametrize("word", ["tensordict", "size of tensor a"])
def test_list_finds_components_and_error_texts(capsys, word):
    assert main(["list", "--brief", word]) == 0
    assert capsys.readouterr().out


def test_command_without_arguments_prints_help(capsys):
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "upgrade" in capsys.readouterr().out


def test_a_misspelt_command_names_the_nearest(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["diagnos", "run.log"])
    assert "no command 'diagnos': did you mean diagnose?" in capsys.readouterr().err


def test_an_unknown_option_shows_the_usage_of_its_command(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["preflight", "run.yaml", "--hwd=h100"])
    printed = capsys.readouterr().err
    assert printed.startswith("usage: rlregress preflight ")
    assert "rlregress preflight: error: unrecognized arguments: --hwd=h100" in printed


def test_an_error_names_its_command_once(capsys):
    assert main(["list", "no-such-failure"]) == 2
    assert capsys.readouterr().err.startswith("rlregress list: failure id ")


def test_list_expects_nothing_of_what_is_not_installed(monkeypatch, capsys):
    monkeypatch.setattr(list_command, "missing", lambda components: dict.fromkeys(components, "not installed"))
    assert main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    needing = [one for one in listed if one["components"]]
    assert needing
    assert all(one["expected_here"] is None and one["not_installed_here"] for one in needing)
    assert main(["list", "resume-from-scratch"]) == 0
    assert capsys.readouterr().out.endswith("\n1 failure\n")


def test_prints_the_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"pytest-rlregress {metadata.version('pytest-rlregress')}\n"


def rlregress(*arguments, cwd=None, **options):
    command = [sys.executable, "-m", "pytest_rlregress.cli", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, **options)


INI_FILES = {
    "pytest.ini": "[pytest]\nrlregress_scenarios = mine\n",
    "tox.ini": "[pytest]\nrlregress_scenarios = mine\n",
    "setup.cfg": "[tool:pytest]\nrlregress_scenarios =\n  mine\n",
    "pyproject.toml": '[tool.pytest.ini_options]\nrlregress_scenarios = "mine"\n',
}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project whose scenarios are in ``mine``; the working directory is one of its folders."""
    for folder in ("mine", "train"):
        (tmp_path / folder).mkdir()
    write_failures(tmp_path / "mine", FAILURES)
    monkeypatch.chdir(tmp_path / "train")
    monkeypatch.delenv("RLREGRESS_SCENARIOS", raising=False)
    return tmp_path


@pytest.mark.parametrize("name", INI_FILES)
def test_reads_scenarios_from_the_ini_file(project, capsys, name):
    assert main(["list", "short-column"]) == 2
    (project / name).write_text(INI_FILES[name])
    assert main(["list", "short-column"]) == 0
    assert "short-column: A column is short" in capsys.readouterr().out
    # --scenarios is the whole of them, as the environment is.
    assert main(["list", "short-column", "--scenarios", str(project / "train")]) == 2


def test_ignores_options_of_other_plugins_in_the_ini_file(project, capsys):
    lines = [
        "addopts = --no-such-option -n 9",
        "required_plugins = pytest-no-such",
        "filterwarnings = error",
        "odd = 1",
    ]
    (project / "pytest.ini").write_text("\n".join([INI_FILES["pytest.ini"], *lines]))
    (project / "conftest.py").write_text("raise RuntimeError")
    assert main(["list", "short-column"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""


def test_diagnose_reads_the_ini_file(project):
    (project / "pytest.ini").write_text(INI_FILES["pytest.ini"])
    done = rlregress("diagnose", "-", cwd=project, input="AssertionError: column 3 is short\n")
    assert done.stdout.startswith("short-column: "), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("pytest.ini", "[pytest]\nrlregress_scenarios = nope\n", "rlregress_scenarios in pytest.ini: 'nope' is not"),
        ("pyproject.toml", "[tool.pytest.ini_options\nrlregress_scenarios = 1", "pyproject.toml"),
    ],
)
def test_rejects_an_unreadable_ini_file(project, name, text, words):
    (project / name).write_text(text)
    done = rlregress("list", cwd=project)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout


def test_rejects_a_path_that_is_not_a_folder():
    done = rlregress("list", "--scenarios", "no/such/folder")
    assert done.returncode == 2
    assert "'no/such/folder' isn't a folder here" in done.stderr


@pytest.mark.parametrize("arguments", [["list"], ["list", "--json"], ["list", "--help"], ["preflight", "--help"]])
def test_exits_quietly_if_the_reader_closes_the_pipe(arguments):
    read, write = os.pipe()
    os.close(read)
    try:
        command = [sys.executable, "-m", "pytest_rlregress.cli", *arguments]
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
    finally:
        os.close(write)
    assert done.stderr == ""
    assert done.returncode == (0 if "--help" in arguments else 141)  # argparse takes no notice of its reader


@pytest.mark.parametrize("command", ["diagnose", "audit", "report"])
def test_internal_error_has_exit_code_2(command, monkeypatch, capsys):
    def fail(options):
        raise ZeroDivisionError("of our own")

    monkeypatch.setattr(f"pytest_rlregress.commands.{command}.{command}_command.run", fail)
    assert main([command, "x"]) == 2  # Python's 1 says that there is a finding
    assert "ZeroDivisionError: of our own" in capsys.readouterr().err


def test_long_id_is_not_wrapped(tmp_path, capsys):
    failure_id = "a-column-of-the-batch-" + "-and-".join(["is-short"] * 12)
    write_failures(tmp_path, FAILURES.replace("short-column", failure_id))
    assert main(["list", failure_id, "--scenarios", str(tmp_path)]) == 0
    assert f"{failure_id}:" in capsys.readouterr().out.splitlines()
