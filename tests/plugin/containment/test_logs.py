"""The logs a test depends on: an engine's error, the last lines, and what Ray's workers died of."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from patience import PATIENCE

from pytest_rlregress.fixtures import ray_cluster
from pytest_rlregress.logs import ansi, engine, watched
from pytest_rlregress.logs.watched import Logs

UP = 'INFO:     127.0.0.1:42926 - "GET /health HTTP/1.1" 200 OK\n'
COMPLETED = 'INFO:     127.0.0.1:42944 - "POST /v1/completions HTTP/1.1" 200 OK\n'
REFUSED = 'INFO:     127.0.0.1:35682 - "POST /v1/completions HTTP/1.1" 400 Bad Request\n'
UNIMPORTANT = (
    "(EngineCore pid=7) ERROR 05-12 10:00:01 [fa_utils.py:57] Cannot use FA version 2 is not supported due to it\n"
)
DIED = (
    "(APIServer pid=1) ERROR 11-21 16:08:50 [async_llm.py:871] vllm.v1.engine.exceptions.EngineDeadError: EngineCore "
    "encountered an issue. See stack trace (above) for the root cause.\n"
)
CAUGHT = "(APIServer pid=1) ERROR 06-02 18:56:38 [server_utils.py:380] Exception caught. Request id: None\n"
EXCEPTION = """\
ERROR:    Exception in ASGI application
Traceback (most recent call last):
  File "vllm/v1/engine/core_client.py", line 1254, in _call_utility_async
    return await future
           ^^^^^^^^^^^^
Exception: Call to collective_rpc method failed: Method 'nonsense' is not implemented.

"""


def append(path, text):
    with path.open("a") as file:
        file.write(text)


@pytest.fixture
def clock(monkeypatch):
    """The clock by which stalls are told, in ``clock.seconds``: it stands still until the test moves it."""
    clock = SimpleNamespace(seconds=100.0)
    for module in (engine, watched):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.seconds))
    return clock


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "server.log"
    path.write_text(UP)
    return path


@pytest.fixture
def logs(log, tmp_path):
    logs = Logs(tmp_path / "output.log")
    logs.watch(log)
    logs.begin()
    return logs


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        (REFUSED, "400 Bad Request"),
        (EXCEPTION + UP, "Method 'nonsense' is not implemented"),
        (CAUGHT + REFUSED + EXCEPTION, "400 Bad Request"),
        (CAUGHT + REFUSED + EXCEPTION, "Method 'nonsense' is not implemented"),
        (DIED, "EngineDeadError"),
        (UNIMPORTANT, "Cannot use FA version 2"),  # an error by its level, the server is up
        (f"\x1b[36m(Rollout pid=9)\x1b[0m {DIED}", "EngineDeadError"),
        (REFUSED.replace("INFO", "\x1b[32mINFO\x1b[0m").replace("400 Bad", "\x1b[31m400 Bad"), "400 Bad Request"),
        (REFUSED + 'INFO: 127.0.0.1:1 - "POST /tokenize HTTP/1.1" 200 OK\n', "400 Bad Request"),
        (COMPLETED + REFUSED.replace("400 Bad Request", "500 Internal Server Error"), "500 Internal Server Error"),
    ],
)
def test_error_is_quoted_when_its_time_is_up(logs, log, clock, text, quoted):
    append(log, text)
    assert logs.stalled(4.0) is None
    clock.seconds += 3.9
    assert logs.stalled(4.0) is None
    clock.seconds += 0.1
    said = logs.stalled(4.0)
    assert quoted in said
    assert str(log) in said


@pytest.mark.parametrize(
    "text",
    [
        COMPLETED,
        "(APIServer pid=1) WARNING 11-21 16:08:40 [utils.py:579] Failed. Exception: ERROR in a primitive\n",
        "(APIServer pid=1) INFO 11-21 16:08:40 [logger.py:37] Received request: prompt: 'ERROR: EngineDeadError'\n",
        'the prompt was: INFO: "POST /v1/completions HTTP/1.1" 400 Bad Request\n',
        REFUSED.replace("POST", "GET"),
        REFUSED.replace("400 Bad Request", "429 Too Many Requests"),
        REFUSED + COMPLETED,
        EXCEPTION + COMPLETED,
        REFUSED.rstrip("\n"),  # still being written
    ],
)
def test_ordinary_lines_are_not_an_error(logs, log, text):
    append(log, text)
    assert logs.stalled(0.0) is None


def test_ignores_errors_logged_before_the_test(logs, log):
    append(log, REFUSED)
    logs.begin()
    assert logs.stalled(0.0) is None
    append(log, REFUSED)
    assert logs.stalled(0.0)
    logs.begin()
    assert logs.stalled(0.0) is None


@pytest.mark.parametrize("name", ["main.log", "session/worker-1-01000000-7.err"])
def test_engine_that_ends_with_its_run_is_not_a_stall(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    logs, watched = Logs(tmp_path / "output.log"), path if path.parent == tmp_path else path.parent
    logs.watch(watched)
    logs.begin()
    append(path, DIED)
    logs.watch(watched, ended=True)
    assert logs.stalled(0.0) is None
    assert DIED.strip() in dict(logs.tails())[f"end of {path}"]


def test_completed_request_starts_the_clock_again(logs, log, clock):
    append(log, REFUSED)
    assert logs.stalled(4.0) is None
    clock.seconds += 3.0
    append(log, COMPLETED + REFUSED)
    assert logs.stalled(4.0) is None
    clock.seconds += 3.0
    assert logs.stalled(4.0) is None
    clock.seconds += 1.0
    assert logs.stalled(4.0)


def test_ignores_harmless_errors_at_start(tmp_path):
    logs, log = Logs(tmp_path / "output.log"), tmp_path / "later.log"
    logs.watch(log)
    logs.begin()
    append(log, UNIMPORTANT)
    assert logs.stalled(0.0) is None
    append(log, DIED)
    assert "EngineDeadError" in logs.stalled(0.0)


@pytest.mark.parametrize("rotate", [os.truncate, lambda log, _: log.rename(log.with_suffix(".1"))])
def test_reads_a_rotated_log(logs, log, clock, rotate):
    append(log, COMPLETED * 10)
    logs.begin()
    rotate(log, 0)
    append(log, "first line\n" + REFUSED)
    assert "400" in logs.stalled(0.0)
    assert logs.tails() == [(f"end of {log}", "first line\n" + REFUSED.strip())]


def bytes_read():
    """How much this process has read by system calls."""
    return int(re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())[1])


def test_reads_the_end_of_a_huge_log(logs, log):
    os.truncate(log, 3 * 2**30)  # sparse
    append(log, "\n")
    before = bytes_read()
    assert logs.stalled(0.0) is None
    logs.begin()
    append(log, REFUSED)
    assert "400" in logs.stalled(0.0)
    assert logs.tails() == [(f"end of {log}", REFUSED.strip())]
    logs.begin()
    os.truncate(log, 6 * 2**30)
    append(log, "\n" + REFUSED)
    assert "400" in logs.stalled(0.0)
    assert logs.tails() == [(f"end of {log}", REFUSED.strip())]
    append(log, COMPLETED + "ERROR:    ")
    assert logs.stalled(0.0) is None
    os.truncate(log, 9 * 2**30)  # the rest of that line is not read, nor made up from what is
    append(log, "\n")
    assert logs.stalled(0.0) is None
    assert bytes_read() - before < 2**27


def test_reads_a_line_written_in_pieces(logs, log, clock):
    def writer():
        for character in EXCEPTION:
            append(log, character)
            time.sleep(0.001)

    thread = threading.Thread(target=writer)
    thread.start()
    while thread.is_alive():
        assert logs.stalled(4.0) is None
    thread.join()
    assert logs.stalled(4.0) is None
    clock.seconds += 4.0
    said = logs.stalled(4.0)
    assert said.splitlines()[0] == "ERROR:    Exception in ASGI application"
    assert "Method 'nonsense' is not implemented" in said


def test_engine_at_work_is_not_stalled(logs, log, clock):
    core = psutil.Popen([sys.executable, "-S", "-c", "while True: pass"])
    append(log, f"(EngineCore pid={core.pid}) INFO 11-21 16:08:40 [core.py:380] init engine took 0.18 s\n{REFUSED}")
    said = []
    for _ in range(4):
        said.append(logs.stalled(4.0))
        computed = core.cpu_times().user
        while core.cpu_times().user < computed + 0.25:  # a tenth of a core, of the clock's 2 s
            time.sleep(0.01)
        clock.seconds += 2.0
    core.send_signal(signal.SIGSTOP)  # computes nothing any more
    said.append(logs.stalled(4.0))
    clock.seconds += 4.0
    later = logs.stalled(4.0)
    core.kill()
    core.wait()
    assert said == [None] * 5
    assert "400 Bad Request" in later


def test_shows_the_tail_of_each_log(tmp_path, logs, log):
    ray = tmp_path / "logs"
    ray.mkdir()
    logs.watch(ray)
    append(log, "\x1b[31mred\x1b[0m\r\nshards:   0%\rshards: 100%\r\n")
    mark = ":job_id:01000000\n:actor_name:Rollout\n"
    (ray / "worker-0a-01000000-11.err").write_text(mark)
    (ray / "worker-0b-01000000-12.err").write_text(mark + "a warning\n")
    (ray / "worker-0b-01000000-12.out").write_text("not looked at\n")
    (ray / "raylet.out").write_text("[2026-11-21 16:14:35,568 I 1 1] (raylet) a\n[2026-11-21 16:14:35,568 W 1 1] b\n")
    assert dict(logs.tails()) == {
        f"end of {log}": "red\nshards: 100%",
        f"end of {ray / 'worker-0b-01000000-12.err'}": "a warning",
        f"end of {ray / 'raylet.out'}": "[2026-11-21 16:14:35,568 W 1 1] b",
    }
    assert logs.tails()[-1][0].endswith("raylet.out")
    for pid in range(40):
        (ray / f"worker-0c-01000000-{pid}.err").write_text("a line of some length, again and again\n" * 10_000)
    assert sum(len(text) for _, text in logs.tails()) <= 12_000
    assert all(len(text.splitlines()) <= 5 for _, text in logs.tails(lines=5))
    logs.begin()
    assert logs.tails() == []


def test_sigterm_is_how_ray_stops_a_worker(tmp_path):
    (tmp_path / "worker-0a-01000000-11.err").write_text("*** SIGTERM received at time=1795277675 on cpu 0 ***\n")
    logs = Logs(tmp_path / "output.log")
    logs.watch(tmp_path)
    assert logs.deaths() == []


@pytest.mark.slow
@pytest.mark.isolated(timeout=120)
@pytest.mark.needs("ray")
def test_names_the_cause_of_death_of_ray_workers(progress, tmp_path):
    logs = Logs(tmp_path / "output.log")
    with ray_cluster.start(say=progress) as cluster:
        import ray

        logs.watch(cluster.log_dir)

        @ray.remote(num_cpus=0)
        class Worker:
            def die(self, how):
                import ctypes

                libc = ctypes.CDLL(None)
                libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
                if how == "SIGFPE":
                    libc.div(1, 0)
                elif how == "SIGSEGV":
                    ctypes.string_at(0)
                elif how == "SIGABRT":
                    block = libc.malloc(64)
                    libc.free(block)
                    libc.free(block)
                elif how != "lives":
                    os.kill(os.getpid(), getattr(signal, how))
                return os.getpid()

        def die(how):
            worker = Worker.remote()
            pid = ray.get(worker.die.remote("lives"))
            with pytest.raises(ray.exceptions.ActorDiedError):
                ray.get(worker.die.remote(how))
            return pid

        def deaths(count):
            end = time.monotonic() + PATIENCE
            while len(logs.deaths()) < count and time.monotonic() < end:
                time.sleep(0.1)
            return {death.message: death for death in logs.deaths()}

        die("SIGSEGV")
        deaths(1)
        stopped = Worker.remote()
        ray.get(stopped.die.remote("lives"))
        logs.begin()
        assert logs.deaths() == []
        ray.kill(stopped)
        pids = {how: die(how) for how in ("SIGFPE", "SIGSEGV", "SIGABRT", "SIGKILL")}
        died = deaths(4)
        assert len(died) == 4, died
        for how in ("SIGFPE", "SIGSEGV", "SIGABRT"):
            death = died[f"Ray worker {pids[how]} (actor Worker) died of {how}"]
            assert death.signal == how
            assert "test_logs.py" in death.stack
            assert " in die\n" in death.stack
        assert "free(): double free detected" in death.stack
        [killed] = [death for message, death in died.items() if f"Ray worker {pids['SIGKILL']} " in message]
        assert killed.signal is None
        assert "is gone and left no word: SIGKILL" in killed.message
        assert any("Fatal Python error" in text for _, text in logs.tails())
        assert logs.stalled(0.0) is None
        logs.begin()
        raylet = cluster.nodes[0].all_processes["raylet"][0].process
        raylet.send_signal(signal.SIGSEGV)
        assert deaths(1)["Ray's raylet died of SIGSEGV"].signal == "SIGSEGV"


def test_a_link_to_a_folder_of_logs_may_be_replaced(tmp_path):
    """Ray points ``session_latest`` at another session: between two looks what was missing is a folder."""
    logs, link = Logs(tmp_path / "output.log"), tmp_path / "session_latest"
    logs.watch(link)
    logs.begin()
    engine = logs._engines[link]
    link.mkdir()
    assert engine.failure() is None
    assert ansi.read(link, 0, 9) == ""
