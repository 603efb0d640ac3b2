"""Broken remedies of socket-name-shared, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.weight_sync import run_socket
from pytest_rlregress.scenarios.weight_sync import transfers


@broken(only="each_run_and_rank")
def run_without_rank(handle, run):
    return run_socket("ipc:///tmp/weights.sock", run)


@broken(only="find_each_other")
def another_name_in_each_process(handle, run):
    return handle.replace(".sock", f"-{hash(run) % 10**8}.sock")


@mutant("absent", only="first_run")
def verl_names_the_run(monkeypatch):
    from pytest_rlregress.scenarios.weight_sync.socket_name_shared import test_socket_name_shared

    monkeypatch.setattr(test_socket_name_shared, "no_rename", run_socket)


@mutant("changed", only="first_run")
def receivers_fail(monkeypatch):
    def receive(handle):
        raise MemoryError("no shared memory")

    monkeypatch.setattr(transfers, "receive", receive)
