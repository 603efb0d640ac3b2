import pytest
from made_wheels import make_wheel

from pytest_rlregress.commands.moved import comparison
from pytest_rlregress.commands.moved.comparison import tell_upgrade
from pytest_rlregress.environments.uv import PackageSources

CONFIG = "class GRPOConfig:\n    length: int = {length}\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for version, length in (("9001.0", 256), ("9001.1", 512)):
        files = {"trl/trainer/grpo_config.py": CONFIG.format(length=length)}
        files["trl/scripts/grpo.py"] = "dataclass_types = (GRPOConfig,)\n"
        make_wheel(tmp_path, "trl", version, files, requires=["transformers==9005.0"])
    make_wheel(tmp_path, "transformers", "9005.0", {"transformers/training_args.py": ""})
    monkeypatch.setattr(comparison, "read_sources", lambda _: PackageSources((), (str(tmp_path),)))
    return tmp_path / "cache"


def test_tells_what_an_upgrade_of_a_trainer_changes(folder):
    sentence, *lines = tell_upgrade("trl", "9001.0", "9001.1", folder, False)
    assert sentence == "trl 9001.0 → 9001.1: 1 default that you inherit moved."
    assert "length: 256 → 512 since 9001.1" in lines


def test_says_that_it_was_not_read(folder):
    (line,) = tell_upgrade("trl", "9001.0", "9002.0", folder, False)
    assert line.startswith("trl 9001.0 → 9002.0: what moved was not read: trl 9002.0 has no wheel")


def test_tells_nothing_of_other_packages(folder):
    assert tell_upgrade("numpy", "1.0", "2.0", folder, False) == []
