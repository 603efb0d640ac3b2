"""`rlregress diagnose` on how processes died, in the words of crash handlers, shells, kernels and launchers."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from made_failures import write_failures
from test_diagnose import diagnose

from pytest_rlregress.failures.catalogue import Catalogue, load
from pytest_rlregress.logs.signals import process_end

# Copied from the programs' documentation, sources and public threads, but for torchrun's and accelerate's: theirs came
# from torch 2.13 and accelerate 1.15.
TOLD = {
    "*** SIGFPE received at time=1795277675 on cpu 0 ***": "SIGFPE",  # Abseil, in Ray
    "*** SIGSEGV (@0x0) received by PID 99 (TID 0x7f) from PID 0; stack trace: ***": "SIGSEGV",  # glog
    "!!!!!!! Segfault encountered !!!!!!!": "SIGSEGV",  # torch
    "[gpu-1:279  :0:279] Caught signal 8 (Floating point exception: integer divide by zero)": "SIGFPE",  # UCX
    "[gpu-1:00279] Signal: Bus error (7)": "SIGBUS",  # Open MPI
    "mpirun noticed that process rank 0 with PID 9 on node x exited on signal 11 (Segmentation fault).": "SIGSEGV",
    'Thread 1 "python" received signal SIGFPE, Arithmetic exception.': "SIGFPE",  # gdb
    "free(): double free detected in tcache 2": "SIGABRT",
    "terminate called after throwing an instance of 'c10::Error'": "SIGABRT",
    "[12345.678901] python[99]: segfault at 0 ip 00007f sp 00007f error 4 in libcuda.so.1[7f+5]": "SIGSEGV",
    "[12345.678901] traps: python3[99] trap divide error ip:7f sp:7f in libcublasLt.so.12[7f+3]": "SIGFPE",
    "Nov 23 04:01:18 gpu-1 kernel: traps: python3[99] general protection fault ip:55 sp:7f in x[5+1]": "SIGSEGV",
    "[Mon Nov 23 04:01:18 2026] Out of memory: Killed process 99 (python) total-vm:9kB, anon-rss:9kB": "SIGKILL",
    "Nov 23 04:01:18 gpu-1 kernel: oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python,pid=99": "SIGKILL",
    "Nov 23 04:01:18 gpu-1 systemd[1]: vllm.service: Main process exited, code=dumped, status=11/SEGV": "SIGSEGV",
    "2026-11-23T04:01:18Z gpu-1 systemd[1]: x.service: Main process exited, code=killed, status=9/KILL": "SIGKILL",
    "Ray worker 1234 (actor Rollout) is gone and left no word: SIGKILL, perhaps out of memory, or os._exit": "SIGKILL",
    "E1123 04:46:47.876000 24490 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -8) "
    "local_rank: 0 (pid: 24609) of binary: /usr/bin/python": "SIGFPE",
    "  exitcode  : -8 (pid: 24609)  (SIGFPE)": "SIGFPE",
    "  traceback : Signal 8 (SIGFPE) received by PID 24609": "SIGFPE",
    "subprocess.CalledProcessError: Command '['python', 's.py']' died with <Signals.SIGFPE: 8>.": "SIGFPE",
    "RuntimeError: DataLoader worker (pid 99) is killed by signal: Bus error. It is possible that": "SIGBUS",
    "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGSEGV": "SIGSEGV",
    "worker 3 exited unexpectedly with signal 9": "SIGKILL",
    "srun: error: gpu-1: task 0: Segmentation fault (core dumped)": "SIGSEGV",
    "srun: error: gpu-1: task 3: Exited with exit code 139": "SIGSEGV",
    "srun: error: gpu-1: tasks 0-3: Killed": "SIGKILL",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks": "SIGKILL",
    "[2026-11-23 04:01:18,123] [ERROR] [launch.py:321:sigkill_handler] exits with return code = -9": "SIGKILL",
    "trainer-1 exited with code 137": "SIGKILL",  # docker compose
    "trainer exited with exit code 0137": "SIGKILL",
    "      Reason:       OOMKilled": "SIGKILL",  # kubectl describe
    "Process finished with exit code 139 (interrupted by signal 11: SIGSEGV)": "SIGSEGV",  # PyCharm
    "zsh: killed     python train.py": "SIGKILL",
    "[1]    42 segmentation fault (core dumped)  python train.py": "SIGSEGV",
}


def seen(text):
    diagnosis = diagnose(Catalogue(), f"an ordinary line\n{text}\n")
    return [(one.signal, one.what) for one in diagnosis.unknown]


@pytest.mark.parametrize("line", TOLD)
def test_signal_is_named_in_every_wording(line):
    assert [name for name, _ in seen(line)] == [TOLD[line]]


@pytest.mark.parametrize(
    "line", ["exitcode: 08", f"exit code {'9' * 5000}", f"Caught signal {'9' * 5000} (", f"by signal {'9' * 5000}"]
)
def test_ignores_numbers_that_are_not_signals(line):
    found = process_end(line)
    assert found is None or found.signal is None


@pytest.mark.parametrize(
    "line",
    [
        "INFO 12-01 05:34:47 [x.py:1] worker 3 exited unexpectedly with signal 9",
        "If a process exited with code 137, give it more memory.",
        "> Segmentation fault (core dumped)",
        "Process finished with exit code 0",
        "  OOMKilled: false",
        "the step ended, exit criteria 0.5",
        "Received signal 15, shutting down",  # what follows from it isn't a crash
        "Killed the previous job",
    ],
)
def test_mentioned_signal_is_not_a_crash(line):
    assert [name for name, _ in seen(line) if name not in (None, "SIGTERM")] == []


@pytest.mark.process
@pytest.mark.parametrize("name", ["SIGFPE", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL"])
def test_reads_signals_from_faulthandler_and_shell(name):
    script = f"import faulthandler, signal; faulthandler.enable(); signal.raise_signal(signal.{name})"
    died = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    [(found, what)] = seen(died.stderr)
    assert found == name
    assert "Fatal Python error" in what
    with pytest.raises(subprocess.CalledProcessError) as caught:
        died.check_returncode()
    assert [found for found, _ in seen(f"subprocess.CalledProcessError: {caught.value}")] == [name]
    # The shell's word belongs to the same crash.
    shell = subprocess.run(
        ["bash", "-c", f'{sys.executable} -c "{script}"; true'], stderr=subprocess.PIPE, text=True, check=True
    )
    assert "line 1:" in shell.stderr
    assert [found for found, _ in seen(shell.stderr)] == [name]


def test_every_number_has_its_name():
    for number in signal.SIGSEGV, signal.SIGKILL, signal.SIGFPE:
        for text in f"exitcode: -{number}", f"exit code {128 + number}", f"caught, killed by signal {number}":
            found = process_end(text)
            assert found, text
            assert found.signal == number.name


STACKS = (
    # UCX with and without symbols, Open MPI, torch, gdb, systemd-coredump
    " 1 0x0000000000a0bc59 cublasLt_for_cublas_ZZZ()  ???:0",
    " 3  /usr/lib/libcublasLt.so.12(cublasLtMatmul+0x1f) [0x7f8b]",
    "[gpu-1:00279] [ 2] /usr/lib/libcublasLt.so.12(+0x8f0e2c)[0x7f8b]",
    "frame #1: cublasLtMatmul + 0x57 (0x7f8b in /lib/libcublasLt.so.12)",
    "#1  0x00007f8b in cublasLtMatmul () from /usr/lib/libcublasLt.so.12",
    "#1  0x00007f8b cublasLtMatmul (libcublasLt.so.12 + 0x5f0b5a)",
    "    @     0x7f8b        123  cublasLtMatmul",
)
CUBLAS = """
id = "product-divides-by-zero"
title = "A product divides by zero"
seen_on = "any"
components = {}
cause = "c"
remedy = "r"
[[signature]]
signal = "SIGFPE"
in = ["cublasLt"]
"""


CAUGHT = "[gpu-1:279:0:279] Caught signal 8 (Floating point exception: integer divide by zero)"


@pytest.mark.parametrize(
    "crash",
    [
        *(f"{CAUGHT}\n{frame}" for frame in STACKS),
        "traps: python3[99] trap divide error ip:7f sp:7f error:0 in libcublasLt.so.12[7f+3]",
    ],
)
def test_native_stack_belongs_to_the_crash(crash, tmp_path):
    write_failures(tmp_path, CUBLAS)
    found = diagnose(load([tmp_path]), f"{crash}\n")
    assert [one.failure.id for one in found.documented] == ["product-divides-by-zero"]


LISTED = {
    'ERROR: failed to solve: process "/bin/sh -c pip install x" did not complete successfully: exit code: 1': 1,
    '#11 ERROR: process "/bin/sh -c pip install x" did not complete successfully: exit code: 1': 1,
    "  error: subprocess-exited-with-error": 1,
    "ERROR: Failed building wheel for flash-attn": 1,
    "csrc/matmul.cu:12:3: fatal error: cuda_runtime.h: No such file or directory": 1,
    "  × No solution found when resolving dependencies:\n  error: exit status 1": 2,
    "ninja: build stopped: subcommand failed.": 1,
    "make: *** [Makefile:12: all] Error 2": 1,
    "2022-12-20 22:02:13,602\tERROR agent.py:217 -- Raylet is terminated": 1,
    "vllm.service: Main process exited, code=exited, status=1/FAILURE": 1,
    "##[error]Process completed with exit code 1.": 1,
    "(raylet) A worker died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits": 1,
    "ERROR 12-01 05:34:47 [core.py:1] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.": 1,
    "Process finished with exit code 1\nProcess finished with exit code 0": 1,
    # Frames whose exception is not in the excerpt.
    '  File "/opt/a.py", line 12, in step\n    self.run()\n': 1,
    # What an exception explains is counted, and not listed.
    "ValueError: no such model\nERROR: the step failed\n##[error]Process completed with exit code 1.": 1,
    "ValueError: no such model\nslurmstepd: error: Detected 1 oom_kill event in StepId=12.0.": 2,
}


@pytest.mark.parametrize("text", LISTED)
def test_lists_each_event(text):
    assert len(seen(text)) == LISTED[text]


def test_counts_lines_that_another_event_explains():
    text = "ValueError: no such model\nERROR: the step failed\n##[error]Process completed with exit code 1.\n"
    assert diagnose(Catalogue(), text).left_out == 2


TORCHRUN = """\
E1123 04:46:47.876000 24490 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -8) local_rank: 0
Traceback (most recent call last):
  File "/opt/torch/distributed/launcher/api.py", line 383, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
=====================================================
s.py FAILED
Root Cause (first observed failure):
[0]:
  exitcode  : -8 (pid: 24609)  (SIGFPE)
  traceback : Signal 8 (SIGFPE) received by PID 24609
=====================================================
"""


def test_launchers_words_for_one_crash_are_one_event():
    assert [name for name, _ in seen(TORCHRUN)] == ["SIGFPE", None]
    own = "Fatal Python error: Floating point exception\n" + "a line\n" * 100
    assert [name for name, _ in seen(own + TORCHRUN)].count("SIGFPE") == 1


def test_engine_stopped_by_sigterm_is_not_a_failure():
    # vLLM's API server, when its engine core was stopped; vLLM 0.31 says no more than the first of these lines.
    stopped = """\
(EngineCore pid=24328) INFO 11-23 04:47:25 [core.py:1409] [shutdown] EngineCore: trigger received signal=SIGTERM
(APIServer pid=24065) ERROR 11-23 04:47:26 [async_llm.py:480] Traceback (most recent call last):
(APIServer pid=24065) ERROR 11-23 04:47:26 [async_llm.py:480]   File "/opt/vllm/v1/engine/core.py", line 9, in get
(APIServer pid=24065) ERROR 11-23 04:47:26 [async_llm.py:480]     raise EngineDeadError()
(APIServer pid=24065) ERROR 11-23 04:47:26 [async_llm.py:480] vllm.v1.engine.exceptions.EngineDeadError: see above
"""
    assert [name for name, _ in seen(stopped)] == [None]
    with_cause = f"ValueError: no such model\n{stopped}"
    assert [what for _, what in seen(with_cause)] == ["ValueError: no such model"]


RAY_DIED = (
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
    "\tThe actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
    "Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) "
    "The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called. (3) The "
    "worker is crashed unexpectedly due to SIGSEGV or other unexpected errors.\n"
)
KERNEL = "[12345.678901] Memory cgroup out of memory: Killed process 4242 (ray::Worker) total-vm:9kB, anon-rss:9kB"


@pytest.mark.parametrize("before", ["", "(raylet) A worker died or was killed by an unexpected system error. "])
def test_list_of_possible_causes_names_no_signal(before):
    said = seen(before + RAY_DIED.partition("\t")[2])
    assert [signal for signal, _ in said] == [None]
    assert [signal for signal, _ in seen(RAY_DIED)] == [None]


def test_shows_the_kernel_line_beside_the_death_it_explains():
    assert [signal for signal, _ in seen(RAY_DIED + KERNEL)] == [None, "SIGKILL"]
