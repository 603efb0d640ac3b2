"""What preflight says of an unknown key: since when it is gone, from what is kept of the trainer's releases."""

import pytest
from made_wheels import make_wheel, open_releases

from pytest_rlregress.commands.moved import history
from pytest_rlregress.commands.moved.wheels import TRAINER
from pytest_rlregress.environments.uv import PackageSources

PATH = "verl/trainer/config/_generated_ppo_trainer.yaml"
MIGRATES = "def migrate_legacy(config):\n    config.reward.name = config.old.name\n"
TEXTS = {
    "9001.0": "critic:\n  model:\n    offload: 1\n  other: 1\nold:\n  name: x\n",
    "9001.1": "critic:\n  model:\n    offload: 1\nreward:\n  name: x\n",
    "9001.2": "critic:\n  fsdp:\n    offload: 1\nreward:\n  name: x\n",
}
KNOWN = {"critic.fsdp.offload", "reward.name"}


@pytest.fixture
def kept(tmp_path, monkeypatch):
    for version, text in TEXTS.items():
        make_wheel(tmp_path / "links", "verl", version, {PATH: text, "verl/migrate.py": MIGRATES})
    monkeypatch.setenv("RLREGRESS_CACHE_DIR", str(tmp_path / "cache"))
    sources = PackageSources((), (str(tmp_path / "links"),))
    monkeypatch.setattr(history, "read_sources", lambda _: sources)
    (tmp_path / "cache/moved").mkdir(parents=True)
    for version in TEXTS:
        open_releases(tmp_path, links=[tmp_path / "links"]).read("verl", version, TRAINER)
    return tmp_path


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("critic.model.offload", "gone since 9001.2, perhaps critic.fsdp.offload"),
        ("old.name", "gone since 9001.1, now reward.name"),
        ("critic.other", "gone since 9001.1"),
        ("critic.never", ""),
        ("offload", ""),
    ],
)
def test_tells_since_when_a_key_is_gone(kept, key, told):
    assert history.tell_gone("verl", "9001.2", key, KNOWN) == told


def test_tells_nothing_where_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("RLREGRESS_CACHE_DIR", str(tmp_path / "none"))
    assert history.tell_gone("verl", "9001.2", "old.name", KNOWN) == ""
