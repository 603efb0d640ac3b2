"""The documented remedies as plain functions: no pytest needed, so a trainer can call them.

Each function named as a ``subject`` in a scenario's ``failures.toml`` is what that failure's guards exercise; the ini
value ``rlregress_subjects`` puts your own function of the same signature in its place. One room per scenario folder;
importing them is light, what a remedy needs it imports when called.
"""

from pytest_rlregress.remedies.advice import *  # noqa: F403
from pytest_rlregress.remedies.batch import *  # noqa: F403
from pytest_rlregress.remedies.cluster import *  # noqa: F403
from pytest_rlregress.remedies.dependencies import *  # noqa: F403
from pytest_rlregress.remedies.launch import *  # noqa: F403
from pytest_rlregress.remedies.memory import *  # noqa: F403
from pytest_rlregress.remedies.models import *  # noqa: F403
from pytest_rlregress.remedies.rollout import *  # noqa: F403
