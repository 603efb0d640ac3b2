"""Refreshes docs/binds.md and says what a new release broke: what .github/workflows/binds.yml does every night.

``python tools/binds.py PAGE HISTORY OUT``. PAGE is the page that ``rlregress moved --matrix`` writes. HISTORY is a
folder that is kept from night to night, with the releases that were known. Where a new release of a package lacks a
name, or refuses a call, that the newest release of a trainer found in the release before it, OUT gets the issue,
title.txt and body.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_rlregress.util.text import code_span, markdown_table, plural

TRAINERS = ("verl", "trl")
PACKAGES = ("vllm", "transformers")
_KINDS = ("breaks", "in_some_cases")


def night(page: Path, history: Path, out: Path) -> list[dict[str, Any]]:
    """Write the page, and the issue where a release that is new broke something; returns what it broke.

    Raises:
        ValueError: The matrix could not be read.
    """
    kept = history / "binds.json"
    before = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else None
    matrices = read_matrices(page)
    news = [one for matrix in matrices for one in find_news(matrix, before)] if before else []
    if news:
        out.mkdir(parents=True, exist_ok=True)
        named = sorted({f"{one['package']} {one['release']}" for one in news})
        title = f"{', '.join(named)}: {plural(len(news), 'name or call')} of the newest trainers no longer bind"
        (out / "title.txt").write_text(title.replace("name or calls", "names and calls"), encoding="utf-8")
        (out / "body.md").write_text(write_body(news), encoding="utf-8")
    history.mkdir(parents=True, exist_ok=True)
    known = {matrix["package"]: list_read(matrices, matrix["package"]) for matrix in matrices}
    kept.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")
    return news


def read_matrices(page: Path) -> list[dict[str, Any]]:
    """Run ``rlregress moved --matrix``, which writes the page; returns its matrices."""
    below = [word for package in PACKAGES for word in ("--with", package)]
    program = Path(sys.executable).with_name("rlregress")
    command = [program, "moved", "--matrix", *TRAINERS, *below, "--out", page, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if not done.stdout:
        raise ValueError(f"rlregress moved ended with exit code {done.returncode}, without an answer")
    found: list[dict[str, Any]] = json.loads(done.stdout)["matrices"]
    return found


def list_read(matrices: list[dict[str, Any]], package: str) -> list[str]:
    """List the releases of a package of which every pair was read: one that wasn't is new tomorrow, too."""
    pairs = [pair for matrix in matrices if matrix["package"] == package for pair in matrix["pairs"]]
    failed = {pair["release"] for pair in pairs if pair["not_read"]}
    return [one for one in dict.fromkeys(pair["release"] for pair in pairs) if one not in failed]


def find_news(matrix: dict[str, Any], known: dict[str, list[str]]) -> Iterator[dict[str, Any]]:
    """Find what doesn't bind in a release that is new, of the newest trainer, and does in the release before it."""
    newest = matrix["pairs"][-1]["trainer"]
    pairs = [pair for pair in matrix["pairs"] if pair["trainer"] == newest]
    previous: dict[str, Any] | None = None
    for pair in pairs:
        if pair["not_read"]:
            continue
        if previous and pair["release"] not in known.get(matrix["package"], [pair["release"]]):
            failed = {one["subject"] for kind in _KINDS for one in previous[kind]}
            for one in (one for kind in _KINDS for one in pair[kind]):
                if one["subject"] not in failed:
                    yield {**one, "trainer": f"{matrix['trainer']} {newest}", **_name(matrix, pair)}
                    failed.add(one["subject"])
        previous = pair


def _name(matrix: dict[str, Any], pair: dict[str, Any]) -> dict[str, str]:
    return {"package": matrix["package"], "release": pair["release"]}


def write_body(news: list[dict[str, Any]]) -> str:
    """Write the issue's text."""
    rows = [
        [
            f"{one['package']} {one['release']}",
            one["trainer"],
            code_span(one["subject"]),
            f"{code_span(one['path'])}:{one['line']} {one['function']}".strip(),
            one["part"] or "always",
        ]
        for one in news
    ]
    table = markdown_table(["release", "trainer", "doesn't bind", "where", "when"], rows)
    return "\n".join([*table, "", "The wheels were read, nothing was run. docs/binds.md has all pairs.", ""])


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("binds.py PAGE HISTORY OUT, such as: docs/binds.md history issue")
    try:
        for broken in night(*map(Path, sys.argv[1:])):
            print(f"{broken['trainer']} with {broken['package']} {broken['release']}: {broken['subject']}")
    except ValueError as error:
        sys.exit(f"The releases could not be compared: {error}")
