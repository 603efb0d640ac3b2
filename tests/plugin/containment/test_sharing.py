"""What workers share: a GPU belongs to one of them at a time, and Ray is started once for all."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations

import pytest
from patience import PATIENCE

HOLDS = """
import os, time
import pytest

def hold():
    begun = time.time()
    time.sleep(0.5)
    with open(f"held-{os.getpid()}", "w") as file:
        file.write(f"{begun} {time.time()} {os.environ['CUDA_VISIBLE_DEVICES']}")

@pytest.mark.isolated
@pytest.mark.hw("h100")
@pytest.mark.parametrize("number", range(4))
def test_one(number):
    hold()

@pytest.mark.isolated
@pytest.mark.hw("h100", count=2)
@pytest.mark.parametrize("number", range(2))
def test_both(number):
    hold()
"""


def test_gpu_belongs_to_one_worker_at_a_time(run, pytester, two_cards):
    run(HOLDS, two_cards, "-n2", ".").assert_outcomes(passed=6)
    held = []
    for file in pytester.path.glob("held-*"):
        begun, ended, devices = file.read_text().split()
        held.append((float(begun), float(ended), set(devices.split(","))))
    assert sorted(len(devices) for _, _, devices in held) == [1, 1, 1, 1, 2, 2]
    together = [(a, b) for a, b in combinations(held, 2) if a[0] < b[1] and b[0] < a[1]]
    assert together, "the workers never ran at the same time"
    assert all(not a[2] & b[2] for a, b in together)


REFUSES = """
from pytest_rlregress.containment import pool

fork = pool.WarmServer.fork

def fork_or_refuse(self, order, log, echo):
    held = order.environment.get("CUDA_VISIBLE_DEVICES", "")
    with open("held", "a") as file:
        file.write(f"{len(locked)}\\n")
    if held:
        raise OSError("no space left for the child")
    return fork(self, order, log, echo)

locked = []
acquire = pool.acquire

def counted(*args):
    lock = acquire(*args)
    locked.append(lock)
    release = lock.release

    class Counted:
        gpus, variables = lock.gpus, lock.variables

        def release(self):
            locked.remove(lock)
            release()

    return Counted()

pool.acquire, pool.WarmServer.fork = counted, fork_or_refuse
"""


def test_only_tests_that_need_a_gpu_take_one_and_a_failed_fork_gives_it_back(run, pytester, two_cards, plugins):
    result = run(
        """
        import pytest

        @pytest.mark.isolated
        def test_plain(): pass

        @pytest.mark.isolated
        @pytest.mark.hw("h100")
        def test_refused(): pass

        @pytest.mark.isolated
        def test_plain_again(): pass
        """,
        *plugins(refuses=REFUSES),
        two_cards,
        "test_it.py",
    )
    result.assert_outcomes(passed=2, errors=1)
    assert (pytester.path / "held").read_text().split() == ["0", "0", "1", "0"]  # the first imports the file


WAITS = """
from pathlib import Path
from pytest_rlregress.hardware import gpu_memory

def wait_for_gpu_memory(pids):
    with Path("waited-for").open("a") as file:
        file.write("".join(f"{pid}\\n" for pid in pids))
    return []

gpu_memory.wait_for_gpu_memory = wait_for_gpu_memory
"""


def test_waits_for_the_memory_of_the_dead_test_process(run, pytester, two_cards, plugins):
    result = run(
        """
        import os, signal
        import pytest

        @pytest.mark.isolated
        @pytest.mark.hw("h100")
        def test_dies():
            open("pid", "w").write(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        """,
        *plugins(waits=WAITS),
        two_cards,
        "test_it.py",
    )
    result.assert_outcomes(failed=1)
    assert (pytester.path / "pid").read_text() in (pytester.path / "waited-for").read_text().split()


@pytest.mark.slow
def test_ray_is_started_once_for_all_folders_and_workers(run, pytester):
    body = """
        import os, pytest

        @pytest.mark.needs("ray")
        def test_it(ray_cluster):
            with open(os.path.join(os.environ["PYTEST_ROOT"], "started"), "a") as file:
                file.write(f"{ray_cluster.address}\\n")
    """
    for folder in ("one", "two", "three"):
        pytester.mkpydir(folder).joinpath("test_it.py").write_text("\n".join(line[8:] for line in body.splitlines()))
    pytester.makepyfile(conftest=f"import os\nos.environ['PYTEST_ROOT'] = {str(pytester.path)!r}")
    run({}, "--hw=cpu", "-n2", "one", "two", "three").assert_outcomes(passed=3)
    addresses = (pytester.path / "started").read_text().split()
    assert len(addresses) == 3
    assert len(set(addresses)) == 1


def test_concurrent_runs_do_not_collide(pytester, tmp_path, temporary):
    pytester.makepyfile(
        test_it="""
        import time
        from multiprocessing import shared_memory
        import pytest

        @pytest.mark.isolated(group="one")
        @pytest.mark.parametrize("number", range(8))
        def test_it(number, tmp_path):
            memory = shared_memory.SharedMemory(create=True, size=4096)
            (tmp_path / "file").write_text("mine")
            time.sleep(0.1)
            other = shared_memory.SharedMemory(memory.name)
            assert (tmp_path / "file").read_text() == "mine"
            other.close(); memory.close(); memory.unlink()
        """
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    runs = [
        subprocess.Popen([*command, f"--basetemp={tmp_path}/base{n}"], cwd=pytester.path, stdout=subprocess.PIPE)
        for n in range(3)
    ]
    outputs = [run.communicate(timeout=PATIENCE)[0].decode() for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0], outputs
    assert not list(temporary.iterdir())


SCHEDULER = """
from xdist.scheduler import LoadFileScheduling

class Own(LoadFileScheduling):
    pass

def pytest_xdist_make_scheduler(config, log):
    return Own(config, log)
"""


@pytest.mark.slow
def test_a_conftest_distributes_its_own_tests_but_not_the_shipped_scenarios(pytester):
    pytester.makeconftest(SCHEDULER)
    pytester.makepyfile("import pytest\n@pytest.mark.needs('pydantic')\ndef test_mine(): pass")
    own = pytester.runpytest_subprocess("-n2", "-v", "--hw=cpu", ".")
    own.stdout.fnmatch_lines(["scheduling tests via Own"])
    shipped = pytester.runpytest_subprocess("-n2", "-v", "--hw=cpu", "-k", "test_arithmetic")
    shipped.stdout.fnmatch_lines(["scheduling tests via ByGroup"])
