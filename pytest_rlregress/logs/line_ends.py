"""Gives a line back the line ends that were lost when it was posted or logged: each frame and exception on its own."""

from __future__ import annotations

import re

_FRAME = r'File "[^"\n]{1,300}", line \d+,? in '
_RAISED = r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit|Group|Timeout)(?:\([\w.]+\))?"
_HEADER = r"Traceback \(most recent call last\)"
_CHAINING = (
    r"The above exception was the direct cause of the following exception:"
    r"|During handling of the above exception, another exception occurred:"
)
_FRAMES = re.compile(_FRAME)
_LOST = re.compile(
    rf"(?P<before>\s*(?={_HEADER}|{_CHAINING}|(?:Current thread|Thread) 0x[\da-f]+))"
    rf"|(?P<after>{_HEADER}:|\(most recent call first\):|{_CHAINING})"
    rf"|\s*(?P<frame>{_FRAME}[^\s\"]+)\s*"
)
# After the code of the last frame; "raise ValueError: " would be no Python.
_EXCEPTION = re.compile(rf"(?:(?<!\braise)(?<!\bexcept)\s+|(?<=[)\]}}'\"]))(?={_RAISED}(?::\s|$))")
_ESCAPED = re.compile(r"\\+(?:r\\+)?n")


def restored(text: str) -> list[str]:
    """Return the lines that a text was: itself alone, where it has lost none."""
    if '", line ' not in text and '\\", line ' not in text:
        return [text]
    if "\\n" in text:
        unescaped = re.sub(r"\\+(['\"])", r"\1", _ESCAPED.sub("\n", text))
        return [line for part in unescaped.split("\n") for line in restored(part)]
    frames = list(_FRAMES.finditer(text))
    if not frames or (len(frames) == 1 and re.fullmatch(rf"\s*{_FRAME}\S.*", text) and not _EXCEPTION.search(text)):
        return [text]
    lines = []
    for part in _LOST.sub(_with_ends, text).split("\n"):
        within = part.startswith("    ") and _EXCEPTION.search(part, 3)
        lines += [part[: within.start()], part[within.end() :]] if within else [part]
    return [line for line in lines if line.strip()]


def _with_ends(found: re.Match[str]) -> str:
    if found["frame"]:
        return f"\n  {found['frame']}\n    "
    return f"{found['after']}\n" if found["after"] else "\n"
