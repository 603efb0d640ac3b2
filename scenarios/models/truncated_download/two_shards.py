"""A model in two shards on a hub on loopback, of which one does not come whole."""

import hashlib
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from pytest_rlregress.scenarios.models import loopback_hub

MODEL = "tiny/two-shards"
WHOLE, CUT = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def publish(tiny_qwen, folder):
    """Save the tiny Qwen in two shards and their index, as the hub serves it."""
    tiny_qwen.model().save_pretrained(folder, max_shard_size="1MB")
    assert (folder / CUT).is_file()
    return folder


@contextmanager
def serving(monkeypatch, models, cache):
    """Start the hub, for a client without patience and with a cache of its own: a shard found there is not fetched."""
    import huggingface_hub.file_download

    # The client waits a second before each of its five retries.
    impatient = SimpleNamespace(sleep=lambda seconds: None)
    monkeypatch.setattr(huggingface_hub.file_download, "time", impatient)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    with loopback_hub.start(models) as hub:
        hub.make_default(monkeypatch)
        yield hub


def put_fault(hub, fault, monkeypatch):
    """Let a fault befall one shard, for a client that waits for an answer no longer than the fault lasts."""
    hub.faults[CUT] = fault
    if fault.silence:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", fault.silence / 2)


def half(path, fill=b""):
    """Half a file, up to its size with ``fill``."""
    content = path.read_bytes()
    return content[: len(content) // 2] + fill * (len(content) - len(content) // 2)


def sha256(content):
    """In hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def download(hub, folder):
    """Download the model with the hub's client alone."""
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(MODEL, endpoint=hub.endpoint, local_dir=folder))


def load(folder):
    """Load a model with transformers."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder)
