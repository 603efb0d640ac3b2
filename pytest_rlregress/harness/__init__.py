"""One run of pytest, in the order it flows; imports pytest, and nothing below imports it.

``settings``          marker > command line > environment > ini
``session``           what one run knows: machine, profile, stack, catalogue; opened for the first test of ours
``collection``        which of the collected tests are contained; looks at test files as they are collected
``items``             what a contained test is; which of them run, in which order
``component_checks``  tests that each component works here at all
``protocol``          one contained test, from start to report; takes what its child sends
``checks``            each component that tests need, tried once
``inline``            contained tests in pytest's own process, for debugging
``interface``         what a test raised, where its act began, what it can't drive
``judging``           a report and the end of its process become an outcome, that a verdict, and that a report again
``results``           the judged tests of a run; ``record_writer`` keeps them, ``run_context`` says what they ran on
``terminal``          the answer on the terminal; ``github_annotations``, on GitHub
``durations``         how long tests take: the time left, and the order on xdist's workers
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_rlregress.harness.session import Session

#: In ``config.stash`` once the session is opened.
OPENED: pytest.StashKey[Session] = pytest.StashKey()
