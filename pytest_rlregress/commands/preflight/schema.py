"""The keys and values that a trainer takes, as the installed trainer says, or as far as preflight knows them."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from typing import Any

from pytest_rlregress.commands.preflight.command import CHILD, ask
from pytest_rlregress.commands.preflight.trainers import KEYS, VALUES
from pytest_rlregress.util.cache import folder as cache_folder
from pytest_rlregress.util.files import write_whole

# Tables of verl's that are handed on to something else, whatever is in them.
_HANDED_ON = re.compile(r"kwargs|override|env_vars|extra_|_configs?_dict|hydra|defaults")
# verl's engines beside its own FSDP, dp.
_ENGINES = ("megatron", "torchtitan", "veomni")
# They differ from shell to shell and from test to test, and no trainer asks for them.
_PASSING = {"PWD", "OLDPWD", "SHLVL", "_", "COLUMNS", "LINES", "PYTEST_CURRENT_TEST"}
# A file of TRL's that has one of these is for GRPO.
_OF_GRPO = {"num_generations", "max_completion_length", "reward_funcs", "use_vllm"}


@dataclass(frozen=True)
class Schema:
    """What a trainer's configuration may hold.

    Attributes:
        source: Whose keys these are: ``verl 0.9.1``.
        complete: Whether they are all there are, and not only those that preflight reads.
        keys: Dotted, tables among them.
        tables: Those of the keys that hold further keys, all of which are known.
        fields: By table, those that its dataclass takes besides; a table with one refuses others.
        values: By key, the texts that are allowed.
        defaults: By key, as far as they are known.
        folder: Where the trainer's source is.
        why_incomplete: Why they aren't all there are.
    """

    source: str
    complete: bool
    keys: frozenset[str]
    tables: frozenset[str] = frozenset()
    fields: Mapping[str, frozenset[str]] = field(default_factory=dict)
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    folder: str = ""
    why_incomplete: str = ""

    def unknown(self, key: str) -> str | None:
        """Return the part of a dotted key, from its beginning, that is not known; None for a key that may be there."""
        names = key.split(".")
        for depth in range(1, len(names) + 1):
            part = ".".join(names[:depth])
            if _HANDED_ON.search(names[depth - 1]) or names[depth - 1].startswith("_") or names[depth - 1].isdecimal():
                return None
            if part not in self.keys and names[depth - 1] not in self.fields.get(".".join(names[: depth - 1]), ()):
                return part
            if part not in self.tables:
                return None
        return None

    def beside(self, key: str) -> dict[str, str]:
        """Return the known keys of the same table, dotted, by their names."""
        table = key.rpartition(".")[0]
        return {one.rpartition(".")[2]: one for one in self.keys if one.rpartition(".")[0] == table}

    def elsewhere(self, key: str) -> str | None:
        """Return the known key of the same name in another table: in the largest section, nearest to the top."""
        name = key.rpartition(".")[2]
        found = [one for one in self.keys if one.rpartition(".")[2] == name]
        sizes = Counter(one.partition(".")[0] for one in self.keys)
        return min(found, key=lambda one: (-sizes[one.partition(".")[0]], one.count("."), one), default=None)


def schema_of_answer(answer: Mapping[str, Any]) -> Schema:
    """Return the schema that a trainer said."""
    keys = [*answer["keys"], *(["config", "accelerate", "env"] if answer["trainer"] == "trl" else [])]
    return Schema(
        answer["release"],
        True,
        frozenset(keys),
        frozenset(answer.get("tables", ())),
        {table: frozenset(names) for table, names in answer.get("fields", {}).items()},
        answer["values"],
        answer.get("defaults", {}),
        answer.get("folder", ""),
    )


def schema_of_tree(trainer: str, tree: Mapping[str, Any]) -> Schema:
    """Return the schema for a configuration that no command composes: of the trainer that is installed here."""
    if trainer == "prime-rl":
        return known_schema(trainer)
    if find_spec(trainer) is None:
        return known_schema(trainer, f"{trainer} is not installed here")
    if trainer == "verl":
        strategy = tree.get("actor_rollout_ref", {}).get("actor", {}).get("strategy")
        engine = tree.get("model_engine") or (strategy if strategy in _ENGINES else "dp")
        answer = ask_installed(
            f"verl-{engine}", "python", "-P", "-m", "verl.trainer.main_ppo", f"model_engine={engine}"
        )
    elif tree.keys() & _OF_GRPO:
        answer = ask_installed("trl-grpo", "trl", "grpo")
    else:
        return known_schema(trainer, "which of TRL's methods this is for, its command says: -- trl METHOD --config …")
    error = answer.get("error")
    return known_schema(trainer, f"{trainer} can't be asked here ({error})") if error else schema_of_answer(answer)


def known_schema(trainer: str, why: str = "") -> Schema:
    """Return what preflight knows of a trainer that can't be asked, and why it can't."""
    tables = {table: names.split() for table, names in KEYS[trainer].items()}
    keys = {f"{table}.{name}".lstrip(".") for table, names in tables.items() for name in names}
    return Schema(
        f"preflight's own list for {trainer}",
        False,
        frozenset(keys | {table for table in tables if table}),
        frozenset(table for table in tables if table),
        values={key: tuple(texts.split()) for key, texts in VALUES[trainer].items()},
        why_incomplete=why,
    )


# Importing a trainer takes seconds. The child names every file that it reads and every folder that it searches. Its
# answer is used again while each has the time and size that it had, with the same interpreter and environment.


@cache
def ask_installed(name: str, *words: str) -> dict[str, Any]:
    """Return what a program of the trainer that is installed here answers, or answered before.

    Args:
        name: Of the file that keeps it: one for each program.
        words: The program's command.
    """
    file = cache_folder() / "preflight" / f"{name}.json"
    asked = _fingerprint(words)
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        if kept["asked"] == asked and kept["stamps"] == _stamps(kept["stamps"]):
            return kept["answer"]  # type: ignore[no-any-return]
    except (OSError, ValueError, LookupError, TypeError):  # none is kept, or something else
        pass
    answer = ask(words, os.environ, [sys.executable])
    if "error" not in answer:
        stamps = _stamps([*answer.pop("read"), *map(str, CHILD.parent.glob("*.py"))])
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps({"asked": asked, "stamps": stamps, "answer": answer}))
    return answer


def _fingerprint(words: Iterable[str]) -> str:
    """Return one text for the same command, interpreter and environment; the environment may hold secrets."""
    environ = sorted((name, text) for name, text in os.environ.items() if name not in _PASSING)
    return sha256(json.dumps([*words, sys.executable, environ]).encode()).hexdigest()


def _stamps(paths: Iterable[str]) -> dict[str, list[int] | None]:
    """Return the time and the size of each file and folder; None for one that isn't there."""
    return {path: _stamp(path) for path in paths}


def _stamp(path: str) -> list[int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return [found.st_mtime_ns, found.st_size]
