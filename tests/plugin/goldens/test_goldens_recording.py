"""When a golden is written, where, and what is said of it."""

from __future__ import annotations

import subprocess

import msgspec
import pytest
from cards import h200
from made_goldens import GOLDEN, but, keep

from pytest_rlregress import stack
from pytest_rlregress.goldens.golden import read
from pytest_rlregress.goldens.recording import find_commit

pytestmark = pytest.mark.slow

with_ = msgspec.structs.replace
GIT = ["git", "-c", "user.name=me", "-c", "user.email=me@example.org"]
MEASURES = """
import pytest

{mark}
def test_measures(request):
    request.node.user_properties.append(("rlregress_golden_draft", {draft!r}))
"""
SETTLES = """
import msgspec
from pytest_rlregress.goldens import golden, golden_step

class Step:
    variants = ()
    get_key = staticmethod(lambda: None)

def test_settles(request, monkeypatch):
    monkeypatch.setattr(golden_step, "measure", lambda *args: msgspec.json.decode({draft!r}, type=golden.Golden))
    golden_step.compare_or_record(Step, request.node, print)
"""
PLUGINS = ("-p", "pytest_rlregress.plugin", "-p", "xdist")
RECORD = (*PLUGINS, "--hw=cpu", "--rl-update-goldens", ".")


@pytest.fixture
def checkout(pytester, monkeypatch):
    """A checkout that goldens may be written to, with a test that measures one."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # half of the time of these runs

    def checkout(golden=GOLDEN, mark="", body=MEASURES):
        pytester.makeini("[pytest]\nrlregress_goldens = kept/here\n")
        draft = msgspec.json.encode(with_(golden, origin={})).decode()
        pytester.makepyfile(test_it=body.format(draft=draft, mark=mark))
        (pytester.path / ".gitignore").write_text("__pycache__\n.cache\nignored\n")
        for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
            subprocess.run([*GIT, *command], check=True, cwd=pytester.path)
        return pytester.path

    return checkout


def written(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.json*"))


def test_writes_a_golden_with_its_origin(checkout, run):
    """Measured in a contained child of a worker of xdist, written once by the process that is neither."""
    folder = checkout(mark="@pytest.mark.isolated")
    result = run({}, *RECORD, "-n2", "--rl-record-dir=records")
    path = folder / "kept" / "here" / GOLDEN.file
    assert result.ret == 0
    assert f"recorded: {path}" in " ".join(result.stdout.str().split())
    golden = read(path)
    assert with_(golden, origin={}) == with_(GOLDEN, origin={})
    head = subprocess.run([*GIT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True, cwd=folder)
    assert golden.origin["commit"] == head.stdout.strip()
    assert golden.origin["versions"] == {name: v for name, v in stack.versions().items() if name in stack.COMPONENTS}
    [record] = folder.glob("records/*.json")
    assert "draft" not in record.read_text()


def test_golden_alone_counts_as_a_hardware_test_on_a_card(checkout, run, cards):
    """Else such a run counts as one that proved nothing, and records nothing."""
    cards(h200())
    folder = checkout(body=SETTLES)
    result = run({}, *PLUGINS, "--hw=h200", "--rl-update-goldens", "test_it.py")
    assert result.ret == 0, result.stdout.str()
    assert written(folder) == [f"kept/here/{GOLDEN.file}"]


def test_recording_again_says_what_changed(checkout, run):
    """The first one, not yet committed, does not make the checkout a dirty one."""
    folder = checkout(with_(GOLDEN, runs=but(up=0.03)))
    (folder / "kept" / "here").mkdir(parents=True)
    path = keep(folder / "kept" / "here")
    subprocess.run([*GIT, "add", "."], check=True, cwd=folder)
    result = run({}, *RECORD)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "*== goldens ==*",
            "recorded: *",
            "its numbers are not those of the one before (2027-03-14T02:15:00Z, commit 3f9a1c):",
            "token: loss drifts: mean Δ +0.03, tolerance 0.004",
            "installed since then: torch 2.13.0 -> *",
        ]
    )
    assert read(path).runs[0]["loss"] == but(up=0.03)[0]["loss"]
    path.write_text("{")
    again = run({}, *RECORD)
    again.stdout.fnmatch_lines(["recorded: *", "in place of an unreadable golden:*"])
    unchanged = run({}, *RECORD)
    unchanged.stdout.fnmatch_lines(["recorded: *", "its numbers agree with those of the one before (*"])


@pytest.mark.parametrize(
    ("more", "args", "code", "said"),
    [
        ("def test_fails(): assert 0", (), 1, "the run has failures (1)"),
        (
            "import pytest\n@pytest.mark.isolated\ndef test_dies(): import os; os.abort()",
            (),
            1,
            "the run has failures (1)",
        ),
        ("def test_ends(): raise KeyboardInterrupt", (), 2, "the run was ended, or failed (exit code 2)"),
        ("", ("-k", "nothing"), 1, "no test measured a golden"),
    ],
    ids=["failed", "crashed", "interrupted", "not-run"],
)
def test_failed_or_partial_run_records_nothing(checkout, run, more, args, code, said):
    folder = checkout()
    result = run({"test_more": more} if more else {}, *RECORD, *args)
    assert result.ret == code
    assert f"not recorded: {said}" in " ".join(result.stdout.str().split())
    assert written(folder) == []


def test_names_a_folder_that_cannot_be_written(checkout, run):
    folder = checkout()
    (folder / "kept").touch()
    result = run({}, *RECORD)
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    result.stdout.fnmatch_lines(["not recorded: *Not a directory*", "*1 passed*"])


def test_refusals_come_before_the_run(checkout, run, pytester):
    folder = checkout()
    result = run({}, *PLUGINS, "--rl-update-goldens", ".")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*command line --rl-update-goldens: records what one hardware gives*--hw*"])
    (folder / "test_it.py").write_text("def test_it(): print('RUNS')")
    result = run({}, *RECORD, "-s")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--rl-update-goldens: no golden can be recorded: * is not clean*: test_it.py.*"])
    result.stdout.no_fnmatch_line("*RUNS*")


def test_goldens_need_a_clean_checkout(checkout, tmp_path):
    folder = checkout()
    head = find_commit(folder / "not" / "there")
    assert len(head) == 40
    (folder / "kept").mkdir()
    keep(folder / "kept")
    subprocess.run([*GIT, "add", "."], check=True, cwd=folder)
    assert find_commit(folder / "kept") == head
    with pytest.raises(ValueError, match=r"not clean.*: kept/miniature-step_nvidia.*json"):
        find_commit(folder / "elsewhere")
    with pytest.raises(ValueError, match="is ignored by git"):
        find_commit(folder / "ignored" / "goldens")
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    with pytest.raises(ValueError, match="in a git checkout"):
        find_commit(outside)
