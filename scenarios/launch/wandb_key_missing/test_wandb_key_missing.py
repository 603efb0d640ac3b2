"""No API key is configured on a rented machine, and logging ends the run before its first step."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

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


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A rented machine: no key in the environment, in a netrc file or in settings."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("NETRC", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path))
    return tmp_path


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
    assert subject(environ) == "online"


@pytest.mark.guards("wandb-key-missing")
@pytest.mark.parametrize(
    ("variables", "mode"),
    [
        ({"WANDB_MODE": ""}, "offline"),
        ({"WANDB_MODE": "online"}, "offline"),
        ({"WANDB_API_KEY": ""}, "offline"),
        ({"WANDB_MODE": "disabled"}, "disabled"),
        ({"WANDB_MODE": "offline", "WANDB_API_KEY": KEY}, "offline"),
    ],
    ids=["empty-mode", "online", "empty-key", "disabled", "offline-with-a-key"],
)
def test_what_the_environment_says(machine, subject, variables, mode):
    assert subject({**os.environ, **variables}) == mode


@pytest.mark.guards("wandb-key-missing")
@pytest.mark.parametrize(
    ("host", "place", "variables"),
    [
        ("api.wandb.ai", ".netrc", {}),
        ("api.forge.coreweave.com", ".netrc", {}),
        ("wandb.lab.org:8080", ".netrc", {"WANDB_BASE_URL": "https://wandb.lab.org:8080/"}),
        ("api.wandb.ai", "keys", {"NETRC": "~/keys"}),
    ],
    ids=["first-server", "second-server", "own-server", "another-file"],
)
def test_a_key_in_a_netrc_file_is_for_one_server(machine, subject, host, place, variables):
    (machine / place).write_text(f"machine {host}\n  login user\n  password {KEY}\n")
    (machine / place).chmod(0o600)
    assert subject({"HOME": str(machine), **variables}) == "online"
    assert subject(variables) == "online", "HOME is that of this process"
    elsewhere = {**variables, "HOME": str(machine / "none")}
    assert subject(elsewhere) == ("online" if "NETRC" in variables else "offline")
    assert subject({**variables, "HOME": str(machine), "WANDB_BASE_URL": "https://other.org"}) == "offline"
    assert subject({**variables, "HOME": str(machine / "none"), "NETRC": str(machine / "none")}) == "offline"


@pytest.mark.guards("wandb-key-missing")
@pytest.mark.parametrize("name", ["WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"])
def test_one_credential_is_enough(machine, subject, name):
    assert subject({"HOME": str(machine), name: KEY}) == "online"
    assert subject({"HOME": str(machine), name: ""}) == "offline"
    assert subject({"HOME": str(machine), name: KEY, "WANDB_MODE": "shared"}) == "shared"


@pytest.mark.guards("wandb-key-missing")
@pytest.mark.parametrize("text", ["machine example.org login user password x\n", "machine api.wandb.ai\n  login"])
def test_a_netrc_file_without_the_key(machine, subject, text):
    (machine / ".netrc").write_text(text)
    assert subject(os.environ) == "offline"
