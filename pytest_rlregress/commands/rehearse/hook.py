"""Is imported by each Python process of a rehearsed command, as its ``sitecustomize``; uses the standard library alone.

It looks at what is imported: after a module of ``WATCHED``, a function of ``ways_in`` changes parts of it. This
package is found from where ``rlregress`` has it, also by an interpreter that hasn't installed it; of the packages
beside it nothing is found.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import traceback

PACKAGE = "pytest_rlregress"
#: The modules whose import is waited for, and the function of ``ways_in`` that gets each.
REHEARSED = {
    "accelerate.commands.launch": "enter_accelerate",
    "torch.distributed.run": "enter_torchrun",
    "transformers.trainer": "enter_any_trainer",
    "verl": "enter_verl",
    "transformers.modeling_utils": "enter_models",
    "transformers.models.auto.auto_factory": "enter_auto_models",
    "transformers.models.auto.tokenization_auto": "enter_tokenizers",
    "trl.trainer.grpo_config": "enter_config",
    "trl.trainer.grpo_trainer": "enter_trainer",
}
#: The same of a real run, in which nothing is changed; of ``as_is_ways_in``.
AS_IS = {
    "transformers.trainer": "enter_any_trainer",
    "trl.trainer.grpo_trainer": "enter_trainer",
    "verl": "enter_verl",
}
IS_REAL = "RLREGRESS_REHEARSAL_AS_IS" in os.environ
WATCHED = AS_IS if IS_REAL else REHEARSED
#: Of these the function is called before the module is executed.
BEFORE = {"verl"}


class FindPackage(importlib.abc.MetaPathFinder):
    """Finds this package where it is, for an interpreter that doesn't have it."""

    def find_spec(self, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        """Return the package's spec; None for every other module."""
        if fullname != PACKAGE:
            return None
        folder = os.environ["RLREGRESS_PACKAGE"]
        file = os.path.join(folder, "__init__.py")
        return importlib.util.spec_from_file_location(fullname, file, submodule_search_locations=[folder])


class AfterImport(importlib.abc.MetaPathFinder):
    """Finds the watched modules as Python does, and has parts of them changed once they are imported."""

    def find_spec(self, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        """Return a watched module's spec, with a loader that changes it; None for every other module."""
        if fullname not in WATCHED:
            return None
        others = (one.find_spec(fullname, path, target) for one in sys.meta_path if one is not self)
        spec = next(filter(None, others), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_enter(module):  # type: ignore[no-untyped-def]
            if fullname not in BEFORE:
                execute(module)
            enter(fullname, module)  # type: ignore[no-untyped-call]
            if fullname in BEFORE:
                execute(module)

        spec.loader.exec_module = execute_and_enter  # type: ignore[method-assign]
        return spec


def enter(name, module):  # type: ignore[no-untyped-def]
    """Call the function that gets this module; in a real run an error of ours is written down, and nothing else."""
    try:
        ways_in = importlib.import_module(f"{PACKAGE}.commands.rehearse.{'as_is_' if IS_REAL else ''}ways_in")
        getattr(ways_in, WATCHED[name])(module)
    except Exception:
        if not IS_REAL:
            raise
        event = {"kind": "observer", "where": f"import of {name}", "trace": traceback.format_exc()}
        try:
            with open(os.path.join(os.environ["RLREGRESS_REHEARSAL"], "events.jsonl"), "a", encoding="utf-8") as file:
                file.write(json.dumps(event) + "\n")
        except OSError:
            pass


def run_the_other() -> None:
    """Run the ``sitecustomize`` that this one stands before, if there is one."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [one for one in sys.path if os.path.abspath(one) != folder]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec and spec.loader:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if "RLREGRESS_REHEARSAL" in os.environ:
    sys.meta_path.insert(0, AfterImport())
    sys.meta_path.append(FindPackage())
    run_the_other()
