"""Patterns of the lines of a log: tracebacks, exceptions, crashes, native stacks; and what only mentions one."""

from __future__ import annotations

import builtins
import re
from collections.abc import Sequence

#: Lines that a sentence may be wrapped over.
WRAPPED_LINES = 10
_LONGEST = 16_000  # a signature's expression may be slow on more

TRACEBACK_HEADER = re.compile(r"^\s*(?:\S.*: )?Traceback \(most recent call last\)|^╭─+ Traceback ")
CHAINING_LINE = re.compile(r"^\s*(?:The above exception was the direct cause|During handling of the above exception)")
PYTHON_FRAME = re.compile(
    r"""^\s*(?:
        File[ ]"(?P<file>[^"]+)",[ ]line[ ]\d+(?P<comma>,?)[ ]in[ ](?P<name>\S.*?)
      | │[ ](?P<rich>/\S+):\d+[ ]in[ ](?P<called>\S+).*
    )\s*$""",
    re.VERBOSE,
)
NATIVE_FRAME = re.compile(
    r"""^\s*(?:
        (?:PC:\s+)?(?:\#\d+|@)\s+(?:0x[\da-f]+\s+)?(?:in\s+|\(unknown\)\s+|\d+\s+)?  # gdb's, glog's
        (?P<symbol>[A-Za-z_~][\w:~<>]*)(?:\s*\(.*?\))?(?:\s(?:from|at)\s(?P<library>\S+))?
      | (?P<called>[A-Za-z_]\w+)(?:\ \((?P<place>[^():]+)(?::\d+)?\))?           # py-spy's, or a bare symbol
    )\s*$""",
    re.VERBOSE,
)
_CLASS = r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*"
_RAISED = rf"{_CLASS}(?:Error|Exception|KeyboardInterrupt|SystemExit|ExceptionGroup|IncompleteRead|Timeout)"
# At the end of a traceback anything is an exception; on a line of its own only what is named as one.
LAST_LINE = re.compile(rf"^\s*(?P<name>{_CLASS})(?:\((?P<inner>{_CLASS})\))?(?::(?:\s(?P<message>.*)|$)|$)")
EXCEPTION_LINE = re.compile(rf"^ ?(?P<name>{_RAISED})(?:\((?P<inner>{_CLASS})\))?:(?:\s(?P<message>.*)|$)")
EXCEPTION_AFTER_TEXT = re.compile(
    rf"^(?P<lead>.{{1,200}}?[:(] ?)(?P<name>{_RAISED})(?P<inner>)(?:: |\(['\"])(?P<message>.*)$"
)
CUDA_ERROR = re.compile(
    r"^ ?(?P<message>(?:CUDA|NCCL|cuDNN|cuBLAS) (?:runtime )?(?:error|failure)\b.*|CUBLAS_STATUS_(?!SUCCESS)\w+.*)"
)

_SIGNALS = {
    "Floating point exception": "SIGFPE",
    "Segmentation fault": "SIGSEGV",
    "Segfault encountered": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
    "Killed": "SIGKILL",
}
_WORDS = "|".join(map(re.escape, _SIGNALS))
CRASH_LINE = re.compile(
    rf"""^[ ]?(?:
        Fatal\ Python\ error:\ (?P<fatal>{_WORDS}|.+)
      | \*{{3}}\ (?P<caught>SIG[A-Z]+)\b.*
      | !*\ ?(?P<segfault>Segfault\ encountered)\b.*
      | (?:\S+:\ line\ \d+:\s+\d+\ )?(?P<shell>{_WORDS})(?:\s*\(core\ dumped\).*|$)
      | (?P<abort>(?:free|malloc|realloc|calloc|munmap_chunk|malloc_consolidate)\(\):\ .*
          |double\ free\ or\ corruption\b.*
          |corrupted\ (?:size|double-linked)\b.*|\*{{3}}\ stack\ smashing\ detected.*|terminate\ called\ .*)
    )""",
    re.VERBOSE,
)

_PLACE = re.compile(r"^\S*[\w-]\.\w+[:-]\d+[:-]|^\S*/\S*:")  # grep's
_CODE = re.compile(r"^\s*(?:[#>*`\"'+]|//|- |raise\b|assert\b|return\b|if\b|print\b|echo\b|grep\b|log\w*\.)|[={]")
_SAYS_FAILED = re.compile(r"error|fail|exception|died|crash|abort|fatal|raised|caught", re.IGNORECASE)
_QUOTED = re.compile(r"(?<!\()['\"`]$")
_PROSE = re.compile(r"\b(?:if|when|that|may|might|see|avoid|means?|like|note|hint|known|docs?)\b|[\"`]", re.IGNORECASE)
_COLON = re.compile(r"(?:[:(] ?|\(['\"])$")
# More is a block of code in a text.
_INDENT = 3
#: Levels at which nothing has failed.
QUIET_LEVELS = ("TRACE", "DEBUG", "INFO", "SUCCESS")
_ERROR_LEVELS = ("ERROR", "CRITICAL", "FATAL")


def is_report(lead: str, level: str) -> bool:
    """Return whether what follows ``lead`` on its line happened, and is not quoted, explained or searched for."""
    if len(lead) - len(lead.lstrip()) > _INDENT:
        return False
    if not lead.strip():
        return True
    if level in QUIET_LEVELS or _PLACE.match(lead) or _CODE.search(lead) or _QUOTED.search(lead):
        return False
    if level in _ERROR_LEVELS or re.fullmatch(r"[^\s:,]+ ", lead):  # the latter is what it is about: a model, a file
        return True
    return bool(_SAYS_FAILED.search(lead) and _COLON.search(lead) and not _PROSE.search(lead))


def joined_lines(texts: Sequence[str]) -> tuple[str, ...]:
    """Join lines of which the last may be something else: the first, the first two and so on, then all.

    They are joined by a blank; last as they are, and by nothing, since some terminals wrap within words.
    """
    numbers = [*range(1, min(len(texts), WRAPPED_LINES)), len(texts)]
    starts = (" ".join(filter(None, texts[:number])) for number in numbers)
    return tuple(dict.fromkeys(text[:_LONGEST] for text in (*starts, "\n".join(texts), "".join(texts))))


def starts_traceback(text: str) -> bool:
    """Return whether a traceback begins with a line."""
    return "Traceback" in text and TRACEBACK_HEADER.match(text) is not None


def ends_message(text: str) -> bool:
    """Return whether a line ends the message of an exception before it."""
    return bool(
        PYTHON_FRAME.match(text)
        or starts_traceback(text)
        or CHAINING_LINE.match(text)
        or EXCEPTION_LINE.match(text)
        or CUDA_ERROR.match(text)
    )


def signal_name(found: re.Match[str]) -> str | None:
    """Return the name of the signal in a crash's line, if there is one."""
    if found["abort"]:
        return "SIGABRT"
    words = found["fatal"] or found["segfault"] or found["shell"]
    return found["caught"] or _SIGNALS.get(words)


def builtin_bases(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the bases of those classes that are Python's own."""
    classes = [kind for name in names if isinstance(kind := getattr(builtins, name, None), type)]
    return tuple(base.__name__ for kind in classes for base in kind.__mro__[1:-1])
