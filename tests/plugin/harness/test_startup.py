"""Start-up with the plugin installed: nothing heavy is imported before a test asks for it."""

from __future__ import annotations

import re
import subprocess
import sys

import needs
import pytest
from histories import make

from pytest_rlregress.cli import COMMANDS

HEAVY = ("torch", "vllm", "ray", "transformers", "numpy", "tensordict", "verl", "trl", "pynvml", "psutil")
PROBE = """
import sys, pytest
class Look:
    def pytest_sessionfinish(self):
        print("IMPORTED", sorted(name for name in {heavy!r} if name in sys.modules))
sys.exit(pytest.main({args!r}, plugins=[Look()]))
"""


def imported(pytester, *args, said="1 passed"):
    """The heavy modules that a run of pytest imports which says this at its end."""
    code = PROBE.format(heavy=HEAVY, args=["-s", "-p", "no:hypothesispytest", *args])
    done = subprocess.run([sys.executable, "-c", code], cwd=pytester.path, capture_output=True, text=True)
    assert re.search(said, done.stdout), done.stdout
    line = next(line for line in done.stdout.splitlines() if "IMPORTED" in line)
    return eval(line.partition("IMPORTED")[2])


def test_unused_plugin_imports_nothing_heavy(pytester):
    pytester.makepyfile("def test_it(): pass")
    assert imported(pytester) == []


def test_collecting_the_scenarios_imports_no_stack(pytester):
    found = imported(pytester, "--hw=cpu", "--collect-only", "-q", said=r"\d{3,} tests collected")
    assert set(found) <= {"pynvml", "psutil"}


@needs.stack
def test_contained_test_brings_no_stack_into_pytest(pytester):
    pytester.makepyfile(
        "import pytest\n@pytest.mark.needs('torch')\ndef test_it():\n    import sys\n    assert 'torch' in sys.modules"
    )
    assert set(imported(pytester)) <= {"pynvml", "psutil"}


@needs.stack
@pytest.mark.slow
def test_stack_fixture_without_a_marker_brings_no_stack_into_pytest(pytester):
    pytester.makepyfile(
        """
        def test_model(hf_runner):
            import sys
            assert "torch" in sys.modules
            open("ran", "x").close()

        def test_by_name(request): request.getfixturevalue("hf_runner")
        """
    )
    assert set(imported(pytester, said="1 failed, 1 passed")) <= {"pynvml", "psutil"}
    assert (pytester.path / "ran").exists()


def test_probe_sees_what_a_test_imports(pytester):
    pytester.makepyfile("def test_it(): import numpy")
    assert imported(pytester) == ["numpy"]


COMMAND = """
import sys
from pytest_rlregress.cli import main
try:
    code = main({args!r})
except SystemExit as end:
    code = end.code
print("CODE", code)
print("IMPORTED", sorted(name for name in sys.modules if name in {heavy!r} or name.endswith("_command")))
"""


#: Of a command its arguments, its exit code and the heavy modules it may import; of the others the help is asked for.
ASKED = {
    "list": ("list", 0, ()),
    "diagnose": ("diagnose log", 3, ()),
    "preflight": ("preflight run.toml --hw=h100", 3, ("psutil", "pynvml")),
    "report": ("report records --json -", 0, ()),
    "run": ("run --hw=h100 --record-dir=. --output=nowhere/page.html", 2, ("psutil",)),
}


@pytest.mark.parametrize(
    ("args", "code", "also"), [ASKED.get(name, (f"{name} --help", 0, ())) for name in COMMANDS], ids=COMMANDS
)
def test_a_command_imports_no_pytest_and_no_other_command(tmp_path, args, code, also):
    (tmp_path / "log").write_text("ValueError: no\n")
    (tmp_path / "run.toml").write_text("[trainer]\n")
    make(tmp_path / "records", nights=1, tests=2)
    script = COMMAND.format(args=args.split(), heavy=("pytest", "_pytest", *HEAVY))
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert f"CODE {code}\n" in done.stdout, done.stdout + done.stderr
    name = args.split()[0]
    found = eval(done.stdout.partition("IMPORTED")[2])
    assert set(found) <= {f"pytest_rlregress.commands.{name}.{name}_command", *also}, done.stderr


def test_the_list_of_commands_imports_none():
    code = COMMAND.format(args=["--help"], heavy=("pytest", "_pytest", "packaging", *HEAVY))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert eval(done.stdout.partition("IMPORTED")[2]) == []
    for name, summary in COMMANDS.items():
        assert name in done.stdout
        assert summary.split()[0] in done.stdout
