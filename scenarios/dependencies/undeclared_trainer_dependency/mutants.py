from mutants import broken, replaces
from pytest_rlregress.remedies.undeclared import undeclared_dependencies


@broken(only="default_trainer_is_said")
def only_what_is_written(config):
    return [advice for advice in undeclared_dependencies(config) if advice.key.partition(".")[0] in config]


@broken(only="every_run_needs")
def only_settings(config):
    return [advice for advice in undeclared_dependencies(config) if advice.key != "trainer"]


replaces("absent", "verl.utils.tracking.Tracking.__init__", only="-swanlab]")(lambda *arguments: None)


@replaces("changed", "verl.utils.tracking.Tracking.__init__", only="-swanlab]")
def swanlab_wants_a_login(*arguments):
    raise PermissionError("no API key")
