"""``rlregress bisect``: which upgrade broke a test."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from pytest_rlregress.environments import RequestError
from pytest_rlregress.trials import declare_answer, declare_environments, declare_trials
from pytest_rlregress.util import arguments

if TYPE_CHECKING:
    from pytest_rlregress.commands.bisect.answer import Answer
    from pytest_rlregress.trials.trial import Progress

#: What stands behind -- is a training command, which is rehearsed.
TAKES_A_COMMAND = True
_MANUAL = """\
three kinds:
  one package, its released versions between two ends
    rlregress bisect transformers --good 4.56.0 --bad 5.3.0 test_mine.py::test_ids_are_a_list
  two locks, of which many packages differ: the smallest set of upgrades that does it, then the release of each
    rlregress bisect --good-lock monday.txt --bad-lock tuesday.txt test_mine.py::test_x
    rlregress bisect --from-record last-good.json --to-record tonight.json
  a training command of yours, rehearsed with each release (rlregress rehearse --help)
    rlregress bisect vllm --good 0.30.0 --bad 0.31.0 -- trl grpo --config grpo.yaml
  the commits of a checkout, of a dependency or of the trainer itself
    rlregress bisect --revisions v1.2..main --repo ../trainer test_mine.py::test_x

TEST is any pytest file or node id, no marker needed, or the id of a documented failure (rlregress list); several may be
named. It runs once
here, passing or failing: what it imports is what each environment gets, in the versions of this one, and what stands
in the way of a release moves. The environment you are in is never touched.

Bad is what fails as the bad end does: another failure, a time-out, an environment that cannot be built are unknown,
and said so. The bad end may be the older one: then it says which release repaired it. What came out at both ends is
always shown.

An interrupted bisect goes on with the same command. Exit codes: 0 found, 1 not reproduced or not monotone, 2 could not
be made (an unknown test or version, no network, no disk), 3 narrowed to what could not be tested.
"""


def declare(commands: Any) -> None:
    """Add the command to argparse's sub-commands."""
    parser = commands.add_parser(
        "bisect",
        description="Say which release, upgrade or commit made a test fail, and show the proof.",
        epilog=_MANUAL,
        formatter_class=arguments.ManualFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="[PACKAGE] TEST", help="what is bisected, and the test")
    _ends(parser.add_argument_group("the ends"))
    declare_trials(parser.add_argument_group("trials"), timeout=1800)
    _environments(parser.add_argument_group("environments"))
    declare_answer(parser.add_argument_group("the answer"))
    parser.set_defaults(run=run)


def _ends(group: Any) -> None:
    group.add_argument("--good", metavar="VERSION", help="of PACKAGE: where the test is good")
    group.add_argument("--bad", metavar="VERSION", help="of PACKAGE: where it is bad")
    group.add_argument("--pre", action="store_true", help="pre-releases too")
    group.add_argument(
        "--good-lock", type=arguments.path, metavar="FILE", help="pip freeze or a resolved requirements file"
    )
    group.add_argument("--bad-lock", type=arguments.path, metavar="FILE")
    group.add_argument("--from-record", type=arguments.path, metavar="FILE", help="a record of pytest --rl-record-dir")
    group.add_argument("--to-record", type=arguments.path, metavar="FILE")
    group.add_argument("--revisions", metavar="GOOD..BAD", help="commits of --repo")
    group.add_argument(
        "--repo", type=arguments.path, metavar="DIR", help="a git checkout; its state and files are left alone"
    )


def _environments(group: Any) -> None:
    group.add_argument(
        "--all-packages",
        action="store_true",
        help="hold all of this environment, not only what the test imports, or says with @pytest.mark.needs",
    )
    group.add_argument(
        "--no-deps", action="store_true", help="move nothing but PACKAGE, whatever it and others require"
    )
    declare_environments(group)


def run(asked: argparse.Namespace) -> int:
    """Bisect, print the answer; returns the exit code."""
    # All that it takes: not for those who ask for help.
    from pytest_rlregress.commands.bisect.answer import tell
    from pytest_rlregress.trials import context

    return context.run_request(asked, lambda progress: tell(_find_answer(asked, progress)))


def _find_answer(asked: argparse.Namespace, progress: Progress) -> Answer:
    """Find which kind is asked for, and its answer."""
    from pytest_rlregress.commands.bisect import checkout, locks, releases
    from pytest_rlregress.trials import context

    ways = {
        "--good and --bad": (releases.bisect_releases, asked.good, asked.bad),
        "--good-lock and --bad-lock": (locks.bisect_locks, asked.good_lock, asked.bad_lock),
        "--from-record and --to-record": (locks.bisect_locks, asked.from_record, asked.to_record),
        "--revisions and --repo": (checkout.bisect_commits, asked.revisions, asked.repo),
    }
    chosen = [way for way, (_, *ends) in ways.items() if any(ends)]
    if len(chosen) != 1 or not all(ways[chosen[0]]):
        raise RequestError(f"give two ends, one pair of {', '.join(ways)}. rlregress bisect --help has examples")
    tests = context.list_tests(asked, asked.words[1:] if asked.good else asked.words)
    if asked.good and not asked.words:
        raise RequestError("name the package that --good and --bad are releases of: rlregress bisect PACKAGE … TEST")
    if asked.from_record and not tests:
        tests = [locks.find_flipped_test(asked.from_record, asked.to_record)]
        progress.say(f"went from good to bad: {tests[0]}")
    if not tests:
        raise RequestError("name the test: a documented failure (rlregress list), a file, a node id, or -- COMMAND")
    with context.open_context(asked, tests, progress) as opened:
        return ways[chosen[0]][0](opened)
