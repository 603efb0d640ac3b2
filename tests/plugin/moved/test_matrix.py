"""``rlregress moved --matrix`` on small wheels, by the real type checker."""

import json
import shutil
import sysconfig
from pathlib import Path

import pytest
from made_wheels import make_wheel, serve_links

from pytest_rlregress.cli import main
from pytest_rlregress.commands.moved import checker
from pytest_rlregress.commands.moved.engines import ENGINES
from pytest_rlregress.commands.moved.matrix_options import BELOW

has_checker = shutil.which("ty") or Path(sysconfig.get_path("scripts"), "ty").is_file()
needs_checker = pytest.mark.skipif(not has_checker, reason="ty is an extra")

TRAINER = """
from vllm.engine import Engine, {name}

try:
    from vllm.engine import caught
except ImportError:
    caught = None


def stop(engine: Engine):
    engine.pause(wait=True)
    engine.long_dead(1)
    if engine.fast:
        engine.sleep(2)
"""
ENGINE = """
class Engine:
    fast: bool = False
    def pause(self, *, wait: bool = False) -> None: ...
    def sleep(self, level: int) -> None: ...
    def long_dead(self) -> None: ...
def kept(): ...
def gone(): ...
def caught(): ...
"""
WITHOUT_NAMES = ENGINE.replace("def gone(): ...\ndef caught(): ...\n", "")
WITHOUT_ARGUMENTS = WITHOUT_NAMES.replace(", *, wait: bool = False", "").replace(", level: int", "")


@pytest.fixture
def links(tmp_path, monkeypatch):
    folder = serve_links(monkeypatch, tmp_path)
    for version, name in (("1.0", "gone"), ("1.1", "kept"), ("1.2", "kept")):
        files = {"trl/__init__.py": "", "trl/server.py": TRAINER.format(name=name)}
        make_wheel(folder, "trl", version, files, ['vllm<2,>=1; extra == "vllm"'])
    make_wheel(folder, "trl", "1.3rc1", {"trl/__init__.py": ""})
    for version, engine in (
        ("1.0", ENGINE),
        ("2.0", WITHOUT_NAMES),
        ("2.1", WITHOUT_NAMES),
        ("3.0", WITHOUT_ARGUMENTS),
    ):
        make_wheel(folder, "vllm", version, {"vllm/__init__.py": "", "vllm/engine.py": engine})
    return folder


def ask(capsys, *words):
    code = main(["moved", "--matrix", "trl", "--with", "vllm", "--json", *words])
    [found] = json.loads(capsys.readouterr().out)["matrices"]
    return code, {(pair["trainer"], pair["release"]): pair for pair in found["pairs"]}


def name(some):
    return [one["subject"] for one in some]


@needs_checker
def test_tells_what_breaks_from_what_is_conditional(capsys, links):
    code, pairs = ask(capsys)
    assert code == 1
    assert len(pairs) == 12  # without the release candidate
    assert name(pairs["1.0", "1.0"]["breaks"]) == []
    assert name(pairs["1.0", "2.0"]["breaks"]) == ["vllm.engine.gone"]
    assert name(pairs["1.2", "2.0"]["breaks"]) == []
    last = pairs["1.2", "3.0"]
    assert name(last["breaks"]) == ["pause(wait=…)"]
    assert [(one["subject"], one["part"]) for one in last["in_some_cases"]] == [
        ("sleep(…) with too many positional arguments", "if engine.fast")
    ]
    assert name(last["guarded"]) == ["vllm.engine.caught"]


@needs_checker
def test_what_fails_with_an_allowed_release_too_is_told_apart(capsys, links):
    pairs = ask(capsys)[1]
    dead = "long_dead(…) with too many positional arguments"
    assert [(one["subject"], one["before"]) for one in pairs["1.2", "2.0"]["also_with_what_is_required"]] == [
        (dead, "1.0")
    ]
    assert pairs["1.2", "1.0"]["allowed"]
    assert not pairs["1.2", "2.0"]["allowed"]


@needs_checker
def test_the_page_folds_releases_that_say_the_same(capsys, links, tmp_path):
    page = tmp_path / "binds.md"
    assert main(["moved", "--matrix", "trl", "--with", "vllm", "--out", str(page)]) == 1
    printed = capsys.readouterr()
    assert (
        "TRL 1.2 (requires vLLM <2,>=1): nothing breaks with vLLM 1.0 to 2.1; 1 breaks (`pause(wait=…)`)" in printed.out
    )
    assert "vllm 3.0 (4 of 4)" in printed.err
    text = page.read_text()
    [head] = (line for line in text.splitlines() if line.startswith("| TRL"))
    assert [cell.strip() for cell in head.split("|")[1:-1]] == [
        "TRL",
        "requires",
        "vLLM 1.0",
        "vLLM 2.0 to 2.1",
        "vLLM 3.0",
    ]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| 1.")]
    assert rows == [
        ["1.1 to 1.2", "<2,>=1", "binds", "binds", "**1 breaks**, 1 in some cases"],
        ["1.0", "<2,>=1", "binds", "**1 breaks**", "**2 break**, 1 in some cases"],
    ]
    assert [*tmp_path.glob(".*partial")] == []


@needs_checker
def test_a_release_that_cannot_be_read_is_not_green(capsys, links, tmp_path, monkeypatch):
    (links / "vllm-2.1-py3-none-any.whl").write_bytes(b"cut off")
    code, pairs = ask(capsys, "--last", "2")
    assert {key: bool(pair["not_read"]) for key, pair in pairs.items()} == {
        ("1.1", "2.1"): True,
        ("1.2", "2.1"): True,
        ("1.1", "3.0"): False,
        ("1.2", "3.0"): False,
    }
    assert code == 1
    (links / "vllm-3.0-py3-none-any.whl").write_bytes(b"cut off")
    monkeypatch.setenv("RLREGRESS_CACHE_DIR", str(tmp_path / "other"))
    assert ask(capsys, "--last", "1")[0] == 3


@needs_checker
def test_the_second_time_asks_no_checker(capsys, links, monkeypatch):
    first = ask(capsys)[1]
    monkeypatch.setattr(checker.Checker, "check", None)
    assert ask(capsys)[1] == first


def test_without_the_checker_it_is_not_read(capsys, links, monkeypatch):
    monkeypatch.setattr(checker.shutil, "which", lambda _: None)
    monkeypatch.setattr(checker.sysconfig, "get_path", lambda _: "/missing")
    assert main(["moved", "--matrix", "trl", "--with", "vllm"]) == 3
    assert "the type checker ty isn't installed here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--matrix", "trl"], "--matrix needs a package below the trainers: --with vllm"),
        (["--with", "vllm"], "--with belongs to --matrix"),
        (["--last", "3", "verl==0.7.0.."], "--last belongs to --matrix"),
        (["--matrix", "trl", "verl==0.7.0..", "--with", "vllm"], "'verl==0.7.0..' isn't a trainer that is compared"),
        (["--matrix", "trl", "--with", "numpy"], "'numpy' isn't a package below the trainers: --with takes vllm"),
        (["--matrix", "trl", "--with", "vllm", "--", "bash", "run.sh"], "not a run: leave out 'bash'"),
        (["--matrix", "trl", "--with", "vllm", "--out", "page.html"], "isn't a Markdown file"),
        (["--matrix", "trl", "--with", "vllm", "--out", "missing/page.md"], "missing isn't a folder"),
        (["--matrix", "verl", "--with", "vllm"], "no index has a wheel of verl"),
    ],
)
def test_says_in_a_sentence_that_the_input_is_bad(capsys, links, words, says):
    if "verl" in words and not has_checker:
        pytest.skip("ty is an extra")
    assert main(["moved", *words]) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert len(printed.err.splitlines()) == 1
    assert not printed.out


def test_the_options_know_every_package_below():
    assert set(BELOW) == {*ENGINES}
