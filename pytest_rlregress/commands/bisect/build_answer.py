"""Build the answer of a bisect."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from pytest_rlregress.commands.bisect.answer import (
    Answer,
    BisectRequest,
    ChangedSet,
    Culprit,
    DocumentedFailure,
    NotFound,
)
from pytest_rlregress.commands.bisect.follow import FollowedTest, describe_end, summarize_end
from pytest_rlregress.commands.bisect.needs import EnvironmentContents, find_lacking, list_distributions
from pytest_rlregress.commands.trials.context import TrialContext
from pytest_rlregress.commands.trials.failure_comparison import list_documented
from pytest_rlregress.commands.trials.runner import Candidate, TrialRunner
from pytest_rlregress.commands.trials.trial import RunContext, Trial
from pytest_rlregress.stack import COMPONENTS
from pytest_rlregress.util.text import plural


def build_found(
    context: TrialContext,
    followed: FollowedTest,
    held: EnvironmentContents,
    command: Sequence[str],
    *,
    culprits: Sequence[Culprit],
    edge: tuple[Candidate, Candidate],
    changed: ChangedSet | None = None,
    days: tuple[str | None, str | None] = (None, None),
) -> Answer:
    """Build the answer where the flip was found.

    Args:
        context: Of this bisect.
        followed: The test that was followed.
        held: What was held fixed.
        command: What shows it again.
        culprits: Where the test flips.
        edge: The last good candidate and the first bad one.
        changed: For two locks.
        days: Of the good end and the bad end.
    """
    also_flip, flip_elsewhere = followed.split_other_tests(*edge)
    names = {name for culprit in culprits for name in culprit.name.split(", ")} | _moved(followed.runner)
    documented = min(list_documented(followed.flip.bad), default=None)
    return Answer(
        _describe_request(context, *followed.labels, followed.flip.test, documented),
        followed.describe_ends(days),
        _run_context(followed.flip.hardware, held, names),
        followed.summarize_trials(),
        followed.runner.seconds_before + context.progress.elapsed,
        tuple(command),
        tuple(culprits),
        changed,
        also_flip=tuple(also_flip),
        flip_elsewhere=tuple(flip_elsewhere),
    )


def build_not_found(
    context: TrialContext,
    why: NotFound,
    ends: tuple[Candidate, Candidate],
    runner: TrialRunner,
    held: EnvironmentContents,
) -> Answer:
    """Build the answer where no flip was found."""
    hardware = next((run.hardware for trial in runner.trials.values() for run in trial.runs), "")
    good, bad = (describe_end(candidate, runner.find_trial(candidate)) for candidate in ends)
    return Answer(
        _describe_request(context, good.label, bad.label, "", next(iter(context.request.failures), None)),
        (good, bad),
        _run_context(hardware, held, _moved(runner)),
        tuple(map(summarize_end, runner.trials.values())),
        runner.seconds_before + context.progress.elapsed,
        build_command(context),
        not_found=replace(
            why,
            command=_swap_ends(context) if why.kind == "swapped" else (),
            advice=tuple(_advise(context, held, runner.trials.values(), conflict=bool(good.conflict or bad.conflict))),
        ),
    )


def _advise(
    context: TrialContext, held: EnvironmentContents, trials: Collection[Trial], *, conflict: bool
) -> Iterator[str]:
    """Name the options that may let the flip be found."""
    if conflict and context.options.good:
        yield f"--no-deps moves nothing but {context.options.words[0]}, whatever it and the others require."
    if conflict and context.options.all_packages:
        yield "Without --all-packages the environments hold only what the tests say they need, or import."
    if any("had no end after" in run.trouble for trial in trials for run in trial.runs):
        yield "--timeout gives a run more time; with --fresh, what came to its limit is tried again."
    if not held.left_out:
        return
    lacking = find_lacking(trials, held.left_out)
    if lacking:
        yield (
            f"The tests lack {', '.join(lacking)} there, which is installed here but which their marker needs(…) does "
            "not name: take the marker away, and what they import is found out; or give --all-packages."
        )
    elif not conflict:
        yield f"--all-packages holds all of this environment: {plural(len(held.left_out), 'package')} more."


def _swap_ends(context: TrialContext) -> tuple[str, ...]:
    """Build the command with the ends exchanged."""
    given, ends = vars(context.options), (("good", "bad"), ("good_lock", "bad_lock"), ("from_record", "to_record"))
    swapped = {flag: given[other] for pair in ends for flag, other in (pair, pair[::-1]) if given[other]}
    if given["revisions"]:
        swapped["revisions"] = "..".join(reversed(given["revisions"].split("..")))
    return build_command(context, **swapped)


def build_command(context: TrialContext, **ends: object) -> tuple[str, ...]:
    """Build the command as it was typed, between other ends."""
    words = ["rlregress", *context.options.arguments]
    for name, end in ends.items():
        flag = f"--{name.replace('_', '-')}"
        for at, word in enumerate(words):
            if word == flag:
                words[at + 1] = str(end)
            elif word.startswith(f"{flag}="):
                words[at] = f"{flag}={end}"
    return tuple(words)


def _describe_request(context: TrialContext, good: str, bad: str, test: str, failure_id: str | None) -> BisectRequest:
    failure = context.failures.get(failure_id or "")
    documented = DocumentedFailure(failure.id, failure.title, failure.cause, failure.remedy) if failure else None
    request = context.request
    asked_for = " ".join((*request.failures, *request.arguments, *request.shipped))
    return BisectRequest(f"{asked_for}: {test}" if test and test != asked_for else asked_for, good, bad, documented)


def _moved(runner: TrialRunner) -> set[str]:
    """Return the packages that differed from what is held fixed in some trial."""
    return {line.split()[0] for trial in runner.trials.values() for line in trial.moved}


def _run_context(hardware: str, held: EnvironmentContents, moved: set[str]) -> RunContext:
    """Describe where it was tried; of the packages held fixed, the components of the stack."""
    names = sorted(list_distributions(COMPONENTS) - moved)
    versions = {name: held.lock.version(name) or "" for name in names if name in held.lock.lines}
    return RunContext.here(hardware, versions, _describe_left_out(held))


def _describe_left_out(held: EnvironmentContents) -> tuple[str, ...]:
    """Say how many packages were left out and why, and which components of the stack are among them."""
    names, why = held.left_out, "do not say they need" if held.needs.declared else "do not import here"
    among = ", ".join(sorted(list_distributions(COMPONENTS).intersection(names)))
    text = f"{len(names)} packages that the tests {why}{f', among them {among}' if among else ''}"
    return (text,) if names else ()
