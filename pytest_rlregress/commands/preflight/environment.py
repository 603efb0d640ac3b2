"""Rules of preflight about what a run finds where it starts: its interpreter, and Ray's address."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_rlregress import remedies
from pytest_rlregress.commands.preflight.document import RuleContext, Unchecked
from pytest_rlregress.remedies.advice import Advice

_STOP = "ray stop  # ends every Ray process of this machine, and removes the address"


def trainer_not_found(run: RuleContext) -> Iterator[Advice | Unchecked]:
    """A command whose interpreter has no module of the trainer."""
    config = run.config
    module = config.program.partition(" ")[0]
    package = module.partition(".")[0]
    if not config.interpreter:
        return
    if run.packages_unknown:
        yield Unchecked(run.packages_unknown)
    elif not config.answer and (why := remedies.module_not_found(config.interpreter, module, config.environ)):
        yield Advice(module, why, f"the interpreter that has {package}, and no other {package} on its PYTHONPATH")


def stale_ray_session(run: RuleContext) -> Iterator[Advice | Unchecked]:
    """An address of a Ray cluster that is gone."""
    if run.packages_unknown:
        yield Unchecked(run.packages_unknown)
    elif found := remedies.stale_ray_address(run.config.environ):
        named = found.endswith("as RAY_ADDRESS says")
        why = f"ray.init() joins the cluster at {found}, where nobody answers"
        yield Advice("RAY_ADDRESS", why, "unset RAY_ADDRESS" if named else _STOP)
