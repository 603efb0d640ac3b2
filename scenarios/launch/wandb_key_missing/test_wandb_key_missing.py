import json
import os
import subprocess
import sys

import pytest

from pytest_rlregress.failures.act import act

KEY = "a" * 40

INIT = """
import json, sys, wandb
run = wandb.init(project="rlregress", dir=sys.argv[1])
run.log({"reward": 0.68})
run.finish()
print(json.dumps(run.offline))
"""
# Of all versions' ways to ask for a key the one that asks no server.
LOOK_UP = "import wandb; print('true' if wandb.api.api_key else 'false')"


def wandb(script, folder, environ):
    """What a process of its own says, for wandb starts a service that belongs to it."""
    command = [sys.executable, "-c", script, str(folder)]
    done = subprocess.run(
        command, env=environ, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.reproduces("wandb-key-missing")
@pytest.mark.isolated
def test_init_without_a_key(machine, monkeypatch):
    import wandb

    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115  (nobody to ask)
    with act():
        wandb.init(project="rlregress", dir=str(machine)).finish()


@pytest.mark.guards("wandb-key-missing")
@pytest.mark.needs("wandb")
def test_a_run_is_logged_all_the_same(machine, subject):
    environ = {**os.environ, "WANDB_MODE": subject(os.environ)}
    assert wandb(INIT, machine, environ) is True
    [run] = machine.glob("wandb/offline-run-*/run-*.wandb")
    assert run.stat().st_size > 0


@pytest.mark.guards("wandb-key-missing")
@pytest.mark.needs("wandb")
@pytest.mark.parametrize("key", ["environment", "netrc"])
def test_a_key_is_found_where_wandb_finds_it(machine, subject, key):
    environ = dict(os.environ)
    if key == "environment":
        environ["WANDB_API_KEY"] = KEY
    else:
        netrc = machine / ".netrc"
        netrc.write_text(f"machine api.wandb.ai\n  login user\n  password {KEY}\n")
        netrc.chmod(0o600)
    assert wandb(LOOK_UP, machine, environ) is True
    with act():
        assert subject(environ) == "online"
