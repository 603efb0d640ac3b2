"""Rules of preflight about names: keys that the trainer doesn't have, and values that it doesn't take."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from pathlib import Path

from pytest_rlregress.commands.preflight.config import PlannedRun, Unchecked
from pytest_rlregress.commands.preflight.trainers import Schema
from pytest_rlregress.remedies.advice import Advice
from pytest_rlregress.util.nested import walk

# What TRL's trainers called their arguments, and what they call them now.
_RENAMED_ARGUMENTS = {"tokenizer": "processing_class", "reward_model": "reward_funcs", "dataset": "train_dataset"}
# Tables of verl's that are handed on to something else, whatever is in them.
_HANDED_ON = re.compile(r"kwargs|override|env_vars|extra_|_configs?_dict|hydra|defaults")


def unknown_key(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    """Keys that the trainer doesn't have: misspelt ones, and those that it refuses."""
    schema = run.schema
    if run.verl and not run.composed and "actor_rollout_ref" not in run.tree:
        yield Unchecked("keys are known only of runs with actor_rollout_ref")
        return
    if not schema.complete:
        why = f"{schema.why_incomplete}: " if schema.why_incomplete else ""
        yield Unchecked(f"{why}keys and values were compared with the {len(schema.keys)} keys of {schema.source}")
    yield from _not_composed(run, schema)
    yield from _unknown_arguments(run)
    unsure = []
    for key in _unknown_keys(run, schema):
        refuses = key.rpartition(".")[0] in schema.fields or any(f"{one}.".startswith(f"{key}.") for one in run.refused)
        meant = _meant(run, schema, key, refuses)
        if meant or refuses:
            same_table = meant.rpartition(".")[0] == key.rpartition(".")[0]
            told = f": did you mean {meant.rpartition('.')[2] if same_table else meant}?" if meant else ""
            if gone := _tell_gone(run, schema, key):
                told = f": {gone}"
                meant = gone.rpartition(" ")[2] if ", " in gone else meant
            yield Advice(key, f"{schema.source} has no key {key}{told}", _instead(run, key, meant))
        elif schema.complete and not run.sign(key):
            unsure.append(key)
    if unsure:
        whose = run.program if run.program and not run.program.startswith("trl ") else "the run"
        yield Unchecked(f"{schema.source} has no {', '.join(unsure)}: whether {whose} reads it is not known here")


def _tell_gone(run: PlannedRun, schema: Schema, key: str) -> str:
    """Tell since when the trainer lacks a key, as far as ``rlregress moved`` has read its releases; else ""."""
    trainer, _, version = schema.source.partition(" ")
    if not schema.complete or trainer not in ("verl", "trl") or not version:
        return ""
    from pytest_rlregress.commands.moved.history import tell_gone

    method = run.program.removeprefix("trl ") if run.trl else ""
    return tell_gone(trainer, version, key, schema.keys, method)


def _not_composed(run: PlannedRun, schema: Schema) -> Iterator[Advice]:
    """Yield keys that a dataclass of verl's takes and its YAML lacks: Hydra refuses them without a plus sign."""
    for key in run.refused:
        table, _, name = key.rpartition(".")
        if run.sign(key) == "" and key not in schema.keys and name in schema.fields.get(table, ()):
            why = f"{schema.source} takes {key} in a dataclass, and its YAML doesn't list it: Hydra refuses the key "
            why += "without a plus sign"
            value = run.get(key)
            written = str(value).lower() if isinstance(value, bool) else value
            yield Advice(key, why, f"+{key}={written}")


def _unknown_arguments(run: PlannedRun) -> Iterator[Advice]:
    """Yield what a script gives to TRL's trainer itself, and that the installed one doesn't take."""
    told = run.composed.get("arguments", {})
    for name, source in told.get("refused", {}).items():
        renamed = _RENAMED_ARGUMENTS.get(name, "")
        if renamed not in told["known"]:
            in_config = f"{told['class'].removesuffix('Trainer')}Config({name}={source})" if source else ""
            renamed, instead = "", in_config if name in run.schema.keys else f"# leave {name} out"
        else:
            instead = f"{renamed}={source}" if source else f"# {renamed} in place of {name}"
        meant = f": did you mean {renamed}?" if renamed else ""
        yield Advice(name, f"{told['class']} of {run.schema.source} takes no argument {name}{meant}", instead)


def added_key(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    """Keys that a command adds with ``+``, and that its configuration has: Hydra refuses them."""
    schema = run.schema
    for key in run.refused:
        if run.sign(key) == "+" and _find_unknown(schema, key) is None:
            yield Advice(key, f"{schema.source} has the key {key}: Hydra refuses to add it", _instead(run, key, key))


def unknown_value(run: PlannedRun) -> Iterator[Advice | Unchecked]:
    """Texts where the trainer takes one of a few others."""
    schema = run.schema
    for key, allowed in schema.values.items():
        value = run.get(key)
        if not isinstance(value, str) or value in allowed or value == "":
            continue
        meant = _closest(value, allowed, 0.6 if schema.complete else None)
        told = f": did you mean {meant}?" if meant else f": it takes {', '.join(allowed)}"
        if meant or (schema.complete and not _registers_own(run)):
            instead = run.write(key, meant) if meant else f"# one of: {', '.join(allowed)}"
            yield Advice(key, f"{schema.source} has no {key.rpartition('.')[2]} {value}{told}", instead)
        else:
            yield Unchecked(f"{schema.source} has no {key} = {value}: whether the run registers it is not known here")


def _unknown_keys(run: PlannedRun, schema: Schema) -> Iterator[str]:
    """Yield the unknown keys once each, a table instead of what is in it, in their order."""
    given = {key for key, _ in walk(run.tree)} | {*run.refused}
    keys = [key for key in run.places if key in given]
    found = (_find_unknown(schema, key) for key in dict.fromkeys([*keys, *run.refused]))
    for key in dict.fromkeys(filter(None, found)):
        if not key.startswith(("accelerate.", "hydra")) and "@" not in key:
            yield key


def _find_unknown(schema: Schema, key: str) -> str | None:
    """Return the part of a dotted key, from its beginning, that is not known; None for a key that may be there."""
    names = key.split(".")
    for depth in range(1, len(names) + 1):
        part, name = ".".join(names[:depth]), names[depth - 1]
        if _HANDED_ON.search(name) or name.startswith("_") or name.isdecimal():
            return None
        if part not in schema.keys and name not in schema.fields.get(".".join(names[: depth - 1]), ()):
            return part
        if part not in schema.tables:
            return None
    return None


def _meant(run: PlannedRun, schema: Schema, key: str, refuses: bool) -> str:
    """Return the known key that was meant, if one is near enough to say so; else ""."""
    table, _, name = key.rpartition(".")
    beside = {one.rpartition(".")[2]: one for one in schema.keys if one.rpartition(".")[0] == table}
    if near := _closest(name, beside, 0.8 if refuses else None):
        return beside[near]
    # In another table: in the largest section, nearest to the top.
    sizes = Counter(one.partition(".")[0] for one in schema.keys)
    same = [one for one in schema.keys if one.rpartition(".")[2] == name]
    elsewhere = min(same, key=lambda one: (-sizes[one.partition(".")[0]], one.count("."), one), default="")
    if not elsewhere or run.trl:
        return ""
    added = run.sign(key)  # by hand, on a command line; a file may be one of other code
    return elsewhere if refuses or (added and schema.folder and not _reads(Path(schema.folder), key)) else ""


def _closest(name: str, known: Iterable[str], least: float | None) -> str:
    """Return the known name that a name is a misspelling of, or that is alike enough, if that is said."""
    known = list(known)
    slip = next((one for one in known if _is_misspelling(name, one)), "")
    return slip or next(iter(get_close_matches(name, known, 1, least) if least else ()), "")


def _is_misspelling(name: str, known: str) -> bool:
    """Return whether two names are the same but for words that are shortened, or one that has a slip in it."""
    words, others = re.split(r"[_-]", name), re.split(r"[_-]", known)
    if "".join(words) == "".join(others):
        return True
    differ = [sorted(pair, key=len) for pair in zip(words, others, strict=False) if pair[0] != pair[1]]
    if len(words) != len(others) or len(differ) == len(words) > 1:
        return False
    slips = [(short, long) for short, long in differ if len(short) < 3 or not long.startswith(short)]
    return not slips or (len(differ) == 1 and len(slips[0][0]) > 3 and SequenceMatcher(None, *slips[0]).ratio() > 0.7)


@cache
def _reads(folder: Path, key: str) -> bool:
    """Return whether the trainer's source reads a key of this name from a table of this name."""
    table, _, name = key.rpartition(".")
    table, name = re.escape(table.rpartition(".")[2]), re.escape(name)
    of_table = rf"\b{table}(?:_config|_cfg)?(?:\.{name}\b|\.get\(\s*[\"']{name}[\"']|\[[\"']{name}[\"']\])"
    anywhere = rf"\bconfig(?:\.{name}\b|\.get\(\s*[\"']{name}[\"']|\[[\"']{name}[\"']\])"
    for file in folder.rglob("*.py"):
        text = file.read_text(encoding="utf-8", errors="replace")
        if name in text and re.search(of_table, text):
            return True
        if table in str(file.relative_to(folder)) and re.search(anywhere, text):
            return True
    return False


def _registers_own(run: PlannedRun) -> bool:
    """Return whether a run may register values: by its own program, or by a module that verl loads for it."""
    if run.trl:
        return not run.program.startswith("trl ")
    loads = run.get("actor_rollout_ref.model.external_lib") or run.get("custom_reward_function.path")
    return bool(loads) or not run.program.startswith("verl.")


def _instead(run: PlannedRun, key: str, meant: str) -> str:
    if not meant:
        new = run.verl and run.sign(key) == ""
        return f"# leave it out, or +{key}={run.get(key)} for code of your own" if new else "# leave it out"
    value = run.get(key)
    if value is None or isinstance(value, (dict, list)):
        return f"# {meant} in place of {key}, with its value"
    return run.write(meant, str(value).lower() if isinstance(value, bool) else value, like=key)
