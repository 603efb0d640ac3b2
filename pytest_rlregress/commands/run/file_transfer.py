"""Send files through a job's log, and read them again: each as some lines of text, packets, between the output."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: How a packet begins; what stands before it in its line is output without an end of line. The number is the format's.
MARK = "rlregress-run/1 "
#: Characters of a file in one line. Ray's log stream holds back what comes in lines of more than 20,000.
LENGTH = 8000


@dataclass(frozen=True)
class TransferredFile:
    """A file as it arrived: its content, or why it has none."""

    name: str
    content: bytes
    problem: str = ""


def packet(kind: str, **fields: Any) -> str:
    """Write a packet with these fields, as one line without its end; ``kind`` is ``begin``, ``file`` or ``end``."""
    return f"{MARK}{kind} {json.dumps(fields)}"


def encode_file(name: str, content: bytes) -> Iterator[str]:
    """Write a file as lines."""
    packed = base64.b64encode(zlib.compress(content, 9)).decode()
    parts = [packed[start : start + LENGTH] for start in range(0, len(packed), LENGTH)]
    digest = hashlib.sha256(content).hexdigest()
    yield packet("file", name=name, bytes=len(content), sha256=digest, lines=len(parts))
    for index, part in enumerate(parts):
        yield f"{MARK}part {index} {part}"


def split_line(line: str) -> tuple[str, str]:
    """Split a line into the output before a packet, and the packet without its mark: "" where there is none."""
    output, mark, found = line.partition(MARK)
    return output, found if mark else ""


def fields_of(packets: Sequence[str], kind: str) -> Mapping[str, Any]:
    """Return the fields of the last packet of a kind; none if it did not come, or not whole."""
    for one in reversed(packets):
        if one.startswith(f"{kind} "):
            try:
                found = json.loads(one.partition(" ")[2])
            except ValueError:
                return {}
            return found if isinstance(found, dict) else {}
    return {}


def decode_files(packets: Sequence[str]) -> list[TransferredFile]:
    """Read the files in these packets, in their order; an incomplete one with what is wrong with it."""
    files = []
    for index, one in enumerate(packets):
        if one.startswith("file "):
            following = packets[index + 1 :]
            end = next((number for number, later in enumerate(following) if later.startswith("file ")), None)
            files.append(_decode_file(fields_of([one], "file"), following[:end]))
    return files


def _decode_file(head: Mapping[str, Any], following: Sequence[str]) -> TransferredFile:
    name = str(head.get("name", ""))
    parts = [words[2] for one in following if len(words := one.split(" ")) == 3 and words[0] == "part"]
    if len(parts) != head.get("lines"):
        return TransferredFile(name, b"", f"torn: {len(parts)} of its {head.get('lines', '?')} lines arrived")
    try:
        content = zlib.decompress(base64.b64decode("".join(parts), validate=True))
    except (binascii.Error, zlib.error) as error:
        return TransferredFile(name, b"", f"damaged on its way: {error}")
    if len(content) != head["bytes"] or hashlib.sha256(content).hexdigest() != head["sha256"]:
        return TransferredFile(name, b"", "damaged on its way: its digest is another one")
    return TransferredFile(name, content)
