import os

from mutants import failing, replaces

FIND = "pytest_rlregress.remedies.module_not_found"


@replaces("regressed", FIND, only="test_preflight_names_what_hides_verl")
def the_package_is_enough(original, interpreter, module, environ):
    return original(interpreter, module.partition(".")[0], environ)


@replaces("regressed", FIND, only="-name]")
def the_path_of_this_process(original, interpreter, module, environ):
    return original(interpreter, module, {**environ, "PATH": os.environ["PATH"]})


@replaces("absent", ".test_trainer_not_found.start", only="test_another_package")
def python_begins_with_what_is_installed(original, *command):
    os.environ.pop("PYTHONPATH", None)
    os.chdir("/")
    return original(*command)


replaces("changed", "subprocess.run", only="test_another_interpreter")(
    failing(PermissionError(13, "Permission denied"))
)
