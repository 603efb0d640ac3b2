"""What lines of a log look like: tracebacks, exceptions, crashes, native stacks; and what is no more than a mention."""

from __future__ import annotations

import builtins
import re
from collections.abc import Sequence

#: Lines that a sentence may be wrapped over.
WRAPPED = 10
_LONGEST = 16_000  # a signature's expression may be slow on more

HEADER = re.compile(r"^\s*(?:\S.*: )?Traceback \(most recent call last\)|^╭─+ Traceback ")
LINK = re.compile(r"^\s*(?:The above exception was the direct cause|During handling of the above exception)")
FRAME = re.compile(
    r"""^\s*(?:
        File[ ]"(?P<file>[^"]+)",[ ]line[ ]\d+(?P<comma>,?)[ ]in[ ](?P<name>\S.*?)
      | │[ ](?P<rich>/\S+):\d+[ ]in[ ](?P<called>\S+).*
    )\s*$""",
    re.VERBOSE,
)
NATIVE = re.compile(
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
ENDS = re.compile(rf"^\s*(?P<name>{_CLASS})(?:\((?P<inner>{_CLASS})\))?(?::(?:\s(?P<message>.*)|$)|$)")
ALONE = re.compile(rf"^ ?(?P<name>{_RAISED})(?:\((?P<inner>{_CLASS})\))?:(?:\s(?P<message>.*)|$)")
LED = re.compile(rf"^(?P<lead>.{{1,200}}?[:(] ?)(?P<name>{_RAISED})(?P<inner>)(?:: |\(['\"])(?P<message>.*)$")
CUDA = re.compile(
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
CRASH = re.compile(
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
QUIET = ("TRACE", "DEBUG", "INFO", "SUCCESS")
_ERROR_LEVELS = ("ERROR", "CRITICAL", "FATAL")


def tells(lead: str, level: str) -> bool:
    """Whether words after such a lead say what happened, in place of being quoted, explained or searched for."""
    if len(lead) - len(lead.lstrip()) > _INDENT:
        return False
    if not lead.strip():
        return True
    if level in QUIET or _PLACE.match(lead) or _CODE.search(lead) or _QUOTED.search(lead):
        return False
    if level in _ERROR_LEVELS or re.fullmatch(r"[^\s:,]+ ", lead):  # the latter is what it is about: a model, a file
        return True
    return bool(_SAYS_FAILED.search(lead) and _COLON.search(lead) and not _PROSE.search(lead))


def unwrapped(texts: Sequence[str]) -> tuple[str, ...]:
    """What some lines may say, of which the last may be something else: the first, the first two and so on, then all.

    They are joined by a blank; last as they are, and by nothing, since some terminals wrap within words.
    """
    numbers = [*range(1, min(len(texts), WRAPPED)), len(texts)]
    starts = (" ".join(filter(None, texts[:number])) for number in numbers)
    return tuple(dict.fromkeys(text[:_LONGEST] for text in (*starts, "\n".join(texts), "".join(texts))))


def is_header(text: str) -> bool:
    """Whether a traceback begins with a line."""
    return "Traceback" in text and HEADER.match(text) is not None


def is_structure(text: str) -> bool:
    """Whether a line ends the message of an exception before it."""
    return bool(FRAME.match(text) or is_header(text) or LINK.match(text) or ALONE.match(text) or CUDA.match(text))


def signal_of(found: re.Match[str]) -> str | None:
    """Name of the signal that a crash's line tells of, if it does."""
    if found["abort"]:
        return "SIGABRT"
    words = found["fatal"] or found["segfault"] or found["shell"]
    return found["caught"] or _SIGNALS.get(words)


def bases(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the bases of those that are Python's own."""
    classes = [kind for name in names if isinstance(kind := getattr(builtins, name, None), type)]
    return tuple(base.__name__ for kind in classes for base in kind.__mro__[1:-1])
