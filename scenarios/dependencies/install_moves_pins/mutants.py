import subprocess

from mutants import broken, replaces
from pytest_rlregress.remedies.dependencies import install_without_moves
from pytest_rlregress.scenarios.dependencies import wheel_index


def uv_install(requirements, python, arguments):
    from uv import find_uv_bin

    command = [find_uv_bin(), "pip", "install", "--python", str(python), *arguments, *requirements]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return []


@broken(only="-extension-torch")
def installed_without_a_look(requirements, python, arguments):
    return uv_install(requirements, python, arguments)


@broken(only="-trainer-numpy")
def only_torch_is_watched(requirements, python, arguments):
    try:
        return install_without_moves(requirements, python, arguments)
    except RuntimeError as error:
        if "move torch" in str(error):
            raise
        return uv_install(requirements, python, arguments)


@replaces("absent", "pytest_rlregress.scenarios.dependencies.wheel_index.wheel", only="test_vllm_moves")
def vllm_without_exact_pins(original, folder, name, version, requires=(), **keywords):
    if name == "vllm":
        requires = [one.replace("==", ">=") for one in requires]
    return original(folder, name, version, requires, **keywords)


@replaces("changed", "pytest_rlregress.scenarios.dependencies.wheel_index.run", only="test_megatron_breaks")
def no_space_left(original, *command, **keywords):
    if "venv" in command or "torch==2.13.0" in command:
        return original(*command, **keywords)
    raise wheel_index.Refused("error: No space left on device (os error 28)")
