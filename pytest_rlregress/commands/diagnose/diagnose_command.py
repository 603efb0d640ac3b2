"""``rlregress diagnose``: name the documented failures that logs show."""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pytest_rlregress.commands.diagnose import metrics, signs
from pytest_rlregress.commands.diagnose.metrics import Run
from pytest_rlregress.commands.diagnose.signs import MetricFinding
from pytest_rlregress.diagnosis import reader
from pytest_rlregress.diagnosis.findings import Diagnosis, LogFinding
from pytest_rlregress.failures import catalogue
from pytest_rlregress.failures.catalogue import Failure
from pytest_rlregress.util import arguments
from pytest_rlregress.util.coverage import Coverage, Result, Unchecked
from pytest_rlregress.util.text import join_some, plural, wrapped

# Of its own: a script that asks whether something documented happened gets no answer from what may be something else.
_COULD_BE = 3
_VALUES = 6  # of a metric, in the text


def declare(commands: Any) -> None:
    """Add the command to argparse's sub-commands."""
    parser = commands.add_parser(
        "diagnose",
        formatter_class=arguments.ManualFormatter,
        description="Name the documented failures that logs show, the most specifically identified first, with lines, "
        "cause and remedy; then what could be one, but other programs print it too, with what would confirm it; then "
        "what else went wrong in them. What trainers log each step is evidence too: lines that verl and TRL print, "
        "JSON lines, trainer_state.json, files of TensorBoard, wandb's CSV. The exit code is 1 if there is a "
        "documented failure; 3 if something could be one, if something failed that isn't documented, or if metrics "
        "could not be judged; 0 if none of it; 2 for a log that cannot be read or is empty.",
    )
    parser.add_argument(
        "log",
        nargs="*",
        type=arguments.path,
        help="log files, plain or gzipped, and files of metrics; of a folder the files of metrics in it; - or none: "
        "standard input",
    )
    catalogue.declare(parser)
    parser.add_argument("--json", action="store_true", help="as a JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Read the logs and print what they show; returns the exit code."""
    if not options.log and sys.stdin.isatty():
        print("rlregress diagnose: no log; give files, or pipe one in", file=sys.stderr)
        return 2
    diagnosis = Diagnosis(catalogue.load([catalogue.SHIPPED, *options.scenarios]))
    unread: list[str] = []
    runs: list[Run] = []
    for given in options.log or [reader.STDIN]:
        try:
            files = metrics.list_files(given)
        except reader.LogError as error:
            unread.append(str(error))
            continue
        for path in files:
            try:
                if (read := metrics.read_file(path)) is None:
                    read, name = [Run(reader.name_of(path))], reader.name_of(path)
                    diagnosis.read(name, _watch(reader.read(path), read[0]))
                runs += read
            except reader.LogError as error:
                unread.append(str(error))
            except OSError as error:
                unread.append(f"{path}: {error.strerror or error}")
    diagnosis.end()
    found = signs.find(runs)
    coverage = _coverage(diagnosis, runs)
    if options.json:
        print(json.dumps(_as_json(diagnosis, found, runs, unread, coverage), indent=2))
    elif runs:
        print(_as_text(diagnosis, found, runs, coverage))
    for reason in unread:
        print(f"rlregress diagnose: {reason}", file=sys.stderr)
    if unread:
        return 2
    result = coverage.judge(diagnosis.documented or any(one.is_certain for one in found))
    open_questions = diagnosis.possible or found or diagnosis.has_undocumented
    return _COULD_BE if result is Result.CLEAN and open_questions else result.exit_code


def _coverage(diagnosis: Diagnosis, runs: Sequence[Run]) -> Coverage:
    """Return what was read: events of logs, and metrics; not those of names that are known of no trainer."""
    checked = [f"{run.log}: {', '.join(parts)}" for run in runs if (parts := _parts_read(diagnosis, run))]
    named = ("the metrics under verl's or TRL's names, which docs/diagnose.md has",)
    unchecked = {
        f"metrics of {run.log}": Unchecked(f"none of their names is known: {join_some([*run.unread])}", named)
        for run in runs
        if run.unread and not run.steps
    }
    unchecked |= {
        run.log: Unchecked("it has no metrics", named)
        for run in runs
        if not run.steps and not run.unread and not diagnosis.has_read(run.log)
    }
    return Coverage.of(checked, unchecked)


def _parts_read(diagnosis: Diagnosis, run: Run) -> list[str]:
    parts = ["lines"] if diagnosis.has_read(run.log) else []
    return [*parts, _steps(run)] if run.steps else parts


def _watch(blocks: Iterable[bytes], run: Run) -> Iterator[bytes]:
    """Pass the blocks of a log on, with the metrics in them given to a run."""
    for block in blocks:
        run.feed(block)
        yield block


def _as_text(diagnosis: Diagnosis, in_metrics: list[MetricFinding], runs: list[Run], coverage: Coverage) -> str:
    trainer = diagnosis.search.trainer
    paragraphs = [_failure_as_text(finding, trainer) for finding in diagnosis.documented]
    paragraphs += [_failure_as_text(finding, trainer, could_be=True) for finding in diagnosis.possible]
    if read := [run for run in runs if run.steps]:
        logs = ", ".join(f"{run.log} ({_steps(run)})" for run in read)
        sound = "" if in_metrics else "no sign of a documented failure; read were "
        paragraphs.append("\n".join(wrapped(f"In the metrics: {sound}{logs}", rest="  ")))
        failures = {failure.id: failure for failure in diagnosis.failures}
        paragraphs += [_metric_as_text(one, failures, trainer) for one in in_metrics]
    if diagnosis.unknown:
        seen = [f"  {finding.places[0]}: {_shorten(finding.what)}{_times(finding)}" for finding in diagnosis.unknown]
        paragraphs.append("\n".join(["Seen, and not documented:", *seen]))
    if diagnosis.left_out:
        left_out = plural(diagnosis.left_out, "more event")
        paragraphs.append(f"Not listed: {left_out}, such as exit codes and errors that say no more.")
    count, possible = len(diagnosis.documented), len(diagnosis.possible)
    count += sum(one.is_certain for one in in_metrics)
    possible += sum(len(signs.TEXTS[one.sign]["ids"]) for one in in_metrics if not one.is_certain)
    could_be = f", {possible} that could be one" if possible else ""
    others = sum(not signs.TEXTS[one.sign]["ids"] for one in in_metrics)
    could_be += f", {plural(others, 'sign')} of none in the metrics" if others else ""
    headline = coverage.headline(plural(count, "documented failure") if count else "", "no documented failures")
    paragraphs.append(f"{headline}{could_be}")
    for name, one in coverage.unchecked:
        paragraphs.insert(-1, "\n".join(wrapped(f"Not checked: {name}: {one.why}", rest="  ")))
    if diagnosis.unknown and not count + possible:
        log = diagnosis.unknown[0].places[0].log
        paragraphs[-1] += f"\nTo document one: rlregress new my-failure --folder scenarios/mine < {shlex.quote(log)}"
    return "\n\n".join(paragraphs)


def _failure_as_text(finding: LogFinding, trainer: str, *, could_be: bool = False) -> str:
    failure = finding.failure
    if failure is None:
        raise ValueError("a finding without a failure")
    lines = wrapped(f"{'Could be ' if could_be else ''}{failure.id}: {failure.title}", rest="    ")
    lines.append(f"  {finding.places[0]}{_times(finding)}")
    lines += [f"    {number:>7}  {_shorten(text)}" for number, text in finding.places[0].lines]
    told = [("would confirm it", text) for text in finding.confirm if could_be]
    told += [("cause", failure.cause), ("remedy", failure.remedy_with(trainer))]
    told += [("does not help", f"{one['remedy']}: {one['why']}") for one in failure.refuted]
    for key, text in told:
        lines += wrapped(f"  {key}: {text}", rest="    ")
    return "\n".join(lines)


def _metric_as_text(one: MetricFinding, failures: Mapping[str, Failure], trainer: str) -> str:
    text = signs.TEXTS[one.sign]
    known = [failures[name] for name in text["ids"] if name in failures]
    titles = [f"{'' if one.is_certain else 'Could be '}{failure.id}: {failure.title}" for failure in known]
    lines = [part for title in titles or [f"Not documented: {one.sign}"] for part in wrapped(title, rest="    ")]
    pairs, half = one.shown(), _VALUES // 2
    some = pairs if len(pairs) <= _VALUES else [*pairs[:half], *pairs[-half:]]
    shown = ", ".join(f"{signs.format_value(value)} at {step}" for step, value in some)
    told = [f"{one.log}: {one.what}", f"values: {shown}", f"means: {text['means']}"]
    for failure in known if one.is_certain else ():
        told += [f"cause: {failure.cause}", f"remedy: {failure.remedy_with(trainer)}"]
    told.append(f"would confirm it: {text['confirm']}")
    return "\n".join([*lines, *(line for part in told for line in wrapped(f"  {part}", rest="    "))])


def _steps(run: Run) -> str:
    if not run.numbered:
        return f"{len(run.steps)} lines without steps' numbers, counted from 1"
    return f"{plural(len(run.steps), 'step')}, {run.first} to {run.last}"


def _times(finding: LogFinding) -> str:
    if finding.count == 1:
        return ""
    others = ", ".join(map(str, finding.places[1:]))
    return f" ({finding.count} times, also {others}{', …' if finding.count > len(finding.places) else ''})"


def _shorten(text: str) -> str:
    text = text.replace("\n", " ")
    return text if len(text) <= 200 else f"{text[:199]}…"


def _as_json(
    diagnosis: Diagnosis, in_metrics: list[MetricFinding], runs: list[Run], unread: list[str], coverage: Coverage
) -> dict[str, object]:
    trainer = diagnosis.search.trainer
    documented = [_failure_as_json(one, trainer) | {"confidence": "certain"} for one in diagnosis.documented]
    possible = [
        _failure_as_json(one, trainer) | {"confidence": "possible", "confirm": list(one.confirm)}
        for one in diagnosis.possible
    ]
    return {
        "trainer": trainer or None,
        "documented": documented,
        "possible": possible,
        "unknown": [{"what": finding.what} | _count(finding) for finding in diagnosis.unknown],
        "unknown_left_out": diagnosis.left_out,
        "unread": unread,
        "checked": [*coverage.checked],
        "not_checked": [{"log": name, "why": one.why} for name, one in coverage.unchecked],
        "metrics": [_metric_as_json(one) for one in in_metrics],
        "metrics_read": [
            {"log": run.log, "steps": len(run.steps), "first": run.first, "last": run.last} for run in runs if run.steps
        ],
    }


def _failure_as_json(finding: LogFinding, trainer: str) -> dict[str, object]:
    failure = finding.failure
    if failure is None:
        raise ValueError("a finding without a failure")
    texts = {key: getattr(failure, key) for key in ("id", "title", "cause")}
    return {**texts, "remedy": failure.remedy_with(trainer), "refuted": failure.refuted, **_count(finding)}


def _count(finding: LogFinding) -> dict[str, object]:
    places = [
        {"log": place.log, "line": place.number, "lines": [{"number": n, "text": text} for n, text in place.lines]}
        for place in finding.places
    ]
    return {"count": finding.count, "places": places}


def _metric_as_json(one: MetricFinding) -> dict[str, object]:
    """Return a sign; a value that isn't a number is null."""
    return {
        "sign": one.sign,
        "what": one.what,
        "confidence": "certain" if one.is_certain else "possible",
        "log": one.log,
        "metric": one.series.name,
        **signs.TEXTS[one.sign],
        "steps": [step for step, _ in one.shown()],
        "values": [value if math.isfinite(value) else None for _, value in one.shown()],
    }
