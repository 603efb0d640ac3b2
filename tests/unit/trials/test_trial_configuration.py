"""What a trial takes of the user's configuration, and what tells its folder from others."""

from __future__ import annotations

import os

import pytest

from pytest_rlregress.environments import RequestError
from pytest_rlregress.trials import configuration
from pytest_rlregress.trials.configuration import Options, choose, make_key, read_options


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty working folder, and no options in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return tmp_path


def test_takes_what_says_how_tests_are_run_and_nothing_that_writes():
    words = "-p no:randomly -Werror --junitxml=r.xml -k fast --basetemp out --cov x --cov-report html --rl-timeout=5 -x"
    assert choose(words.split()) == Options(
        ("-p", "no:randomly", "-Werror", "-k", "fast", "--rl-timeout=5"),
        ("--junitxml=r.xml", "--basetemp", "out", "--cov", "x", "--cov-report", "html", "-x"),
    )


def test_takes_no_word_that_stands_before_any_option():
    assert choose(["tests", "-k", "one"]) == Options(("-k", "one"), ("tests",))


def test_reads_ini_and_environment_and_takes_the_options_of_a_conftest(folder, monkeypatch):
    (folder / "pytest.ini").write_text(
        "[pytest]\naddopts = --backend=cuda --html=out.html\nrequired_plugins = no-such\nfilterwarnings = error\n"
    )
    (folder / "conftest.py").write_text("def pytest_addoption(parser): parser.addoption('--backend')\n")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-m 'not slow' --rl-record-dir=rec")
    options = read_options(["test_it.py::test_a"])
    assert options == Options(("--backend=cuda", "-m", "not slow"), ("--html=out.html", "--rl-record-dir=rec"))


@pytest.mark.parametrize("text", ["[pytest\n", "[pytest]\naddopts = 'open\n"])
def test_configuration_that_pytest_cannot_read_is_named(folder, text):
    (folder / "pytest.ini").write_text(text)
    with pytest.raises(RequestError, match="pytest's configuration cannot be read"):
        read_options([])


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pytest.ini", "[pytest]\nfilterwarnings = error\n"),
        ("setup.cfg", "[tool:pytest]\nxfail_strict = true\n"),
        ("pyproject.toml", "[tool.pytest.ini_options]\nxfail_strict = true\n"),
        ("pytest.toml", "[pytest]\nxfail_strict = true\n"),
        ("tox.ini", "[pytest]\nxfail_strict = true\n"),
    ],
)
def test_key_is_another_one_for_other_settings(folder, file, text):
    key = make_key(["test_it.py"])
    (folder / file).write_text(text)
    assert make_key(["test_it.py"]) != key


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pyproject.toml", "[project]\nname = 'other'\n"),
        ("setup.cfg", "[metadata]\nname = other\n"),
        ("notes.ini", "[pytest]\nxfail_strict = true\n"),
    ],
)
def test_key_is_the_same_where_nothing_is_said_to_pytest(folder, file, text):
    key = make_key(["test_it.py"])
    (folder / file).write_text(text)
    assert make_key(["test_it.py"]) == key


@pytest.mark.parametrize("file", [*configuration._TOML_FILES, *configuration._INI_FILES])
@pytest.mark.parametrize("content", [b"\xff[", b"tool = 5\n[tool.pytest]\n", b"tool = 5", b"[pytest]\na\n", b"\0" * 9])
def test_key_of_a_file_that_is_none_of_its_kind(folder, file, content):
    (folder / file).write_bytes(content)
    make_key([])


def test_key_of_a_pipe_among_the_settings(folder):
    os.mkfifo(folder / "pytest.ini")
    make_key([])


@pytest.mark.parametrize(("name", "other"), [("VLLM_USE_V1", True), ("RLREGRESS_HW", True), ("SSH_TTY", False)])
def test_key_holds_the_variables_that_decide(monkeypatch, name, other):
    monkeypatch.delenv(name, raising=False)
    key = make_key([])
    monkeypatch.setenv(name, "1")
    assert (make_key([]) != key) is other


def test_trial_gets_no_variable_by_which_it_would_write():
    assert {"PYTEST_ADDOPTS", "RLREGRESS_RECORD_DIR", "RLREGRESS_UPDATE_GOLDENS", "GITHUB_STEP_SUMMARY"} <= {
        *configuration.LEFT_OUT
    }
