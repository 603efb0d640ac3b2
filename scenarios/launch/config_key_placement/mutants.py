from mutants import broken, replaces
from pytest_rlregress.remedies.launch import check_key_placement


@broken(only="test_every_wrong_place_is_named")
def finds_the_first(config):
    return check_key_placement(config)[:1]


@broken(only="test_what_works")
def everything_in_an_environment_too(config):
    [environment] = config["orchestrator"]["env"]
    return check_key_placement(environment.get("args", {}))


replaces("absent", "hydra.compose", only="test_verl_has_no_such_key")(
    lambda original, name, overrides: original(name, overrides=[f"+{one}" for one in overrides])
)
replaces("changed", "hydra.compose", only="test_verl_has_no_such_key")(
    lambda original, name, overrides: original("no_trainer", overrides=overrides)
)
