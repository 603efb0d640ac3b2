"""Locks and source distributions, made in a line."""

from __future__ import annotations

import io
import tarfile

from pytest_rlregress.stack.locks import Lock

# A build backend without requirements: waits as long as a file named "wait" is beside the distributions.
_BACKEND = """
import pathlib, time, zipfile
def build_wheel(folder, *_):
    pathlib.Path({folder!r}, "building").touch()
    while pathlib.Path({folder!r}, "wait").exists():
        time.sleep(0.05)
    stem = "{name}-{version}"
    with zipfile.ZipFile(pathlib.Path(folder, stem + "-py3-none-any.whl"), "w") as archive:
        archive.writestr("{name}.py", "")
        archive.writestr(stem + ".dist-info/METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
        archive.writestr(stem + ".dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(stem + ".dist-info/RECORD", "")
    return stem + "-py3-none-any.whl"
"""
_PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "{name}"
version = "{version}"
"""


def lock(*lines):
    return Lock({line.split("==")[0]: line for line in lines})


def source(folder, name, version):
    """A source distribution that builds without anything else."""
    fill = {"name": name, "version": version, "folder": str(folder)}
    files = {"pyproject.toml": _PROJECT.format(**fill), "backend.py": _BACKEND.format(**fill)}
    with tarfile.open(folder / f"{name}-{version}.tar.gz", "w:gz") as archive:
        for inside, text in files.items():
            member = tarfile.TarInfo(f"{name}-{version}/{inside}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
