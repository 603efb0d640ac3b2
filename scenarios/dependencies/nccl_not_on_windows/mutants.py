from mutants import mutant, replaces
from pytest_rlregress.scenarios.dependencies import wheel_index
from pytest_rlregress.scenarios.dependencies.nccl_not_on_windows import test_nccl_not_on_windows

INDEX = "pytest_rlregress.scenarios.dependencies.wheel_index"


@mutant("regressed", only="-hand]")
def marked_for_the_wrong_system(monkeypatch):
    monkeypatch.setattr(test_nccl_not_on_windows, "FOR_LINUX", ' ; sys_platform == "win32"')


@replaces("regressed", f"{INDEX}.wheel", only="-uv]")
def torch_without_its_markers(original, folder, name, version, requires=(), **more):
    return original(folder, name, version, [one.partition(";")[0] for one in requires], **more)


@replaces("absent", f"{INDEX}.wheel", only="test_uv_for_windows")
def nccl_for_windows_too(original, folder, name, version, requires=(), tag="py3-none-any"):
    return original(folder, name, version, requires, "py3-none-any" if "nccl" in name else tag)


@replaces("changed", f"{INDEX}.uv", only="test_uv_for_windows")
def no_space_left(original, *arguments, **more):
    if "windows" in arguments:
        raise wheel_index.Refused("error: No space left on device (os error 28)")
    return original(*arguments, **more)
