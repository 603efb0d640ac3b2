"""Run a command up to where its configuration is composed, write that as JSON, and end the process.

The command's own interpreter runs it, as ``python child.py ANSWER.json COMMAND …``: beside the standard library it
imports only what the command imports. As soon as Hydra, TRL's parser and TRL's trainers are imported, they are replaced
by functions that write the answer and end the process. Until then no process can be started, no connection opened and
no file written, and what would load a model or data gives a mock object. The kernel holds that, where it can; an audit
hook says which line it was.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.util
import os
import re
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

# They are beside this file, which is run where this package is not installed.
import stops  # type: ignore[import-not-found]
import trl_stops  # type: ignore[import-not-found]

_CONFINEMENT = Path(__file__).parents[2] / "util" / "confinement.py"

_STARTS = (
    *("os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"),
    *("socket.connect", "socket.sendto", "socket.sendmsg", "os.kill"),
)
# Of each event the arguments that are paths which it changes, each with that of the descriptor it is relative to.
_CHANGES: dict[str, tuple[tuple[int, int | None], ...]] = {
    "os.mkdir": ((0, 2),),
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.utime": ((0, 3),),
    "os.setxattr": ((0, None),),
    "os.removexattr": ((0, None),),
    "sqlite3.connect": ((0, None),),
}
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full")
_WHY = "preflight doesn't allow it before the configuration is composed"


def main(file: str, words: list[str]) -> None:
    """Run a command, and write the answer to a file."""
    sys.dont_write_bytecode = True
    confinement = _load(_CONFINEMENT)
    confinement.end_with_parent()  # a preflight that is killed leaves nothing running
    stops.begin(file)
    # The command may have modules of the same names.
    del sys.modules["stops"], sys.modules["trl_stops"], sys.path[0]
    sys.meta_path.insert(0, _AfterImport())
    sys.addaudithook(_refuse)
    stops.answer["unconfined"] = confinement.confine(stops.folder())
    try:
        _run(words)
        error = "the command ended"
    except SystemExit as exit:
        error = f"the command ended with exit code {exit.code or 0}"
    except BaseException as exception:
        others = ("<frozen", os.path.dirname(__file__), sys.prefix, sys.base_prefix)
        frames = [one for one in traceback.extract_tb(exception.__traceback__) if not one.filename.startswith(others)]
        where = f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
        error = f"{where}{type(exception).__name__}: {exception}"
        if isinstance(exception, PermissionError) and exception.errno is not None:  # the kernel's, not the hook's
            error += f": {_WHY}"
        stops.answer["not_importable"] = isinstance(exception, ImportError)
    stops.end(error=error)


def _load(file: Path) -> Any:
    """Load a module by its file, under no name that the command could ask for."""
    spec = importlib.util.spec_from_file_location(f"_rlregress_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse, as an audit hook, to start, to connect and to write: with the name of what was tried."""
    if event.startswith(_STARTS):
        raise PermissionError(f"{event}: {_WHY}")
    paths = _CHANGES.get(event, ())
    if event == "open":
        flags = arguments[2] if isinstance(arguments[2], int) else 0
        # O_CREAT and O_TRUNC change a file that is opened for reading, too.
        if {*str(arguments[1] or "")} & {*"wax+"} or flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            paths = ((0, None),)
    for at, relative_to in paths:
        path = arguments[at]
        if isinstance(path, int) or path in (":memory:", "", b""):
            continue
        folder = arguments[relative_to] if relative_to is not None else -1
        base = os.readlink(f"/proc/self/fd/{folder}") if folder >= 0 else os.getcwd()
        path = os.path.abspath(os.path.join(base, os.fsdecode(path)))
        if path not in _DEVICES and not f"{path}/".startswith(f"{stops.folder()}/"):
            raise PermissionError(f"{path} written: {_WHY}")


class _AfterImport(importlib.abc.MetaPathFinder):
    """Replace parts of modules as soon as they are imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the specification of a module that preflight patches; None for others."""
        replace = _find_replacement(name)
        others = (one.find_spec(name, path, target) for one in sys.meta_path if replace and one is not self)
        spec = next(filter(None, others), None)
        if replace and spec and spec.loader:
            execute = spec.loader.exec_module

            def execute_and_replace(module: Any) -> None:
                execute(module)
                replace(module)

            spec.loader.exec_module = execute_and_replace  # type: ignore[method-assign]
        return spec


def _find_replacement(name: str) -> Callable[[Any], None] | None:
    of_trl = re.fullmatch(r"trl\.(?:trainer|experimental\.\w+)\.\w+_(config|trainer)", name)
    replaced: dict[str, Callable[[Any], None]] = {
        "hydra": stops.replace_hydra,
        "peft": trl_stops.replace_peft,
        "transformers.hf_argparser": trl_stops.replace_parser,
        "trl.scripts._hf_argparser": trl_stops.replace_parser,
        "trl.scripts.utils": trl_stops.replace_defaults,
        **dict.fromkeys(trl_stops.LOADERS, trl_stops.replace_loaders),
    }
    if of_trl:
        replaced[name] = trl_stops.replace_configs if of_trl[1] == "config" else trl_stops.replace_trainers
    return replaced.get(name)


def _run(words: list[str]) -> None:
    """Run the Python of a command: a launcher's, TRL's or its own."""
    name, rest = Path(words[0]).name, words[1:]
    if name == "trl":
        stops.answer["program"] = f"trl {rest[0]}"
        return _start(f"trl.scripts.{rest[0]}", True, rest[1:], is_safe=True)
    if name == "accelerate":
        rest = ["-m", "accelerate.commands.launch", *rest[1:]]
    elif name == "torchrun":
        rest = ["-m", "torch.distributed.run", *rest]
    is_safe = False
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        is_safe = is_safe or rest[0] == "-P"
        rest = rest[2 if rest[0] in ("-W", "-X") else 1 :]
    is_module = rest[:1] == ["-m"]
    target, *arguments = rest[1:] if is_module else rest
    if is_module and target in ("accelerate.commands.launch", "torch.distributed.run"):
        launch = importlib.import_module(target)
        parser = launch.get_args_parser() if name == "torchrun" else launch.launch_command_parser()
        options = parser.parse_args(arguments)
        stops.note_launcher(options)
        return _start(options.training_script, options.module, options.training_script_args)
    stops.note_launcher(argparse.Namespace(num_processes=1))
    return _start(target, is_module, arguments, is_safe)


def _start(target: str, is_module: bool, arguments: list[str], is_safe: bool = False) -> None:
    """Run a module or a script; with ``is_safe``, as with Python's -P, nothing is imported from where it is run."""
    stops.answer.setdefault("program", target)
    sys.argv = [target, *arguments]
    if not is_safe:
        sys.path.insert(0, os.getcwd() if is_module else os.path.dirname(os.path.abspath(target)))
    if is_module:
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(target, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
