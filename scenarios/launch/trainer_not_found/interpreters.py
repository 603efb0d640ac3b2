"""Interpreters without the trainer."""

import itertools
import site
import venv
from pathlib import Path


def make_interpreter(folder: Path, *, without: str | None) -> str:
    """Make an interpreter of its own in ``folder``; return its path.

    Args:
        folder: For its environment.
        without: The package that it lacks of those installed here; None for all of them.
    """
    venv.create(folder / "environment", with_pip=False, symlinks=True)
    if without:
        [packages] = (folder / "environment").glob("lib/python*/site-packages")
        rest = folder / "rest"
        rest.mkdir()
        for entry in itertools.chain(*(Path(one).iterdir() for one in site.getsitepackages())):
            if entry.name != without and not entry.name.startswith(f"{without}-"):
                (rest / entry.name).symlink_to(entry)
        (packages / "rest.pth").write_text(f"{rest}\n", encoding="utf-8")
    return str(folder / "environment" / "bin" / "python")


def make_other_package(folder: Path, name: str) -> Path:
    """Make a checkout with a package of that name that has no modules; return its path."""
    (folder / "checkout" / name).mkdir(parents=True)
    (folder / "checkout" / name / "__init__.py").touch()
    return folder / "checkout"
