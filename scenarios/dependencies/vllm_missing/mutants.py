from importlib.util import find_spec

from mutants import broken, failing, replaces
from pytest_rlregress.remedies.dependencies import missing_symbol


@broken(only="partial_vllm")
def by_name_alone(setting):
    return None if find_spec(setting) else missing_symbol(setting)


@broken(only="preflight")
def nothing_is_missing(setting):
    return None


@replaces("absent", "verl.workers.rollout.base.get_rollout_class", only="verl_rollout")
def verl_falls_back(original, *arguments):
    from verl.workers.rollout.base import BaseRollout

    return BaseRollout


replaces("changed", "verl.workers.rollout.base.get_rollout_class", only="verl_rollout")(
    failing(KeyError("('vllm', 'async')"))
)
