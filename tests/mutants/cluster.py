"""Mutants of scenarios/cluster."""

from __future__ import annotations

import re
import subprocess
import sys

from mutants import broken, mutant
from pytest_rlregress.remedies.cluster import blame, probe_cuda


@broken("raylet-crash", only="test_the_raylet_is_blamed")
def nobody_to_blame(log_dir):
    return []


@broken("raylet-crash", only="test_the_raylet_is_blamed")
def signals_alone(log_dir):
    return [sentence for sentence in blame(log_dir) if "SIG" in sentence]


@broken("raylet-crash", only="test_the_raylet_is_blamed")
def any_mention_of_a_signal(log_dir):
    """Ray guesses at SIGSEGV in its messages, and so may anybody."""
    logs = (log.read_text(errors="replace") for log in log_dir.glob("*.err"))
    return ["a raylet died of SIGSEGV" for text in logs if "SIGSEGV" in text]


@broken("raylet-crash", only="test_folder_that_is_none")
def no_folder_no_death(log_dir):
    return blame(log_dir) if log_dir.is_dir() else []


@mutant("raylet-crash", "absent", only="elsewhere-actor")
def actors_start_again_elsewhere(monkeypatch):
    from ray.actor import ActorClass
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from pytest_rlregress.scenarios.cluster import test_raylet_crash as scenario

    options = ActorClass.options

    def restarted(self, *, scheduling_strategy, **given):
        soft = NodeAffinitySchedulingStrategy(scheduling_strategy.node_id, soft=True)
        return options(self, scheduling_strategy=soft, max_restarts=1, max_task_retries=1, **given)

    monkeypatch.setattr(ActorClass, "options", restarted)
    monkeypatch.setattr(scenario, "SECONDS", 4)


@mutant("raylet-crash", "changed", only="fails_otherwise-driver")
def waiting_fails_otherwise(monkeypatch):
    import ray

    from pytest_rlregress.scenarios.cluster import test_raylet_crash as scenario

    get = ray.get

    def timed_out(task, timeout):
        if timeout == scenario.WAIT:
            raise ray.exceptions.GetTimeoutError("Get timed out: some object(s) not ready.")
        return get(task, timeout=timeout)

    monkeypatch.setattr(ray, "get", timed_out)


@broken("worker-double-free", only="test_probe")
def any_end_is_a_no(code="print(False)", timeout=120.0):
    try:
        return probe_cuda(code, timeout)
    except RuntimeError:
        return False


@broken("worker-double-free", only="test_probe_frees_twice")
def signal_not_named(code="print(False)", timeout=120.0):
    try:
        return probe_cuda(code, timeout)
    except RuntimeError as error:
        raise RuntimeError(re.sub("SIG[A-Z]+", "a signal", str(error))) from None


@broken("worker-double-free", only="test_probe_frees_twice")
def last_words_lost(code="print(False)", timeout=120.0):
    try:
        return probe_cuda(code, timeout)
    except RuntimeError as error:
        raise RuntimeError(str(error).splitlines()[0]) from None


@broken("worker-double-free", only="limit-hang")
def without_limit(code="print(False)", timeout=120.0):
    return probe_cuda(code, 120.0)


@broken("worker-double-free", only="test_answer")
def exit_code_for_an_answer(code="print(False)", timeout=120.0):
    return subprocess.run([sys.executable, "-c", code], timeout=timeout, check=False).returncode == 0


@broken("worker-double-free", only="test_answer")
def in_the_same_process(code="print(False)", timeout=120.0):
    said = []
    exec(code, {"print": said.append})
    return said[-1] is True


@mutant("worker-double-free", "absent")
def workers_free_once(monkeypatch):
    from pytest_rlregress.scenarios.cluster import test_worker_double_free as scenario

    run = scenario.in_worker
    monkeypatch.setattr(scenario, "in_worker", lambda code: run(code.replace("libc.free(block)\n", "", 1)))


@mutant("worker-double-free", "changed")
def heap_breaks_otherwise(monkeypatch):
    """Blocks too large for the tcache: glibc says ``double free or corruption``."""
    from pytest_rlregress.scenarios.cluster import test_worker_double_free as scenario

    monkeypatch.setattr(scenario, "FREE_TWICE", scenario.FREE_TWICE.replace("64", "8192"))
