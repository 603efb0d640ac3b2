import re
import socket

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.launch.dataset_root_not_file.dataset_loaders import LOAD_BY, PROMPTS, write
from pytest_rlregress.scenarios.models import loopback_hub

pytestmark = pytest.mark.needs("datasets")

DOCUMENTED = ["dapo-math-17k", "aime-2024"]
LOADERS = pytest.mark.parametrize(
    "load",
    ["datasets", *(pytest.param(name, marks=pytest.mark.needs(name)) for name in ("verl", "trl"))],
    indirect=True,
)


@pytest.fixture
def load(request, tmp_path, monkeypatch):
    """The failing act: a loader that is given a path; it keeps nothing in the home."""
    import datasets
    import huggingface_hub

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    return LOAD_BY[getattr(request, "param", "datasets")]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with both datasets, and a third that has the files of both."""
    import datasets

    served = {f"lab/{name}": write(tmp_path / "served" / name, name) for name in DOCUMENTED}
    served["lab/math"] = write(tmp_path / "served" / "math", *DOCUMENTED)
    with loopback_hub.start({}, datasets=served) as hub:
        hub.make_default(monkeypatch)
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", hub.endpoint)
        yield hub


@LOADERS
@pytest.mark.reproduces("dataset-root-not-file")
@pytest.mark.parametrize("name", DOCUMENTED)
def test_root_of_a_dataset(tmp_path, load, name):
    with act():
        assert load(str(write(tmp_path / name, name)))["prompt"][:] == PROMPTS


@LOADERS
@pytest.mark.reproduces("dataset-root-not-file", fidelity="stand-in")
@pytest.mark.parametrize("name", [*DOCUMENTED, "math"])
def test_root_on_the_hub(hub, load, name):
    load(f"hf://datasets/lab/{name}")


@pytest.mark.reproduces("dataset-root-not-file")
def test_root_of_two_datasets(tmp_path, load):
    with act():
        load(str(write(tmp_path / "math", *DOCUMENTED)))


@LOADERS
@pytest.mark.guards("dataset-root-not-file")
@pytest.mark.parametrize("name", DOCUMENTED)
@pytest.mark.parametrize("slash", ["", "/"], ids=["bare", "slash"])
def test_the_one_file_is_loaded(tmp_path, subject, load, name, slash):
    root = write(tmp_path / name, name)
    with act():
        file = subject(f"{root}{slash}")
    assert file == str(root / "data" / f"{name}.parquet")
    assert load(file)["prompt"][:] == PROMPTS


@LOADERS
@pytest.mark.guards("dataset-root-not-file", fidelity="stand-in")
@pytest.mark.parametrize("below", ["", "/", "@main", "/data"], ids=["root", "slash", "revision", "folder"])
def test_the_one_file_on_the_hub_is_loaded(hub, subject, load, below):
    file = subject(f"hf://datasets/lab/aime-2024{below}")
    revision = "@main" if below == "@main" else ""
    assert file == f"hf://datasets/lab/aime-2024{revision}/data/aime-2024.parquet"
    assert load(file)["prompt"][:] == PROMPTS


@pytest.mark.guards("dataset-root-not-file")
def test_a_file_stays_itself(tmp_path, hub, subject, monkeypatch):
    write(tmp_path / "math", *DOCUMENTED)
    monkeypatch.chdir(tmp_path)
    with act():
        for root in (str(tmp_path / "math"), "math", "hf://datasets/lab/math", "hf://datasets/lab/math@main"):
            file = f"{root}/data/aime-2024.parquet"
            assert subject(file) == file


@pytest.mark.guards("dataset-root-not-file")
def test_rejects_what_is_not_one_file(tmp_path, hub, subject):
    with act():
        for root in (str(write(tmp_path / "math", *DOCUMENTED)), "hf://datasets/lab/math"):
            files = [re.escape(f"{root}/data/{name}.parquet") for name in sorted(DOCUMENTED)]
            with pytest.raises(ValueError, match=".*".join(files)):
                subject(root)
    empty = tmp_path / "empty"
    empty.mkdir()
    for path in (empty, tmp_path / "nowhere", "hf://datasets/lab/nowhere", "hf://datasets/lab/math/nowhere"):
        with pytest.raises(ValueError, match=re.escape(str(path))):
            subject(str(path))


@pytest.mark.guards("dataset-root-not-file", fidelity="stand-in")
def test_hub_that_is_down_is_no_wrong_path(hub, subject, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"http://127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", closed)
    with act(), pytest.raises(Exception) as raised:  # noqa: PT011 - of requests or of httpx
        subject("hf://datasets/lab/math")
    assert not isinstance(raised.value, ValueError), f"blames the path: {raised.value}"
