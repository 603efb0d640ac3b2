import re

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.models import loopback_hub

MEANT = "mistralai/Mistral-Small-3.2-24B-Instruct-2506"
ASKED = "mistralai/mistral-small-3.2-24b-instruct"
OTHER, GATED = "mistralai/Codestral-22B-v0.1", "mistralai/Mistral-Large-Instruct-2411"


@pytest.fixture
def hub(tiny_qwen, monkeypatch):
    """A hub with three of Mistral's models, where transformers looks for every model."""
    with loopback_hub.start(dict.fromkeys([MEANT, OTHER, GATED], tiny_qwen.directory), gated=[GATED]) as hub:
        hub.make_default(monkeypatch)
        yield hub


def load(model, cache):
    """The failing act: read a model's configuration, from a folder or from the hub."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(model, cache_dir=cache)


@pytest.mark.reproduces("model-id-not-on-hub")
@pytest.mark.parametrize(
    "model",
    [ASKED, "checkpoints/global_step_100", "/checkpoints/global_step_100"],
    ids=["documented", "missing-folder", "missing-absolute-folder"],
)
def test_from_pretrained(hub, tmp_path, model):
    load(model, tmp_path)


@pytest.mark.reproduces("model-id-not-on-hub")
@pytest.mark.parametrize("token", [False, "hf_loopback"], ids=["anonymous", "with-a-token"])
def test_snapshot_download(hub, tmp_path, token):
    from huggingface_hub import snapshot_download

    with act():
        snapshot_download(ASKED, endpoint=hub.endpoint, cache_dir=tmp_path, token=token)


@pytest.mark.guards("model-id-not-on-hub")
def test_an_id_that_passes_loads(hub, subject, tmp_path):
    subject(MEANT, hub.endpoint)
    assert load(MEANT, tmp_path).model_type == "qwen2"


@pytest.mark.guards("model-id-not-on-hub")
def test_the_hub_of_the_environment_is_asked(hub, subject):
    subject(MEANT)
    with pytest.raises(ValueError, match=re.escape(hub.endpoint)):
        subject(ASKED)


@pytest.mark.guards("model-id-not-on-hub")
def test_the_documented_id_is_refused_with_the_one_meant(hub, subject):
    with pytest.raises(ValueError, match=ASKED) as refused:
        subject(ASKED, hub.endpoint)
    said = str(refused.value)
    assert MEANT in said, f"which model is meant? {said}"
    assert OTHER not in said, f"any model of the same owner may be meant: {said}"


@pytest.mark.guards("model-id-not-on-hub")
@pytest.mark.parametrize(
    ("model", "meant"),
    [
        (OTHER.upper().replace("MISTRALAI", "mistralai"), OTHER),
        (OTHER.replace("mistralai", "somebody"), None),
        (OTHER.partition("/")[2], None),
        ("mistralai/x", None),
        ("checkpoints/global_step_100/actor", None),
        ("/checkpoints/step", None),
    ],
    ids=["capitals", "another-owner", "no-owner", "unlike-any", "missing-folder", "missing-absolute-folder"],
)
def test_rejects_an_unknown_id_and_names_the_one_meant(hub, subject, model, meant):
    with pytest.raises(ValueError, match="neither a folder here nor a model") as refused:
        subject(model, hub.endpoint)
    said = str(refused.value)
    assert model in said
    assert [one for one in (MEANT, OTHER, GATED) if f"mean {one}?" in said] == [meant] * (meant is not None)
    assert said == said.strip()


@pytest.mark.guards("model-id-not-on-hub")
def test_rejects_a_gated_model_without_its_token(hub, subject, tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(OSError, match="gated repo"):
        load(GATED, tmp_path)
    with act(), pytest.raises(ValueError, match="gated"):
        subject(GATED, hub.endpoint)


@pytest.mark.guards("model-id-not-on-hub")
def test_gated_model_passes_with_its_token(hub, subject, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", loopback_hub.ACCEPTED)
    subject(GATED, hub.endpoint)
    assert load(GATED, tmp_path).model_type == "qwen2"


@pytest.mark.guards("model-id-not-on-hub")
def test_folder_needs_no_hub(subject, tiny_qwen, tmp_path):
    nowhere = "http://127.0.0.1:9"
    subject(str(tiny_qwen.directory), nowhere)
    with pytest.raises(ValueError, match=r"config\.json"):
        subject(str(tmp_path), nowhere)
