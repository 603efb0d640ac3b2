import copy

from mutants import broken, replaces
from pytest_rlregress.remedies.launch import check_interpolations


@broken(only="one-empty")
def nothing_wrong(config, environ):
    return []


@broken(only="test_what_the_check_lets_through")
def a_default_will_do(config, environ):
    return check_interpolations(config, {name: value for name, value in environ.items() if value})


@replaces("absent", "verl.utils.config.validate_config")
def verl_takes_one_for_empty(original, config, **keywords):
    config = copy.deepcopy(config)
    for key in ("n_gpus_per_node", "nnodes"):
        config.trainer[key] = int(config.trainer[key] or 1)
    return original(config, **keywords)


@replaces("changed", "verl.utils.config.validate_config")
def verl_names_the_key(config, **keywords):
    raise ValueError(f"trainer.nnodes must be a number, not {config.trainer.nnodes!r}")
