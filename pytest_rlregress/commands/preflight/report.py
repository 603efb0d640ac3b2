"""Put a run to every rule, and write what was found, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from pytest_rlregress.commands.preflight.document import RuleContext, Unchecked
from pytest_rlregress.commands.preflight.formats import ConfigPosition
from pytest_rlregress.commands.preflight.rules import RULES
from pytest_rlregress.remedies.advice import Advice
from pytest_rlregress.util.text import checked_lines, plural, wrapped
from pytest_rlregress.util.units import GIB


@dataclass(frozen=True)
class ConfigFinding:
    """One key that will make the run fail, with the failure's id."""

    failure: str
    place: ConfigPosition
    advice: Advice


@dataclass(frozen=True)
class Report:
    """The findings of all rules, in their order."""

    findings: Sequence[ConfigFinding]
    unchecked: Sequence[tuple[str, Unchecked]]  # with the failure's id
    checked: Sequence[str]

    @property
    def missing(self) -> list[str]:
        """What values would let more be checked, each once."""
        return list(dict.fromkeys(key for _, one in self.unchecked for key in one.missing))

    @property
    def result(self) -> str:
        """``findings``, ``partial`` where nothing was found and a value is missing, or ``clean``."""
        return "findings" if self.findings else "partial" if self.missing else "clean"


def check(run: RuleContext) -> Report:
    """Put a run to every rule of its trainer."""
    findings, unchecked = [], []
    rules = RULES[run.config.trainer]
    for failure, rule in rules.items():
        for result in rule(run):
            if not isinstance(result, Unchecked):
                findings.append(ConfigFinding(failure, run.config.place(result.key), result))
            elif (failure, result) not in unchecked:  # one reason, whatever the number of keys
                unchecked.append((failure, result))
    doubtful = {failure for failure, _ in unchecked}
    return Report(findings, unchecked, [failure for failure in rules if failure not in doubtful])


def as_json(run: RuleContext, report: Report) -> str:
    """Write one JSON object; a finding on an override has an argument where others have file and line."""
    return json.dumps(
        {
            "trainer": run.config.trainer,
            "hardware": run.profile.id,
            "files": run.config.files,
            "program": run.config.program,
            "result": report.result,
            "findings": [
                {"failure": one.failure, **asdict(one.place), **asdict(one.advice)} for one in report.findings
            ],
            "checked": report.checked,
            "not_checked": [{"failure": failure, **asdict(one)} for failure, one in report.unchecked],
            "missing": report.missing,
        },
        indent=2,
        ensure_ascii=False,
    )


def as_text(run: RuleContext, report: Report) -> str:
    """Write the findings, then what was checked and what was not."""
    lines = []
    for one in report.findings:
        lines += [f"{one.place}: {one.advice.key}: {one.failure}", *wrapped(one.advice.why, "  ", "  "), "  instead"]
        lines += [f"    {line}" for line in one.advice.instead.splitlines()] + [""]
    count = len(report.findings)
    found = plural(count, "finding") if count else "nothing found"
    found += ", checked in part" if report.missing else ""
    memory = f" with {run.memory_bytes / GIB:.0f} GiB" if run.memory_bytes else ""
    lines += [f"{run.config.title} for {run.profile.title}{memory}: {found}"]
    lines += checked_lines(report.checked, [(failure, one.why) for failure, one in report.unchecked])
    if report.missing:
        lines += wrapped(f"to check these too, give: {', '.join(report.missing)}", rest="  ")
    return "\n".join(lines)
