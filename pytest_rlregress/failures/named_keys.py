"""Which of the trainers' keys a failure's remedies name, and which no test of its folder names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

#: A key of verl's configuration, and its value.
VERL_KEY = re.compile(
    r"(?<![\w./])(\+{0,2}(?:actor_rollout_ref|algorithm|critic|data|ray_kwargs|reward|trainer"
    r"|transfer_queue)"
    r"(?:\.\w+)+|(?<![\w./])model_engine)(=[\w\[\]+-]+)?(?![\w/(])"
)
_TRL_NAME = re.compile(r"(?<![\w./-])[a-z0-9]+(?:_[a-z0-9]+)+(?![\w.(/])|(?<![\w./-])[a-z]+(?==\w)")
# What stands in a remedy for TRL besides its fields: calls, and what is quoted or typed in a shell.
_OTHER_WORDS = re.compile(r"[\w.]+\([^()]*(?:\([^()]*\)[^()]*)*\)|\"[^\"]*\"|`[^`]*`")
# Words of the trainers that aren't fields: columns, arguments, methods, an algorithm and a value.
_NO_FIELDS = {
    "completion_ids", "dr_grpo", "finish_reason", "from_pretrained", "iw_opd", "load_checked",
    "load_weights", "on_pre_optimizer_step", "reload_weights", "rollout_func", "rope_parameters",
}  # fmt: skip


def find_keys(remedies: Mapping[str, str]) -> list[str]:
    """Return the keys of verl and TRL that remedies name, each once, in their order."""
    keys = [key for key, _ in VERL_KEY.findall(remedies.get("verl", ""))]
    return list(dict.fromkeys([*keys, *find_trl_fields(remedies.get("trl", ""))]))


def find_trl_fields(text: str) -> list[str]:
    """Return the fields of TRL's configurations that a text names."""
    names = _TRL_NAME.findall(_OTHER_WORDS.sub("", text))
    return [name for name in names if name not in _NO_FIELDS]


def find_untested_keys(remedies: Mapping[str, str], folder: Path) -> list[str]:
    """Return the keys that remedies name and no test of a folder does: not shown by a test.

    A key of verl counts as named by its last part, or by the last two where that is a single word
    such as ``n``.
    """
    words = _words_of_tests(folder)
    return [key for key in find_keys(remedies) if not _last_parts(key) <= words]


def _last_parts(key: str) -> set[str]:
    parts = key.split(".")
    return {parts[-1]} if "_" in parts[-1] else set(parts[-2:])


@cache
def _words_of_tests(folder: Path) -> frozenset[str]:
    files = [path for path in folder.glob("*.py") if path.name != "mutants.py"]
    texts = [path.read_text(encoding="utf-8") for path in files]
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))
