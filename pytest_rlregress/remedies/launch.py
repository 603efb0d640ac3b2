"""Remedies for runs that do not start: configurations, environments, paths and encodings, checked beforehand."""

from __future__ import annotations

import hashlib
import json
import netrc
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pytest_rlregress.remedies.advice import Advice
from pytest_rlregress.util.nested import walk

if TYPE_CHECKING:
    from torchdata.stateful_dataloader import StatefulDataLoader

__all__ = [
    "check_finished",
    "check_interpolations",
    "check_key_placement",
    "dataset_file",
    "fingerprinted_state",
    "utf8_environment",
    "wandb_mode",
    "wsl_path",
]


def check_finished(returncode: int, log: Path, step_pattern: str) -> None:
    r"""Refuse a run that did not train: exit code 0 says no more than that a shell script's last line succeeded.

    Args:
        returncode: Of the script that was to train.
        log: What the training wrote.
        step_pattern: Regular expression found in the log line of a finished step, such as
            ``step:\d+ - .*timing_s/step`` for verl: a line of validation alone, before the first step or of a run
            resumed at its last, has a number too, but no time of a step.

    Raises:
        RuntimeError: The exit code is not 0, or the log is missing, is blank or tells of no finished step.
    """
    if returncode:
        raise RuntimeError(f"the run failed with exit code {returncode}; its log is {log}")
    if not log.is_file():
        raise RuntimeError(f"exit code 0, but there is no log {log}: the training never started")
    blank = True
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if re.search(step_pattern, line):
                return
            blank = blank and not line.strip()
    if blank:
        raise RuntimeError(f"exit code 0, but the log {log} is empty: a command in the middle of the script failed")
    raise RuntimeError(f"exit code 0, but the log {log} tells of no finished step: no line matches {step_pattern!r}")


def utf8_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a Python process whose printing must not fail its work, on a console of any encoding.

    Args:
        environ: Such as ``os.environ``; left as it is.

    Returns:
        The same with the standard streams in UTF-8; what UTF-8 has no bytes for is printed escaped.
    """
    return {**environ, "PYTHONIOENCODING": "utf-8:backslashreplace"}


# verl/utils/config.py, validate_config: n_gpus = config.trainer.n_gpus_per_node * config.trainer.nnodes
_MULTIPLIED = ("n_gpus_per_node", "nnodes")
# The name, and the default if there is one: ${oc.env:NAME} or ${oc.env:NAME,default}
_ENVIRONMENT = re.compile(r"\$\{\s*oc\.env:\s*['\"]?(\w+)['\"]?\s*(?:,\s*([^{}]*))?")


def check_interpolations(config: Mapping[str, Any], environ: Mapping[str, str]) -> list[Advice]:
    """Find the environment variables of a Hydra configuration that will not do as they are.

    Args:
        config: The YAML as written, interpolations unresolved: ``{"trainer": {"nnodes": "${oc.env:NODES}"}}``.
        environ: What the run will be started with.

    Returns:
        One advice for each variable that is unset without a default, is empty, or comes as text to a key that verl
        multiplies, in the order of the keys.
    """
    advice = []
    for key, value in walk(config):
        for name, default in _ENVIRONMENT.findall(value) if isinstance(value, str) else ():
            text = environ.get(name, default.strip("'\" "))
            if name not in environ and not text:
                why = f"{name} is not set and has no default"
                instead = f"export {name}=…"
            elif not text.strip():
                why = f"{name} is set to an empty text, and a default stands in only for what is not set"
                instead = f"export {name}=…"
            elif key.rpartition(".")[2] in _MULTIPLIED and "oc.decode:" not in value:
                why = f"{name} comes as the text {text!r}, and verl multiplies {' by '.join(_MULTIPLIED)}"
                instead = f"${{oc.decode:{value}}}"
            else:
                continue
            advice.append(Advice(key, why, instead))
    return advice


_SEQ_LEN = "the length of a rollout belongs to the orchestrator (prime-rl before 2025-12-19 takes it only there)"
_OFFLOAD = "FSDP is the trainer's, and its offload a setting of the model that the trainer holds"
_TRUNCATED = "training samples from the whole distribution; only [orchestrator.eval.sampling] takes this key"
# By key: whether what stands there is wrong, why, and what to write, {} being the value.
_MISPLACED: dict[str, tuple[Callable[[Any], bool], str, str]] = {
    **{
        f"{table}seq_len": (lambda value: True, _SEQ_LEN, "[orchestrator]\nseq_len = {}")
        for table in ("", "model.", "trainer.", "orchestrator.sampling.", "inference.", "inference.model.")
    },
    **{
        f"{table}fsdp_cpu_offload": (lambda value: True, _OFFLOAD, "[trainer.model]\nfsdp_cpu_offload = {}")
        for table in ("", "model.", "trainer.", "orchestrator.", "inference.")
    },
    **{
        f"orchestrator.sampling.{key}": (lambda value: True, _TRUNCATED, f"# no {key} in [orchestrator.sampling]")
        for key in ("top_p", "top_k", "min_p")
    },
    "orchestrator.buffer.type": (
        lambda value: True,
        "there is one kind of buffer, which has no type",
        "[orchestrator.buffer]\nonline_difficulty_filtering = true",
    ),
    "trainer.model.ac": (
        lambda value: not isinstance(value, Mapping),
        "activation checkpointing is an object with the key freq",
        "[trainer.model]\nac = {{ freq = 1 }}",
    ),
    **{
        key: (lambda value: isinstance(value, Mapping), "environments are a list, even a single one", f"[[{key}]]")
        for key in ("orchestrator.env", "orchestrator.eval.env")
    },
}


def check_key_placement(config: Mapping[str, Any]) -> list[Advice]:
    """Find the keys of a prime-rl configuration that its schema refuses where they stand.

    Args:
        config: The TOML of an ``rl`` run as ``tomllib`` parses it; left as it is.

    Returns:
        One advice for each, in their order, with the lines that take its place.
    """
    advice = []
    for key, value in walk(config):
        if key not in _MISPLACED:
            continue
        wrong, why, instead = _MISPLACED[key]
        if wrong(value):
            advice.append(Advice(key, why, instead.format(json.dumps(value, default=str))))
    return advice


def wandb_mode(environ: Mapping[str, str]) -> str:
    """Return the value of ``WANDB_MODE`` under which ``wandb.init`` works: ``offline`` where no API key is configured.

    Args:
        environ: Such as ``os.environ``. A key is looked for where wandb does: ``WANDB_API_KEY``,
            ``WANDB_IDENTITY_TOKEN_FILE`` and the netrc file.

    Returns:
        ``online``, ``offline``, or what the variable says already: ``disabled``, ``dryrun``, ``shared``.
    """
    mode = environ.get("WANDB_MODE") or "online"  # wandb 0.31 refuses an empty one
    if mode != "online" or environ.get("WANDB_API_KEY") or environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return mode
    file = os.path.expanduser(environ.get("NETRC") or os.path.join(environ.get("HOME", "~"), ".netrc"))
    server = urlsplit(environ.get("WANDB_BASE_URL", "")).netloc
    try:
        entries = netrc.netrc(file)
    except (OSError, netrc.NetrcParseError):
        return "offline"
    # wandb 0.31 asks the second of its own two servers and takes the key of the first.
    servers = [server] if server else ["api.wandb.ai", "api.forge.coreweave.com"]
    found = (entries.authenticators(one) for one in servers)
    return "online" if any(entry and entry[2] for entry in found) else "offline"


def wsl_path(path: str) -> str:
    r"""Write a Windows path as WSL sees it: ``C:/Users/x`` or ``C:\Users\x`` as ``/mnt/c/Users/x``; others stay."""
    drive = re.fullmatch(r"([A-Za-z]):[/\\]+(.*)", path)
    return f"/mnt/{drive[1].lower()}/" + drive[2].replace("\\", "/") if drive else path


def dataset_file(path: str) -> str:
    """Return the one parquet file of a dataset, for ``load_dataset("parquet", data_files=…)``; a file is itself.

    Args:
        path: A file, or the root folder of a dataset, such as ``…/dapo-math-17k`` for
            ``…/dapo-math-17k/data/dapo-math-17k.parquet``; here, or on the hub as ``hf://datasets/OWNER/NAME``.

    Raises:
        ValueError: There is nothing at ``path``, or not exactly one parquet file below it; names those there are. A hub
            that cannot be asked raises the client's own errors: it says nothing of the path.
    """
    from fsspec.core import url_to_fs

    files, root = url_to_fs(path)
    try:
        kind = files.info(root)["type"]
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file or folder") from None
    if kind == "file":
        return path
    found = [file for file in files.find(root) if file.endswith(".parquet")]
    if "://" in path:
        found = [files.unstrip_protocol(file) for file in found]
    if len(found) != 1:
        raise ValueError(f"{path} is a folder: name the one parquet file meant. Below it: {', '.join(found) or 'none'}")
    return str(found[0])


@dataclass(frozen=True)
class FingerprintedState:
    """What a checkpoint keeps of a data loader; ``fingerprinted_state`` makes it.

    Attributes:
        loader: Whose state it is.
        rows: How many the data set has.
        sha256: Of the rows, in order.
    """

    loader: StatefulDataLoader[Any]
    rows: int
    sha256: str

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's state with the fingerprint, in values and tensors that torch.load reads by default."""
        return {"loader": self.loader.state_dict(), "rows": self.rows, "sha256": self.sha256}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the loader stood that the state was saved of.

        Raises:
            ValueError: It was saved on other rows, or in another order, or without a fingerprint. The loader is as it
                was: iterated, it begins with the first row.
        """
        if "sha256" not in state:
            raise ValueError("this state does not say of which data set it is: it was saved without a fingerprint")
        if state["sha256"] != self.sha256:
            raise ValueError(
                f"this state was saved on another data set of {state['rows']} rows, the data set here has {self.rows}: "
                "resume on that one, or begin with the first row of this one by not loading the state"
            )
        self.loader.load_state_dict(state["loader"])


def fingerprinted_state(loader: StatefulDataLoader[Any], rows: Sequence[Any] | None = None) -> FingerprintedState:
    """Save and load a data loader's state together with a fingerprint of the data set that it belongs to.

    The state alone says how many rows came: loaded on other data it skips as many of them. The batch size may be
    another, for rows are counted and not batches.

    Args:
        loader: On a data set that has a length and is indexed.
        rows: What the fingerprint is of, in order; each is read once, here. Give the raw rows where the data set makes
            them on access. By default those of ``loader.dataset``.

    Returns:
        An object with ``state_dict()`` and ``load_state_dict(state)`` in place of the loader's own.

    Raises:
        TypeError: A row holds something other than JSON's types, bytes, tensors and arrays: its number and the type.
    """
    data: Any = loader.dataset if rows is None else rows
    digest = hashlib.sha256()
    for number in range(len(data)):
        try:
            digest.update(json.dumps(data[number], sort_keys=True, default=_plain).encode() + b"\n")
        except TypeError as error:
            raise TypeError(f"row {number} of the data set: {error}") from None
    return FingerprintedState(loader, len(data), digest.hexdigest())


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if hasattr(value, "tolist"):  # torch's and numpy's
        return value.tolist()
    raise TypeError(f"the fingerprint knows no {type(value).__name__}")
