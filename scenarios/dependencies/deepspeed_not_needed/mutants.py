import contextlib
import os
import sys
from types import SimpleNamespace

from mutants import broken, replaces


@broken(only="by_name")
@contextlib.contextmanager
def nothing_recorded(package):
    yield []


@broken(only="left-out-by")
@contextlib.contextmanager
def looks_recorded_too(package):
    attempts = []

    def look(name, path=None, target=None):
        if name == package:
            attempts.append(name)

    recorder = SimpleNamespace(find_spec=look)
    sys.meta_path.insert(0, recorder)
    yield attempts
    sys.meta_path.remove(recorder)


@replaces("absent", "accelerate.Accelerator", only="launcher")
def the_launcher_takes_fsdp_instead(original, **keywords):
    del os.environ["ACCELERATE_USE_DEEPSPEED"]
    return original(**keywords)


@replaces("changed", "accelerate.Accelerator", only="launcher")
def another_package_is_missing(**keywords):
    raise ImportError("Using the `Trainer` with `PyTorch` requires `accelerate>=1.1.0`")
