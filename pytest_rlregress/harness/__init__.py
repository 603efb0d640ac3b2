"""One run of pytest, in the order it flows; imports pytest, and nothing below imports it.

``settings``          marker > command line > environment > ini
``session``           what one run knows: machine, profile, stack, catalogue; opened for the first test of ours
``collection``        looks at test files as they are collected
``items``             what a contained test is: made once, when it is collected
``selection``         which of them run, in which order; ``scheduling``: on which of xdist's workers
``protocol``          one contained test, from start to report; ``inline``: in pytest's own process, for debugging
``checks``            each component that tests need, tried once
``acts``              inside the child: whether a test that came to its end did the failing act
``judging``           a report and the end of its process become an outcome, and that a verdict
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_rlregress.harness.session import Session

#: In ``config.stash`` once the session is opened.
OPENED: pytest.StashKey[Session] = pytest.StashKey()
