"""Compose the configurations of verl's releases for a run: Hydra at the ends, the generated ones between."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pytest_rlregress.commands.moved.findings import Snapshot
from pytest_rlregress.commands.moved.index import NotRead
from pytest_rlregress.commands.moved.reading import Answer, Reader
from pytest_rlregress.commands.moved.wheels import Release
from pytest_rlregress.commands.preflight.config import PlannedRun

MAIN = "verl.trainer.main_ppo"
_CHILD = Path(__file__).with_name("compose.py")
_SECONDS = 120.0
_HYDRA_MAIN = re.compile(r"@hydra\.main\(\s*config_path=([\"'])(.*?)\1,\s*config_name=([\"'])(.*?)\3", re.DOTALL)
_OPTION = re.compile(r"--(config-path|config-name|config-dir)(?:=(.*))?")


def make_job(run: PlannedRun) -> dict[str, Any]:
    """Make what the child is given of a run: its overrides as they are written, and the values of its files."""
    given = [place.argument for key, place in run.places.items() if place.argument and run.sign(key) is not None]
    overrides = [one for one in given if re.match(r"[+~]{0,2}[A-Za-z_]\w*[.=]", one)]
    files = {key: run.get(key) for key, place in run.places.items() if place.file}
    laid = {key: value for key, value in files.items() if not isinstance(value, dict)}
    options: dict[str, str] = {}
    for at, word in enumerate(run.words):
        if found := _OPTION.fullmatch({"-cp": "--config-path", "-cn": "--config-name"}.get(word, word)):
            options[found[1]] = found[2] if found[2] is not None else "".join(run.words[at + 1 : at + 2])
    return {"words": overrides, "laid": laid, "options": options}


def take_snapshots(
    releases: Sequence[Release], program: str, job: Mapping[str, Any], reader: Reader, answer: Answer
) -> list[tuple[Snapshot, Release]]:
    """Compose each release's configuration with the run's overrides."""
    options = job["options"]
    engine = next((one.partition("=")[2] for one in job["words"] if one.startswith("model_engine=")), "dp")
    is_usual = options.get("config-path", "config") == "config" and "config-dir" not in options
    if named := re.fullmatch(r"ppo_(?:(megatron)_)?trainer(?:\.yaml)?", options.get("config-name", "ppo_trainer")):
        engine = named[1] or engine
    is_usual = is_usual and named is not None and program == MAIN
    generated = "_generated_ppo_trainer.yaml" if engine == "dp" else f"_generated_ppo_{engine}_trainer.yaml"
    path, ends = f"verl/trainer/config/{generated}", (releases[0], releases[-1])
    given: dict[str, Any] = {"words": job["words"], "laid": job["laid"]}
    # The user's own files: nothing of them is kept.
    own = options.get("config-path", "").startswith("/") or "config-dir" in options
    made: dict[str, Any] = {}
    keys: dict[str, Any] = {}
    jobs: dict[str, dict[str, Any]] = {}
    with TemporaryDirectory(prefix="rlregress-") as name:
        for release in releases:
            whole = release in ends or not is_usual or path not in release.paths
            key = [release.key, given, program, options, engine, whole] if release.key and not own else None
            keys[release.version] = key
            if (kept := reader.facts.peek(key)) is not None:
                made[release.version] = kept
                continue
            try:
                if whole:
                    top = Path(name, release.version)
                    jobs[release.version] = given | _describe_composition(release, program, options, top)
                    release.unpack(top, lambda path: path.endswith((".yaml", ".yml")))
                else:
                    jobs[release.version] = given | {"generated": release.read(path)}
            except NotRead as error:
                made[release.version] = {"error": str(error)}
        for version, found in _ask_children(jobs).items():
            made[version] = found if "error" in found else reader.facts.keep(keys[version], found)
    snapshots = []
    for release in releases:
        one = made[release.version]
        if "error" not in one:
            snapshots.append((Snapshot(release.version, one["values"], dict.fromkeys(one["refused"], "")), release))
        elif release in ends:
            raise NotRead(f"verl {release.version}'s configuration can't be composed: {one['error']}")
        else:
            answer.not_read.append(f"verl {release.version}'s configuration: {one['error']}")
    return snapshots


def _describe_composition(release: Release, program: str, options: Mapping[str, str], top: Path) -> dict[str, Any]:
    """Say which configuration a program of a release composes, in which folder."""
    path = f"{program.replace('.', '/')}.py"
    main = _HYDRA_MAIN.search(release.read(path))
    if path not in release.paths:
        raise NotRead(f"verl {release.version} has no program {program}")
    if main is None:
        main = _HYDRA_MAIN.search(release.read("verl/trainer/main_ppo.py"))
    beside = top / Path(path).parent
    folder = beside / (main[2] if main else "config")
    name = options.get("config-name") or (main[4] if main else "ppo_trainer")
    own = beside / options["config-path"] if "config-path" in options else folder  # Hydra's: beside the program
    search = [str(folder)] if own != folder else []
    if "config-dir" in options:
        search.append(str(Path(options["config-dir"]).absolute()))
    return {"folder": str(own), "name": name.removesuffix(".yaml"), "search": search, "working": str(top)}


def _ask_children(jobs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Let two bare processes compose configurations, the ends first; returns the answers by release."""
    order = sorted(jobs, key=lambda version: "generated" in jobs[version])
    halves = [order[at::2] for at in range(2) if order[at::2]]
    answers: dict[str, Any] = {}
    with ThreadPoolExecutor(2) as threads:
        asked = threads.map(lambda half: _ask_child([jobs[one] for one in half]), halves)
        for half, found in zip(halves, asked, strict=True):
            answers |= zip(half, found, strict=True)
    return answers


def _ask_child(jobs: Sequence[Mapping[str, Any]]) -> list[Any]:
    child = subprocess.run(
        [sys.executable, "-I", str(_CHILD)],
        input=json.dumps(jobs, default=str),
        capture_output=True,
        encoding="utf-8",
        timeout=_SECONDS,
        check=False,
    )
    if child.returncode == 0:
        return json.loads(child.stdout)  # type: ignore[no-any-return]
    return [{"error": child.stderr.strip().rpartition("\n")[2]}] * len(jobs)
