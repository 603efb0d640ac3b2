"""A hub with a model in two shards, in two revisions."""

import shutil

import pytest

from pytest_rlregress.scenarios.models.truncated_download import two_shards
from pytest_rlregress.scenarios.models.truncated_download.two_shards import CUT, MODEL


@pytest.fixture(scope="module")
def published(tiny_qwen, tmp_path_factory):
    """The folder that the hub serves."""
    return two_shards.publish(tiny_qwen, tmp_path_factory.mktemp("hub"))


@pytest.fixture(scope="module")
def older(published, tmp_path_factory):
    """Revision v1: one layer's weights are others, so is a shard."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path_factory.mktemp("older")
    for path in published.iterdir():
        shutil.copy(path, folder)
    save_file({name: tensor + 1 for name, tensor in load_file(folder / CUT).items()}, folder / CUT, {"format": "pt"})
    return folder


@pytest.fixture
def hub(published, older, monkeypatch, tmp_path_factory):
    """A hub with both revisions, which is the one by default."""
    with two_shards.serving(
        monkeypatch, {MODEL: published, f"{MODEL}@v1": older}, tmp_path_factory.mktemp("cache")
    ) as hub:
        yield hub
