"""One run of pytest, in the order it flows; imports pytest, and nothing below imports it.

``settings``          marker > command line > environment > ini
``session``           what one run knows: machine, profile, stack, catalogue; opened for the first test of ours
``collection``        which of the collected tests are contained; looks at test files as they are collected
``items``             what a contained test is; which of them run, in which order
``protocol``          one contained test, from start to report; takes what its child sends
``checks``            each component that tests need, tried once
``inline``            contained tests in pytest's own process, for debugging
``judging``           a report and the end of its process become an outcome, that a verdict, and that a report again
``durations``         how long tests take: the time left, and the order on xdist's workers
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_rlregress.harness.session import Session

#: In ``config.stash`` once the session is opened.
OPENED: pytest.StashKey[Session] = pytest.StashKey()
