"""The documented remedies as plain functions: no pytest needed, so a trainer can call them.

Each function named as a ``subject`` in a scenario's ``failure.toml`` is what that failure's guards exercise; the ini
value ``rlregress_subjects`` puts your own function of the same signature in its place. One module per scenario folder;
importing them is light, what a remedy needs it imports when called.

``advice``        what a check finds wrong in a configuration, and what to write instead
``batch``         batches: columns of objects, rows, data sets, jagged tensors
``cluster``       Ray clusters
``dependencies``  what an install changes and a setting needs
``engine_imports`` names that a trainer takes from an engine
``launch``        what is wrong before the first step
``launch_environment`` the interpreter and the cluster that a run finds
``losses``        rewards, advantages and losses
``masks``         which tokens are trained on
``memory``        trainer and engine on one GPU
``models``        models that do not load
``resume``        checkpoints that a run goes on from
``rewards``       what an answer is worth
``rollout``       the engine that generates
``sampling``      what an engine samples from, and the log-probabilities it gives
``tokens``        text to ids and back
``tool_calls``    what an engine's server finds in a completion
``torch_build``   what the installed torch was built for: cards and toolkits
``trainer_model`` the model as the trainer runs it: packing, positions, precision
``undeclared``    packages that a trainer imports and does not declare
``weight_sync``   new weights and adapters on their way to the engine
"""

from pytest_rlregress.remedies.advice import *  # noqa: F403
from pytest_rlregress.remedies.batch import *  # noqa: F403
from pytest_rlregress.remedies.cluster import *  # noqa: F403
from pytest_rlregress.remedies.dependencies import *  # noqa: F403
from pytest_rlregress.remedies.engine_imports import *  # noqa: F403
from pytest_rlregress.remedies.launch import *  # noqa: F403
from pytest_rlregress.remedies.launch_environment import *  # noqa: F403
from pytest_rlregress.remedies.losses import *  # noqa: F403
from pytest_rlregress.remedies.masks import *  # noqa: F403
from pytest_rlregress.remedies.memory import *  # noqa: F403
from pytest_rlregress.remedies.models import *  # noqa: F403
from pytest_rlregress.remedies.resume import *  # noqa: F403
from pytest_rlregress.remedies.rewards import *  # noqa: F403
from pytest_rlregress.remedies.rollout import *  # noqa: F403
from pytest_rlregress.remedies.sampling import *  # noqa: F403
from pytest_rlregress.remedies.tokens import *  # noqa: F403
from pytest_rlregress.remedies.tool_calls import *  # noqa: F403
from pytest_rlregress.remedies.torch_build import *  # noqa: F403
from pytest_rlregress.remedies.trainer_model import *  # noqa: F403
from pytest_rlregress.remedies.undeclared import *  # noqa: F403
from pytest_rlregress.remedies.weight_sync import *  # noqa: F403
