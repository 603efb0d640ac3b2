"""What ends under TRL's trainer: named, in time, and nothing left."""

from __future__ import annotations

import dataclasses
import shutil
import signal

import psutil
import pytest

pytestmark = [
    pytest.mark.isolated(group="trl faults", timeout=300),
    pytest.mark.needs("trl", "datasets", "vllm"),
]


@pytest.mark.long  # TRL's client tries for 62 s to reach its server again
def test_server_killed_in_the_middle_of_a_step(trl_step):
    logs = []
    step = dataclasses.replace(trl_step, watch_log=logs.append)

    def alter(trainer):
        sound = trainer.reward_funcs[0]
        calls = []

        def reward(**columns):
            calls.append(columns)
            if len(calls) == 2:
                [server] = [p for p in psutil.Process().children() if "vllm.entrypoints" in " ".join(p.cmdline())]
                server.send_signal(signal.SIGKILL)
            return sound(**columns)

        trainer.reward_funcs[0] = reward

    with pytest.raises(RuntimeError, match=r"the vLLM server ended .* SIGKILL"):
        step.run(steps=4, mode="server", alter=alter)
    assert not [p for p in psutil.Process().children(recursive=True) if "vllm" in " ".join(p.cmdline())]
    [log] = logs
    assert log.is_file(), "the log of a server that died is kept, to be read"
    shutil.rmtree(log.parent)
