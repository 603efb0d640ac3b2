"""Remedies for models that do not load: unknown types and ids, broken downloads, attention that is not there."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pytest_rlregress.remedies.dependencies import missing_symbol

__all__ = ["attention_implementation", "auto_class", "check_model_id", "check_model_type", "download_verified"]


def check_model_type(config: Mapping[str, Any]) -> None:
    """Check that the installed transformers knows a model, and each model it is made of, before a machine is rented.

    Reads the configuration as loading does and no weights. One that brings its own code (``auto_map``) is let through.

    Args:
        config: A ``config.json``, read; left as it is.

    Raises:
        ValueError: An unknown ``model_type`` or none, with the key it stands at and the transformers release that
            saved the configuration. Ministral-3's is nested: ``text_config.model_type``.
    """
    from transformers import __version__
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if "AutoConfig" in config.get("auto_map", {}):
        return
    if "model_type" not in config:
        raise ValueError("config.json has no 'model_type', so transformers cannot tell what model it is")
    try:
        CONFIG_MAPPING[config["model_type"]].from_dict(copy.deepcopy(dict(config)))
    except (KeyError, ValueError) as error:
        # Not every nested type must be known: only the error tells which was looked for, from transformers 5.20 on with
        # all that are known in its next sentence.
        told = str(error.args[0]).partition(". ")[0].rpartition(": ")[2]
        keys = [key for key, name in _model_types(config) if name == told]
        if not keys:
            raise
        saved_by = config.get("transformers_version", "an unnamed release")
        close = ", ".join(get_close_matches(told, CONFIG_MAPPING)) or "none of a similar name"
        raise ValueError(
            f"transformers {__version__} does not know model type {told!r} (config.json: {keys[0]}); the "
            f"configuration was saved by transformers {saved_by}. Install that release or a newer one. Known here: "
            f"{close}."
        ) from None


def _model_types(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if key == "model_type":
            yield path + key, value
        elif isinstance(value, Mapping):
            yield from _model_types(value, f"{path}{key}.")


# The auto classes a trainer loads with, and what transformers lists for each: model type to architecture. Older
# releases list image-text models under Vision2Seq.
_LISTED = {
    "AutoModelForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForImageTextToText": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "AutoModelForVision2Seq": "MODEL_FOR_VISION_2_SEQ_MAPPING_NAMES",
    "AutoModelForSeq2SeqLM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForTokenClassification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForSequenceClassification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
}


def auto_class(config: Mapping[str, Any]) -> Any:
    """Return the auto class that loads a checkpoint as the architecture it was saved as.

    Args:
        config: A ``config.json``, read, or ``PretrainedConfig.to_dict()``.

    Returns:
        ``transformers.AutoModelForCausalLM``, ``AutoModelForImageTextToText``, ``AutoModelForVision2Seq``,
        ``AutoModelForSeq2SeqLM``, ``AutoModelForTokenClassification`` or ``AutoModelForSequenceClassification``.

    Raises:
        ValueError: None of them does. Another class would refuse the configuration, or load the weights without the
            head or without the images.
    """
    import transformers
    from transformers.models.auto import modeling_auto

    model_type, architectures = config.get("model_type"), config.get("architectures") or []
    for name, listed in _LISTED.items():
        if vars(modeling_auto).get(listed, {}).get(model_type) in architectures:
            return getattr(transformers, name)
    raise ValueError(
        f"no auto class of transformers {transformers.__version__} loads model type {model_type!r} as "
        f"{' or '.join(architectures) or 'what it was saved as: its configuration names no architectures'}; "
        f"tried {', '.join(_LISTED)}"
    )


def check_model_id(model: str, endpoint: str | None = None) -> None:
    """Check that a model can be read, before a machine is rented: a folder here, or an id on the hub.

    Args:
        model: What is to be given to ``from_pretrained``.
        endpoint: Address of another hub; None for ``HF_ENDPOINT`` or the public one.

    Raises:
        ValueError: It is neither, or may not be read with the token of this machine; with ids of the same owner that
            are spelt alike. A hub that cannot be asked raises the client's own errors: it says nothing of the id.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if Path(model).is_dir():
        if not Path(model, "config.json").is_file():
            raise ValueError(f"{model} is a folder without config.json: not a model that transformers saved")
        return
    hub = HfApi(endpoint=endpoint)
    try:
        hub.auth_check(model)
    except GatedRepoError:
        raise ValueError(
            f"{model} is gated on {hub.endpoint}: accept its terms there, and log in with a token that may read it"
        ) from None
    except RepositoryNotFoundError:
        owner, _, name = model.rpartition("/")
        others = {one.id.partition("/")[2].lower(): one.id for one in hub.list_models(author=owner)} if owner else {}
        close = [others[other] for other in get_close_matches(name.lower(), others)]
        raise ValueError(
            f"{model} is neither a folder here nor a model on {hub.endpoint}, unless it is private and the token of "
            f"this machine may not read it. {'Did you mean ' + ' or '.join(close) + '?' if close else ''}".rstrip()
        ) from None


def download_verified(
    model: str, directory: str | Path, revision: str = "main", endpoint: str | None = None, attempts: int = 5
) -> Path:
    """Download a model to a folder, again and again if need be, until each file has the size and hash the hub gives.

    Files that are right are not downloaded twice, in a later call neither. One that is not right is deleted, so that
    nothing loads part of a shard. Nothing is taken from the client's cache, where nobody looks at hashes. A shard whose
    transfer breaks off starts over where the client keeps no part of it (huggingface_hub 1.33; 0.36 goes on where it
    was).

    Args:
        model: Its id on the hub.
        directory: Where its files go; made if missing.
        revision: Branch, tag or commit.
        endpoint: Address of another hub; None for ``HF_ENDPOINT`` or the public one.
        attempts: Downloads in all, each with the client's own retries.

    Returns:
        The folder.

    Raises:
        RuntimeError: Files are still missing or wrong; it names them and the last error, which is its cause.
        huggingface_hub.errors.RepositoryNotFoundError, RevisionNotFoundError: There is nothing to download.
    """
    from huggingface_hub import HfApi, snapshot_download

    info = HfApi(endpoint=endpoint).model_info(model, revision=revision, files_metadata=True)
    left, wrong, cause = list(info.siblings or []), {}, None
    for _ in range(attempts):
        try:
            with TemporaryDirectory() as cache:
                snapshot_download(model, revision=info.sha, local_dir=directory, cache_dir=cache, endpoint=endpoint)
        except Exception as error:  # the errors of requests (before huggingface_hub 1) and of httpx share no base
            cause = error
        wrong = {file.rfilename: _what_is_wrong(Path(directory, file.rfilename), file) for file in left}
        left = [file for file in left if wrong[file.rfilename]]
        for file in left:
            Path(directory, file.rfilename).unlink(missing_ok=True)
        if not left:
            return Path(directory)
    reasons = "; ".join(f"{name} {reason}" for name, reason in wrong.items() if reason)
    raise RuntimeError(
        f"{model} is not complete in {directory} after {attempts} attempts: {reasons}. Wrong files were deleted, the "
        f"others stay: call again to go on. Last error: {cause}"
    ) from cause


def _what_is_wrong(path: Path, file: Any) -> str | None:
    """Compare a file with the hub's SHA-256 (of a large one) or git's hash: return what is wrong, or None."""
    if not path.is_file():
        return "is missing"
    size = path.stat().st_size
    if size != file.size:
        return f"has {size} bytes of {file.size}"
    large = file.lfs is not None
    digest = hashlib.sha256() if large else hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    expected = file.lfs["sha256"] if large else file.blob_id
    return None if digest.hexdigest() == expected else f"has {digest.name} {digest.hexdigest()}, not {expected}"


def attention_implementation(wanted: str) -> str:
    """Return the attention implementation to load a model with here, for one that is wanted.

    Args:
        wanted: As for ``attn_implementation``: ``flash_attention_2``, ``sdpa``, ``eager`` …

    Returns:
        ``wanted``; but ``sdpa`` for a ``flash_attention_…`` that this machine cannot run: the package is missing or
        too old, its symbols cannot be imported, or there is no GPU. With ``sdpa`` set ``use_remove_padding=False``.
    """
    if not wanted.startswith("flash_attention_"):
        return wanted
    from transformers.utils import import_utils

    available = vars(import_utils).get(f"is_flash_attn_{wanted.rpartition('_')[2]}_available", bool)
    usable = available() and (wanted != "flash_attention_2" or missing_symbol("flash-attn") is None)
    return wanted if usable else "sdpa"
