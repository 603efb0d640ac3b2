"""Wheels made again of what is installed: environments can be built from them with no index and no cache."""

from __future__ import annotations

import zipfile
from importlib import metadata
from pathlib import Path, PurePosixPath

# What the installer writes. Its list of files is left empty, which uv takes: it makes its own.
_BY_THE_INSTALLER = {"INSTALLER", "REQUESTED", "direct_url.json", "RECORD"}


def repack(name: str, folder: Path) -> str:
    """Write the wheel of an installed package, by its normalised name; the line that installs exactly it."""
    distribution = metadata.distribution(name)
    stem = f"{name.replace('-', '_')}-{distribution.version}"
    commands = {point.name for point in distribution.entry_points if point.group == "console_scripts"}
    with zipfile.ZipFile(folder / f"{stem}-{_tag(distribution)}.whl", "w") as archive:
        for file in distribution.files or ():
            inside = PurePosixPath(file)
            if inside.parts[0] == ".." and inside.parent.name == "bin":
                if inside.name in commands:
                    continue  # made by the installer, for the interpreter of its environment
                inside = PurePosixPath(f"{stem}.data/scripts", inside.name)
            elif inside.parts[0].endswith(".dist-info"):
                if inside.name in _BY_THE_INSTALLER:
                    continue
                inside = PurePosixPath(f"{stem}.dist-info", *inside.parts[1:])
            elif "__pycache__" in inside.parts or inside.parts[0] == "..":
                continue
            archive.write(file.locate(), inside)
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    return f"{name}=={distribution.version}"


def _tag(distribution: metadata.Distribution) -> str:
    """The part of a wheel's file name that says where it runs."""
    lines = (distribution.read_text("WHEEL") or "").splitlines()
    tags = [line.partition(":")[2].strip().split("-") for line in lines if line.startswith("Tag:")]
    return "-".join(".".join(dict.fromkeys(parts)) for parts in zip(*tags, strict=True))
