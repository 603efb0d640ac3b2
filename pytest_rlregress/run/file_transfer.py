"""Files through a job's log: what the node frames as lines of text, and what the other end makes of them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: How a frame begins; what stands before it in its line is of someone who ended no line. The number is the format's.
MARK = "rlregress-run/1 "
#: Characters of a file in one line. Ray's log stream holds back what comes in lines of more than 20,000.
LENGTH = 8000


@dataclass(frozen=True)
class TransferredFile:
    """A file as it arrived: its content, or why it has none."""

    name: str
    content: bytes
    problem: str = ""


def note(kind: str, **said: Any) -> str:
    """A frame that says something, as one line without its end; ``kind`` is ``begin`` or ``end``."""
    return f"{MARK}{kind} {json.dumps(said)}"


def pack(name: str, content: bytes) -> Iterator[str]:
    """A file as lines."""
    packed = base64.b64encode(zlib.compress(content, 9)).decode()
    parts = [packed[start : start + LENGTH] for start in range(0, len(packed), LENGTH)]
    digest = hashlib.sha256(content).hexdigest()
    yield note("file", name=name, bytes=len(content), sha256=digest, lines=len(parts))
    for index, part in enumerate(parts):
        yield f"{MARK}part {index} {part}"


def find(line: str) -> tuple[str, str]:
    """What stands before the frame in a line, and the frame without its mark: "" for a line of output."""
    before, mark, frame = line.partition(MARK)
    return before, frame if mark else ""


def said(frames: Sequence[str], kind: str) -> Mapping[str, Any]:
    """What the last frame of a kind says; nothing if it did not come, or not whole."""
    for frame in reversed(frames):
        if frame.startswith(f"{kind} "):
            try:
                found = json.loads(frame.partition(" ")[2])
            except ValueError:
                return {}
            return found if isinstance(found, dict) else {}
    return {}


def unpack(frames: Sequence[str]) -> list[TransferredFile]:
    """The files that came in these frames, in their order, those that came torn with what is wrong with them."""
    files = []
    for index, frame in enumerate(frames):
        if frame.startswith("file "):
            following = frames[index + 1 :]
            end = next((number for number, later in enumerate(following) if later.startswith("file ")), None)
            files.append(_file(said([frame], "file"), following[:end]))
    return files


def _file(head: Mapping[str, Any], following: Sequence[str]) -> TransferredFile:
    name = str(head.get("name", ""))
    parts = [words[2] for frame in following if len(words := frame.split(" ")) == 3 and words[0] == "part"]
    if len(parts) != head.get("lines"):
        return TransferredFile(name, b"", f"torn: {len(parts)} of its {head.get('lines', '?')} lines arrived")
    try:
        content = zlib.decompress(base64.b64decode("".join(parts), validate=True))
    except (binascii.Error, zlib.error) as error:
        return TransferredFile(name, b"", f"damaged on its way: {error}")
    if len(content) != head["bytes"] or hashlib.sha256(content).hexdigest() != head["sha256"]:
        return TransferredFile(name, b"", "damaged on its way: its digest is another one")
    return TransferredFile(name, content)
