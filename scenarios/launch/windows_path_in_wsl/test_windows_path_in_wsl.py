import os
import subprocess
import sys

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.launch.dataset_root_not_file.dataset_loaders import LOAD_BY
from pytest_rlregress.scenarios.own_command import read_answer
from pytest_rlregress.scenarios.resume.verl_run import verl_run

FILE = "C:/Users/rl/data/train.parquet"
MODEL = "C:/Users/rl/models/qwen"
CHECKPOINTS = "C:/Users/rl/checkpoints"
BOTH = pytest.mark.parametrize("separator", ["/", "\\"], ids=["slash", "backslash"])
NAMES = [pytest.param(name, marks=pytest.mark.needs(name)) for name in LOAD_BY]
LOADERS = pytest.mark.parametrize("loader", NAMES)
pytestmark = pytest.mark.filterwarnings("ignore")  # of what verl imports


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """A working folder; what datasets keeps is below it."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.reproduces("windows-path-in-wsl")
@pytest.mark.needs("linux")
@LOADERS
@BOTH
def test_data(loader, separator):
    with act():
        LOAD_BY[loader](FILE.replace("/", separator))


@pytest.mark.reproduces("windows-path-in-wsl")
@pytest.mark.needs("linux", "transformers")
@BOTH
def test_model(separator):
    import transformers

    with act():
        transformers.AutoConfig.from_pretrained(MODEL.replace("/", separator))


@pytest.mark.reproduces("windows-path-in-wsl")
@pytest.mark.needs("linux", "verl-trainer")
def test_model_of_verl():
    from verl.workers.config import HFModelConfig

    with act():
        HFModelConfig(path=MODEL)


@pytest.mark.reproduces("windows-path-in-wsl")
@pytest.mark.needs("linux", "verl-trainer")
@BOTH
def test_checkpoint_of_verl(tiny_model, folder, separator):
    with verl_run(CHECKPOINTS.replace("/", separator), tiny_model("qwen2")) as run, act():
        run.train(1)
        stray = [file.relative_to(folder) for file in folder.rglob("data.pt")]
        if stray:
            silent(f"default_local_dir={CHECKPOINTS}, and saved in the working folder: {stray[0]}")


@pytest.mark.guards("windows-path-in-wsl")
@pytest.mark.needs("linux")
@LOADERS
@BOTH
def test_data_are_looked_for_on_the_drive(loader, subject, separator):
    with act():
        path = subject(FILE.replace("/", separator))
        with pytest.raises(FileNotFoundError, match=r"'/mnt/c/Users/rl/data/train\.parquet'"):
            LOAD_BY[loader](path)


@pytest.mark.guards("windows-path-in-wsl")
@pytest.mark.needs("linux", "verl-trainer")
def test_preflight_finds_them_all():
    keys = {
        "data.train_files": FILE,
        "actor_rollout_ref.model.path": MODEL.replace("/", "\\"),
        "trainer.default_local_dir": CHECKPOINTS,
    }

    def find(values):
        command = [sys.executable, "-m", "verl.trainer.main_ppo"]
        command += [f"{key}='{path}'" for key, path in values.items()]
        report = read_answer("preflight", "--hw=cpu", "--", *command)
        found = [one for one in report["findings"] if one["failure"] == "windows-path-in-wsl"]
        assert "windows-path-in-wsl" in report["checked"]
        return {one["key"]: one["instead"] for one in found}

    right = {"data.val_files": "/mnt/c/Users/rl/data/val.parquet", "trainer.validation_data_dir": "/mnt/c/rl/seen"}
    with act():
        found = find({**keys, **right})  # and others that refer to these
        assert {key: found[key] for key in keys} == {
            "data.train_files": "/mnt/c/Users/rl/data/train.parquet",
            "actor_rollout_ref.model.path": "/mnt/c/Users/rl/models/qwen",
            "trainer.default_local_dir": "/mnt/c/Users/rl/checkpoints",
        }
        assert found.keys() & right.keys() == set()


@pytest.mark.guards("windows-path-in-wsl")
@pytest.mark.needs("wsl2")
@BOTH
def test_as_wsl_itself(subject, separator):
    windows = "C:/Windows/System32".replace("/", separator)
    told = subprocess.check_output(["wslpath", "-u", windows], text=True, timeout=30)
    with act():
        assert subject(windows) == told.strip()
        assert os.path.isdir(subject(windows))
