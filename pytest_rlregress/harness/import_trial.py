"""Import a test file in a child first: what dies of it there is not imported into pytest's own process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_rlregress.containment import Death
from pytest_rlregress.containment.pool import ContainmentError, Pool
from pytest_rlregress.containment.reports import describe_death
from pytest_rlregress.harness.session import Session
from pytest_rlregress.harness.stack_fixtures import CONTAINED, STACK_FIXTURES


class ModuleThatDied(pytest.Module):
    """A test file whose import ended the process that tried it."""

    death: Death

    def collect(self) -> list[pytest.Item]:
        """Say how the process died, as an error of collection."""
        text, _ = describe_death(self.death)
        raise self.CollectError(f"{self.path}: import of the test module: {text}")


def try_import(path: Path, parent: pytest.Collector, pool: Pool, session: Session) -> pytest.Module | None:
    """Import a file with tests of ours in a child; return what is collected in its place if the child died of it."""
    ours = rf"\bmark\.({'|'.join(CONTAINED)})\b|\b({'|'.join(STACK_FIXTURES)})\b"
    if not session.every_file and not re.search(ours.encode(), path.read_bytes()):
        return None
    try:
        death = pool.try_import(path, session.limits)
    except (ContainmentError, OSError) as error:
        death = Death("crashed", None, f"could not be contained: {error}", "")
    if death is None:
        return None
    module: ModuleThatDied = ModuleThatDied.from_parent(parent, path=path)
    module.death = death
    return module
