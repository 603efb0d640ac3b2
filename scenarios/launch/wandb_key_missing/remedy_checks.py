"""Where a key may be, and for which server it is."""

import os

import pytest

from pytest_rlregress.scenarios.launch.wandb_key_missing.test_wandb_key_missing import KEY


def test_mode_of_the_environment_stays(machine, subject):
    for mode in ("disabled", "offline", "shared"):
        assert subject({"HOME": str(machine), "WANDB_API_KEY": KEY, "WANDB_MODE": mode}) == mode
    assert subject({"HOME": str(machine), "WANDB_MODE": ""}) == "offline"


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


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"])
def test_one_credential_is_enough(machine, subject, name):
    assert subject({"HOME": str(machine), name: KEY}) == "online"
    assert subject({"HOME": str(machine), name: ""}) == "offline"


@pytest.mark.parametrize("text", ["machine example.org login user password x\n", "machine api.wandb.ai\n  login"])
def test_offline_without_the_key_in_netrc(machine, subject, text):
    (machine / ".netrc").write_text(text)
    assert subject(os.environ) == "offline"
