"""Leaks: a test that passed fails over what it left behind, and over nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from pytest_rlregress.containment import leaks

MIB = 2**20


@pytest.fixture
def shared_memory():
    """A path that nothing has yet, in a folder of shared memory that only this test's run looks at."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="rlr-test-") as folder:
        yield Path(folder) / "file"


def looks_at(path):
    """Make a run take a path's folder for all of the shared memory, and wait no longer for it than for the rest."""
    return f"""
from pathlib import Path
from pytest_rlregress.util import shared_memory
shared_memory.FOLDER = Path({str(path.parent)!r})
leaks._NOBODYS_SECONDS = 0.2
"""


def test_that_cleans_up_passes(judged, shared_memory):
    result = judged(
        f"""
        import multiprocessing, socket
        from multiprocessing import shared_memory

        def test_cleans_up():
            subprocess.run(["true"])
            dying = subprocess.Popen(["sleep", "0.4"])
            open("{shared_memory}", "wb").close()
            os.unlink("{shared_memory}")
            sockets = [socket.socket() for _ in range(100)]
            sockets.append(sockets)  # a cycle: only the garbage collector closes them

        def test_housekeepers_of_multiprocessing_stay():
            memory = shared_memory.SharedMemory(create=True, size=10)  # starts the resource tracker
            memory.close()
            memory.unlink()
            server = multiprocessing.get_context("forkserver")
            process = server.Process(target=print)
            process.start()
            process.join()

        def test_bare():
            pass
        """,
        grace=5,
        more=looks_at(shared_memory),
    )
    result.assert_outcomes(passed=3)


def test_names_leaked_processes(judged):
    result = judged(
        """
        import multiprocessing, time

        def test_child_and_grandchild():
            subprocess.Popen(["sh", "-c", "sleep 98; true"])
            time.sleep(0.1)

        def test_next_one_is_not_blamed():
            pass

        def test_fork_server_forked_it():
            multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(97,), daemon=False).start()

        def test_fork():
            os.fork() or time.sleep(88)

        @pytest.fixture
        def engine():
            process = subprocess.Popen(["sleep", "96"])
            yield
            process.kill()

        def test_fixture_takes_it_down(engine):
            pass
        """
    )
    result.assert_outcomes(passed=5, errors=3)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_child_and_grandchild*",
            "leaked 2 processes: [0-9]* sh -c 'sleep 98; true', [0-9]* sleep 98",
            "*ERROR at teardown of test_fork_server_forked_it*",
            "leaked 1 process: [0-9]* *multiprocessing.forkserver*",
            "leaked 1 process: [0-9]* (a fork of the test's process)",
        ]
    )


DAEMON = """
import time
CODE = "import os, time; os.setsid(); os.fork() and os._exit(0); time.sleep(95)"

def test_daemon():
    subprocess.run([sys.executable, "-c", CODE])
"""


def test_daemon_in_its_own_session_is_found(judged):
    result = judged(DAEMON)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["leaked 1 process: *time.sleep(95)*"])


def test_parent_with_other_descendants_is_not_a_reaper(judged):
    neighbour = "import subprocess; subprocess.run(['sh', '-c', 'sleep 3 &'])"  # a new child of the reaper
    judged(
        f"""
        def test_has_neighbours():
            subprocess.run([sys.executable, "-c", {neighbour!r}])

        def test_leaks():
            subprocess.Popen(["sleep", "94"])
        """,
        reaper="",
    ).assert_outcomes(passed=2, errors=1)


def test_only_passing_tests_are_checked_for_leaks(judged):
    result = judged(
        """
        def leak():
            subprocess.Popen(["sleep", "93"])

        def test_fails():
            leak()
            assert False

        def test_skips():
            leak()
            pytest.skip("no")

        @pytest.mark.xfail
        def test_xfails():
            leak()
            assert False

        @pytest.fixture
        def broken():
            leak()
            yield
            raise RuntimeError("in teardown")

        def test_teardown_fails(broken):
            pass

        def test_next_one_is_not_blamed():
            pass
        """
    )
    result.assert_outcomes(failed=1, skipped=1, xfailed=1, passed=2, errors=1)
    result.stdout.no_fnmatch_line("*leaked*")


def test_fixture_of_a_wider_scope_keeps_what_it_made(judged):
    result = judged(
        """
        import time
        SERVER = "import subprocess, sys\\nfor _ in sys.stdin: print(subprocess.Popen(['sleep', '92']).pid, flush=True)"

        @pytest.fixture(scope="module")
        def cluster():
            process = subprocess.Popen([sys.executable, "-c", SERVER], stdin=-1, stdout=-1, text=True)
            files = [open(os.devnull) for _ in range(100)]

            def start_worker():
                print(file=process.stdin, flush=True)
                return int(process.stdout.readline())

            workers = []
            yield process, lambda: workers.append(start_worker())
            for worker in workers:
                os.kill(worker, 9)
            for file in files:
                file.close()

        def test_first(cluster):
            cluster[1]()

        def test_second(cluster):
            cluster[1]()

        def test_orphans_are_still_its_own(cluster):
            time.sleep(0.1)
            cluster[0].kill()
            cluster[0].wait()

        def test_last():
            pass
        """
    )
    result.assert_outcomes(passed=4)


def test_fixture_of_a_wider_scope_is_blamed_after_it_ended(judged, shared_memory):
    result = judged(
        f"""
        @pytest.fixture(scope="session")
        def inner():
            return subprocess.Popen(["sleep", "91"])

        @pytest.fixture(scope="session")
        def outer(request):
            request.getfixturevalue("inner")
            with open("{shared_memory}", "wb") as file:
                file.write(bytes(3 * 2**20))

        @pytest.fixture(scope="module", params=[1, 2])
        def cluster(request):
            process = subprocess.Popen(["sleep", f"9{{request.param}}0"])
            yield
            if request.param == 2:
                process.kill()

        def test_one(cluster, outer):
            pass

        def test_bare():
            pass

        def test_skipped_last():
            pytest.skip("a fixture is blamed all the same")
        """,
        more=looks_at(shared_memory),
    )
    result.assert_outcomes(passed=3, skipped=1, errors=2)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_one[[]2]*",
            "module fixture 'cluster' leaked 1 process: * sleep 910",
            "*ERROR at teardown of test_skipped_last*",
            f"session fixture 'outer' leaked {shared_memory} (3 MiB)",
            "session fixture 'inner' leaked 1 process: * sleep 91",
        ],
        consecutive=False,
    )


def test_server_that_starts_again_between_tests_is_the_sessions(judged):
    result = judged(
        """
        from pathlib import Path

        from pytest_rlregress.fixtures.declare_engines import _vllm_server_lives

        LOGS = []

        class Server:
            log_path, process = Path("again.log"), None

            def revive(self):
                self.process = subprocess.Popen(["sleep", "91"])
                return True

        @pytest.fixture(scope="session")
        def vllm_server():
            server = Server()
            yield server
            server.process.kill()

        @pytest.fixture
        def watch_log():
            return LOGS.append

        def test_it_answers(vllm_server):
            assert vllm_server.process.poll() is None
            assert LOGS == [vllm_server.log_path]

        def test_another_is_left():
            subprocess.Popen(["sleep", "92"])

        def test_last():
            pass
        """,
        more="""
from pytest_rlregress.fixtures import declare_engines
declare_engines.asked_by = lambda item: {"vllm_server"} & {*item.fixturenames}
""",
    )
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_another_is_left*", "leaked 1 process: * sleep 92"])


def test_counts_descriptors_by_kind(judged):
    result = judged(
        f"""
        import socket
        KEPT = []

        def test_few():
            KEPT.extend(socket.socket() for _ in range({leaks.DESCRIPTORS}))

        def test_many():
            KEPT.extend(socket.socket() for _ in range({leaks.DESCRIPTORS}))
            KEPT.append(open(os.devnull))

        def test_bare():
            pass
        """
    )
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_many*",
            f"leaked {leaks.DESCRIPTORS + 1} file descriptors: {leaks.DESCRIPTORS} socket, 1 /dev/null",
        ]
    )


def test_shared_memory_that_may_be_ours_is_blamed(judged, shared_memory):
    result = judged(
        f"""
        KEPT = []

        @pytest.fixture
        def file(request):
            with open(f"{shared_memory}-{{request.node.name}}", "wb") as file:
                file.write(bytes(2 * 2**20))
                file.flush()
                yield file

        def test_held_by_nobody(file):
            pass

        def test_held_by_this_process(file):
            KEPT.append(os.dup(file.fileno()))

        def test_held_by_a_child(file):
            os.set_inheritable(file.fileno(), True)
            subprocess.Popen(["sleep", "90"], close_fds=False)

        def test_bare():
            pass
        """,
        more=looks_at(shared_memory),
    )
    result.assert_outcomes(passed=4, errors=3)
    for name in ("nobody", "this_process", "a_child"):
        result.stdout.fnmatch_lines([f"leaked *{shared_memory}-test_held_by_{name} (2 MiB)"])


def test_shared_memory_of_another_program_is_not_blamed(judged, shared_memory, tmp_path):
    go, gone = tmp_path / "go", tmp_path / "gone"
    os.mkfifo(go)
    os.mkfifo(gone)
    script = f"read line < {go}; exec 5> {shared_memory}; echo > {gone}; sleep 30"
    other = subprocess.Popen(["bash", "-c", script], start_new_session=True)
    try:
        judged(
            f"""
            def test_meanwhile():
                open("{go}", "w").write("\\n")
                open("{gone}").read()
                assert os.path.exists("{shared_memory}")
            """,
            more=looks_at(shared_memory),
        ).assert_outcomes(passed=1)
    finally:
        os.killpg(other.pid, signal.SIGKILL)
        other.wait()
