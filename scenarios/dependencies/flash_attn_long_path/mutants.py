from mutants import replaces
from pytest_rlregress.scenarios.dependencies import wheel_index
from pytest_rlregress.scenarios.dependencies.flash_attn_long_path.test_flash_attn_long_path import (
    DOCUMENTED,
    SETUP,
    long_folder,
)

INDEX = "pytest_rlregress.scenarios.dependencies.wheel_index"


@replaces("regressed", f"{INDEX}.pip", only="test_a_short_folder")
def pip_asks_another_folder(original, *arguments):
    """As where TMPDIR is set and pip was told of another one."""
    import os

    folder = long_folder(arguments[-2].parent)
    folder.mkdir(parents=True)
    for variable in ("TMPDIR", "TEMP", "TMP"):
        os.environ[variable] = str(folder)
    return original(*arguments)


@replaces("regressed", f"{INDEX}.wheel", only="test_a_wheel")
def no_wheel_for_this_machine(folder, name, version, files):
    return wheel_index.sdist(folder, name, version, {"setup.py": SETUP, DOCUMENTED: "", **files})


@replaces("absent", f"{INDEX}.sdist", only="beyond_the_limit")
def sdist_with_short_paths(original, folder, name, version, files):
    short = {path: files[path] for path in files if path != DOCUMENTED}
    return original(folder, name, version, short)


@replaces("changed", f"{INDEX}.pip", only="beyond_the_limit")
def no_space_left(*arguments):
    why = "OSError: [Errno 28] No space left on device"
    raise wheel_index.Refused(f"ERROR: Could not install packages due to an {why}")
