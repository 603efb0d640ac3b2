"""``rlregress moved``: what a release changes for a run, told from released wheels."""

from __future__ import annotations

import argparse
import json
import re
import sys
from typing import Any

from pytest_rlregress.commands.moved import matrix_options
from pytest_rlregress.util import arguments, cache

#: What stands behind -- is a command of its own.
TAKES_A_COMMAND = True
_DESCRIPTION = """\
Say which changes between two releases of a package concern a run: keys of yours that are gone or refused, defaults that
you inherit and that moved, calls that no longer bind. It reads the releases' wheels; nothing is installed, and no code
of a wheel runs. A script of TRL's is run by its own interpreter up to its trainer, as preflight does.

exit code:
  0  nothing that concerns this run
  1  something does
  2  bad input
  3  nothing that was read concerns this run, and something was not read
"""
_EPILOG = """\
examples:
  rlregress moved verl==0.7.0.. -- bash run_grpo.sh               from that release to the installed one
  rlregress moved verl==0.7.0..0.9.1 -- python3 -m verl.trainer.main_ppo data.train_batch_size=256 …
  rlregress moved trl==1.6.0..1.16.0 -- trl grpo --config grpo.yaml
  rlregress moved trl==1.17.0 -- python train.py --beta 0.04      from the installed one to that
  rlregress moved trl==0.28.0..1.16.0 grpo.yaml                   a file without its command
  rlregress moved verl==0.8.0..0.9.0                              all of verl's defaults, without a run
  rlregress moved vllm==0.33.0                                    the installed trainers with another engine
  rlregress moved --matrix verl trl --with vllm --out binds.md    the last eight of each with the last eight, as a page
"""
_SPECIFIER = re.compile(r"([A-Za-z][\w.-]*?)==([\w.+!-]*?)(\.\.([\w.+!-]*))?")


def declare(commands: Any) -> None:
    """Add the command to argparse's sub-commands."""
    parser = commands.add_parser(
        "moved",
        formatter_class=arguments.ManualFormatter,
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="PACKAGE==FROM..TO|CONFIG|KEY=VALUE",
        help="the package and its releases, then files and overrides, as of rlregress preflight",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="all that moved, with reasons")
    parser.add_argument("--json", action="store_true", help="as a JSON object")
    parser.add_argument("--offline", action="store_true", help="use what is cached")
    parser.add_argument(
        "--cache-dir",
        type=arguments.path,
        default=cache.folder(),
        metavar="DIR",
        help="what was read of wheels (default: %(default)s; also: environment RLREGRESS_CACHE_DIR)",
    )
    matrix_options.add_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compare the releases for the run and print what moved; returns the exit code."""
    if matrix_options.is_asked(options):
        from pytest_rlregress.commands.moved import matrix_command

        return matrix_command.run(options)
    from pytest_rlregress.commands.moved.answer import Moved, as_json, as_text
    from pytest_rlregress.commands.moved.comparison import compare
    from pytest_rlregress.commands.moved.index import NoSuchRelease, NotRead
    from pytest_rlregress.commands.moved.reading import Answer
    from pytest_rlregress.commands.preflight.config import ConfigError
    from pytest_rlregress.environments import RequestError

    try:
        package, ends = read_specifier(options.words[0] if options.words else "")
        try:
            moved = compare(package, ends, options.words[1:], options.behind, options.cache_dir, options.offline)
        except NotRead as error:
            moved = Moved(package, ends, "this run", Answer(not_read=[str(error)]))
    except (ConfigError, NoSuchRelease, RequestError) as error:
        print(f"rlregress moved: {error}", file=sys.stderr)
        return 2
    found = as_json(moved)
    print(json.dumps(found, indent=2, ensure_ascii=False) if options.json else as_text(moved, options.verbose))
    return int(moved.result.exit_code)


def read_specifier(text: str) -> tuple[str, tuple[str, str]]:
    """Read ``verl==0.7.0..0.9.1``; the installed release stands where one is left out, or only one is given.

    Raises:
        ConfigError: It isn't one, or the package isn't installed and has no end here.
    """
    from packaging.utils import canonicalize_name

    from pytest_rlregress.commands.moved.comparison import COMPARED
    from pytest_rlregress.commands.moved.reading import find_installed
    from pytest_rlregress.commands.preflight.config import ConfigError

    found = _SPECIFIER.fullmatch(text)
    if not found or not (found[2] or found[4]):
        raise ConfigError(f"{text!r} names no releases: write verl==0.7.0..0.9.1, verl==0.7.0.. or verl==0.9.1")
    package: str = canonicalize_name(found[1])
    if package not in COMPARED:
        raise ConfigError(f"{package} isn't compared: {', '.join(COMPARED)} are")
    here = find_installed(package)
    first, last = (found[2], found[4]) if found[3] else ("", found[2])
    if not (first and last) and not here:
        raise ConfigError(f"{package} isn't installed here: name both releases, as {package}==1.2.0..1.3.0")
    ends = first or here, last or here
    if ends[0] == ends[1]:
        raise ConfigError(f"{package} {ends[0]} is both ends: name another release")
    return package, ends
