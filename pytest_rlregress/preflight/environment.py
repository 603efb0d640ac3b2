"""Rules of preflight about what a run finds where it starts: its interpreter, and Ray's address."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_rlregress import remedies
from pytest_rlregress.preflight.document import RuleContext, Unchecked
from pytest_rlregress.preflight.shell import UNKNOWN
from pytest_rlregress.remedies.advice import Advice

# A variable that was not set, as launch scripts are read: PYTHONPATH=$PYTHONPATH:/checkout
_UNSET = re.compile(r"\$\{oc\.env:\w+,''\}")

_STOP = "ray stop  # ends every Ray process of this machine, and removes the address"


def trainer_not_found(run: RuleContext) -> Iterator[Advice | Unchecked]:
    """A launch script whose interpreter has no module of the trainer."""
    for key, command in run.config.commands.items():
        environ = {name: _UNSET.sub("", value) for name, value in run.config.environ.items()}
        used = [command.interpreter, environ.get("PATH", ""), environ.get("PYTHONPATH", "")]
        package = command.module.partition(".")[0]
        if run.packages_unknown:
            yield Unchecked(run.packages_unknown)
        elif command.unknown:
            yield Unchecked(f"which interpreter starts {command.module} is not known here, behind {command.unknown!r}")
        elif any("${" in text or UNKNOWN in text for text in used):
            yield Unchecked(f"which interpreter starts {command.module}, and with what PYTHONPATH, is not known here")
        elif why := remedies.module_not_found(command.interpreter, command.module, environ):
            yield Advice(key, why, f"the interpreter that has {package}, and no other {package} on its PYTHONPATH")


def stale_ray_session(run: RuleContext) -> Iterator[Advice | Unchecked]:
    """An address of a Ray cluster that is gone."""
    if run.packages_unknown:
        yield Unchecked(run.packages_unknown)
    elif found := remedies.stale_ray_address(run.config.environ):
        named = found.endswith("as RAY_ADDRESS says")
        why = f"ray.init() joins the cluster at {found}, where nobody answers"
        yield Advice("RAY_ADDRESS", why, "unset RAY_ADDRESS" if named else _STOP)
