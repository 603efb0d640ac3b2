"""Write down the files of the modules that a Python process imports; the standard library alone.

A run for which that is wanted finds a copy of this file named ``sitecustomize.py`` on its PYTHONPATH, so that every
Python process of the run, forked or new, records its imports into the folder of the copy, from its start on and
however it ends. https://docs.python.org/3/library/site.html#module-sitecustomize
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

#: Where the paths of the files are written, a line each; several times where several processes import them.
RECORD = "imported"


def record_imports(record: Path) -> None:
    """Append the file of every module that this process and its forks import from now on to ``record``."""
    seen: set[str] = set()

    def note(event: str, args: tuple[Any, ...]) -> None:
        # Modules of Python code are executed; of extension modules the event "import" names the file.
        if event == "exec":
            code = args[0]
            file = code.co_filename if getattr(code, "co_name", "") == "<module>" else None
        else:
            file = args[1] if event == "import" else None
        if isinstance(file, str) and file not in seen:
            seen.add(file)
            # Opened each time: a test may close any descriptor. What is raised here would stop the import.
            with suppress(OSError, ValueError), open(record, "a", encoding="utf-8", errors="surrogateescape") as out:
                out.write(f"{file}\n")

    sys.addaudithook(note)


def _run_next_sitecustomize(folder: str) -> None:
    """Run the sitecustomize module that the one in ``folder`` hides, if there is one."""
    spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if entry != folder])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if __name__ == "sitecustomize":
    here = Path(__file__).parent
    _run_next_sitecustomize(str(here))
    record_imports(here / RECORD)
