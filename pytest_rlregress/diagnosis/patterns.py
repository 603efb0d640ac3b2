"""Patterns of the lines of a log: tracebacks, exceptions, crashes, native stacks; and how a line that reports that
something failed differs from one that mentions, explains or quotes it."""

from __future__ import annotations

import builtins
import re
from collections.abc import Sequence

from pytest_rlregress.failures.signatures import Signature
from pytest_rlregress.logs.lines import Line
from pytest_rlregress.logs.signals import ProcessEnd, process_end

#: An example may be slow on more of a message.
LONGEST = 16_000

_CLASS = r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*"
#: Python's, and IPython's, which begins with the class.
TRACEBACK_HEADER = re.compile(rf"^\s*(?:\S.*: |['\"]|(?P<name>{_CLASS}) {{2,}})?Traceback \(most recent call last\)")
#: Of rich, also where its box is drawn in ASCII or came through a wrong encoding.
RICH_HEADER = re.compile(r"^\s*(?:[╭┌─+\-?\ufffd]|â•­|â”€){3,} Traceback \(most recent call last\)")
CHAINING_LINE = re.compile(r"^\s*(?:The above exception was the direct cause|During handling of the above exception)")
_IPYTHON_CODE = re.compile(r"-+> \[?\d+")
_PYTHON_FRAMES = tuple(
    re.compile(rf"^\s*{pattern}\s*$")
    for pattern in (
        r'File "(?P<file>[^"]+)", line \d+,? in (?P<name>\S.*?)',
        # rich; the name may be on the next line
        r"(?P<file>(?:/|[A-Z]:\\|<)[^\s:]*):\d+ in(?: (?P<name>\S+))?",
        # IPython, and as notebooks' pages show it: "File ~/x.py:12, in load(path)", "[/x.py](https://…) in load(path)"
        r"(?:File )?\[?(?P<file>[^\s\]]+\.py|<ipython-input-[^>]+>)\]?(?:\([^)\s]*\))?(?::\d+,)? "
        r"in (?P<name>[\w.<>]+).*",
    )
)
_FAULTHANDLER_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+ in (?P<name>\S.*?)\s*$')
# torch's native frames: no file is known.
_UNKNOWN_FRAME = re.compile(r'^\s*File "(?P<file><[^"]+>)", line \d+, in (?P<name>\S.*?)\s*$')
_HEX = r"0x[\da-f]+"
_SYMBOL = r"[A-Za-z_~][\w:~<>]*"
_NATIVE_FRAMES = tuple(
    re.compile(rf"^\s*{pattern}\s*$")
    for pattern in (
        # systemd-coredump: "#0  0x00007f cublasLtMatmul (libcublasLt.so.12 + 0x5f0b5a)"
        rf"#\d+\s+{_HEX}\s+(?P<symbol>\S+) \((?P<library>\S+) \+ {_HEX}\)",
        # gdb: "#1  0x00007f in cuLaunch (x=1) from /lib/libcuda.so"; glog, Abseil: "@     0x7f  123  abort"
        rf"(?:PC:\s+)?(?:#\d+|@)\s+(?:{_HEX}\s+)?(?:in\s+|\(unknown\)\s+|\d+\s+)?(?P<symbol>{_SYMBOL})"
        r"(?:\s*\(.*?\))?(?:\s(?:from|at)\s(?P<library>\S+))?",
        # backtrace_symbols, UCX, Open MPI: "[ 2] /lib/libcublasLt.so.12(cublasLtMatmul+0x1f) [0x7f]"
        rf"(?:\[? ?\d+\]?\s+)?(?P<library>/[^\s(]+)\((?P<symbol>[\w:~]*)\+{_HEX}\)\s?\[{_HEX}\]",
        # UCX with symbols: " 1 0x0000000000042520 cublasLtMatmul()  /src/matmul.c:123"
        rf"\d+\s+{_HEX}\s+(?P<symbol>{_SYMBOL})\(\)\s+(?P<library>\S+)",
        # torch: "frame #1: c10::Error::Error() + 0x57 (0x7f in /lib/libc10.so)"
        rf"frame #\d+: (?P<symbol>.+?) \+ {_HEX} \({_HEX} in (?P<library>[^\s)]+)\)",
        # py-spy, or a bare symbol
        r"(?P<symbol>[A-Za-z_]\w+)(?: \((?P<library>[^():]+)(?::\d+)?\))?",
    )
)
_RAISED = rf"{_CLASS}(?:Error|Exception|KeyboardInterrupt|SystemExit|ExceptionGroup|IncompleteRead|Timeout)"
# At the end of a traceback anything is an exception; on a line of its own only what is named as one.
LAST_LINE = re.compile(rf"^\s*(?P<name>{_CLASS})(?:\((?P<inner>{_CLASS})\))?(?::(?:\s(?P<message>.*)|$)|$)")
_EXCEPTION_LINE = re.compile(rf"^ ?(?P<name>{_RAISED})(?:\((?P<inner>{_CLASS})\))?:(?:\s(?P<message>.*)|$)")
_EXCEPTION_AFTER_TEXT = re.compile(
    rf"^(?P<lead>.{{1,200}}?(?:[:(] ?|\braised ))(?P<name>{_RAISED})(?P<inner>)(?:: |\(['\"])(?P<message>.*)$"
)
_CUDA_ERROR = re.compile(
    r"^ ?(?P<message>(?:CUDA|NCCL|cuDNN|cuBLAS) (?:runtime )?(?:error|failure)\b.*|CUBLAS_STATUS_(?!SUCCESS)\w+.*)"
)

# An error without a class: "error: subprocess-exited-with-error", "matmul.cu:12:3: fatal error: …", what uv marks.
_ERROR_LINE = re.compile(
    r"^ {0,3}(?:(?:\S+: )?(?:[Ff]atal )?(?:[Ee]rror|ERROR)(?:\[\w+\]| [A-Z]+\d+| [a-z][^:]{0,60})?: \S|E: |[×✘] \S"
    r"|CMake Error\b|ninja: build stopped|make(?:\[\d+\])?: \*\*\* )"
)

_PLACE = re.compile(r"^(?!\[)\S*[\w-]\.\w+[:-]\d+[:-]|^\S*/\S*:")  # grep's
_CODE_BEGINS = re.compile(r"^\s*(?:[#>*`\"'+]|//|- |raise\b|assert\b|return\b|if\b|print\b|echo\b|grep\b|log\w*\.)")
_CODE = re.compile(rf"{_CODE_BEGINS.pattern}|[={{]")
_SAYS_FAILED = re.compile(r"error|fail|exception|died|crash|abort|fatal|raised|caught", re.IGNORECASE)
_QUOTED = re.compile(r"(?<!\()['\"`]$")
_ADVICE = re.compile(r"\b(?:if|when|(?<!noticed )that|may|might|see|avoid|means?|hint|known|docs?)\b", re.IGNORECASE)
_PROSE = re.compile(r"\b(?:if|when|that|may|might|see|avoid|means?|like|note|hint|known|docs?)\b|[\"`]", re.IGNORECASE)
_COLON = re.compile(r"(?:[:(] ?|\(['\"]|\braised )$")
# More is a block of code in a text.
_INDENT = 3
# Levels at which nothing has failed.
_QUIET_LEVELS = ("TRACE", "DEBUG", "INFO", "SUCCESS")
# A server's and a client's line of a request that failed, which both log as information.
_REFUSED_REQUEST = re.compile(r'HTTP/[\d.]+"? [45]\d\d ')
_ERROR_LEVELS = ("ERROR", "CRITICAL", "FATAL")


def is_report(lead: str, level: str) -> bool:
    """Return whether what follows ``lead`` on its line happened, and is not quoted, explained or searched for."""
    if measure_indent(lead) > _INDENT:
        return False
    if not lead.strip():
        return True
    if level in _QUIET_LEVELS or _PLACE.match(lead) or _CODE.search(lead) or _QUOTED.search(lead):
        return False
    if level in _ERROR_LEVELS or re.fullmatch(r"[^\s:,]+ ", lead):  # the latter is what it is about: a model, a file
        return True
    return bool(_SAYS_FAILED.search(lead) and _COLON.search(lead) and not _PROSE.search(lead))


def find_process_end(line: Line, in_traceback: bool) -> ProcessEnd | None:
    """Return how a process died, if a line tells it, and is not an exception, an advice or a quotation that does."""
    found = process_end(line.text)
    if found is None or found.own:
        return found
    lead = found.lead
    mentions = (
        line.level in _QUIET_LEVELS
        or _EXCEPTION_LINE.match(line.text)
        or (_PLACE.match(lead) and ": line " not in lead)  # a shell names its script
        or _CODE_BEGINS.match(lead)
        or _QUOTED.search(lead)
        or _ADVICE.search(lead)
    )
    return None if in_traceback or mentions else found


def is_error(text: str, level: str) -> bool:
    """Return whether a line says that something failed, without an exception's class."""
    return bool(text.strip() and (level in _ERROR_LEVELS or (level not in _QUIET_LEVELS and _ERROR_LINE.match(text))))


def reports(lines: Sequence[Line], signature: Signature) -> bool:
    """Return whether a line, and those it is wrapped over, reports a signature's message, and not only mentions it."""
    first, *rest = lines
    quoted, pattern = not signature.is_line, signature.message
    indent = first.text[: measure_indent(first.text)]
    if (
        pattern is None
        or (quoted and not signature.is_quotable)
        or (first.level in _QUIET_LEVELS and not _REFUSED_REQUEST.search(first.text))
        or not is_report(indent, first.level)
    ):
        return False
    prefix = first.printed.removesuffix(first.text) if first.printed.endswith(first.text) else ""
    text = "\n".join([first.text.rstrip(), *(line.text.strip() for line in rest)])[:LONGEST]
    found = pattern.search(text)
    if found and found.start() < len(first.text) and is_report(text[: found.start()], first.level):
        return not quoted or _quotes(text[: found.start()], first)
    found = pattern.search(prefix + text)
    return not quoted and found is not None and found.start() < len(prefix)


def _quotes(lead: str, line: Line) -> bool:
    """Return whether an exception's message without its class stands there as what happened."""
    printed = bool(line.process) and not lead.strip()  # by itself, by a process that a launcher names
    said = printed or line.level in _ERROR_LEVELS or re.search(r": ?$", lead) is not None
    return said and not re.search(r"(?:Error|Exception)\b['\"(: ]*$", lead)


def exception_head(line: Line) -> re.Match[str] | None:
    """Match the first line of an exception's message that stands without a traceback."""
    head = _EXCEPTION_LINE.match(line.text) or _CUDA_ERROR.match(line.text)
    if head is None and ("Error" in line.text or "Exception" in line.text):
        found = _EXCEPTION_AFTER_TEXT.match(line.text)
        return found if found and is_report(found["lead"], line.level) else None
    return head


def starts_traceback(text: str) -> bool:
    """Return whether a traceback begins with a line."""
    return "Traceback" in text and bool(TRACEBACK_HEADER.match(text) or RICH_HEADER.match(text))


def is_code_of(header: str, indent: int, line: Line) -> bool:
    """Return whether a line shows the code of a traceback's frame, or is drawn around it."""
    is_drawn = RICH_HEADER.match(header) and (line.boxed or line.text.lstrip()[:1] in "╰╭")
    return measure_indent(line.text) > indent or bool(is_drawn or _IPYTHON_CODE.match(line.text))


def measure_indent(text: str) -> int:
    """Return the number of blanks that a text begins with."""
    return len(text) - len(text.lstrip())


def ends_message(text: str) -> bool:
    """Return whether a line ends the message of an exception before it."""
    return bool(
        python_frame(text)
        or starts_traceback(text)
        or CHAINING_LINE.match(text)
        or _EXCEPTION_LINE.match(text)
        or _CUDA_ERROR.match(text)
    )


def python_frame(text: str) -> str | None:
    """Return ``file:function`` of a line of a Python traceback."""
    found = next(filter(None, (pattern.match(text) for pattern in _PYTHON_FRAMES)), None) if " in" in text else None
    return found and f"{found['file']}:{found['name'] or '?'}"


def crash_frame(text: str) -> str | None:
    """Return ``file:function`` of a line of the stack that a crash handler prints, or of a native one.

    It is ``library:symbol`` there, with ``?`` for what the line does not name.
    """
    if found := _FAULTHANDLER_FRAME.match(text) or _UNKNOWN_FRAME.match(text):
        return f"{found['file']}:{found['name']}"
    found = next(filter(None, (pattern.match(text) for pattern in _NATIVE_FRAMES)), None)
    return found and f"{found['library'] or '?'}:{found['symbol'] or '?'}"


#: Bases of the stack's own exceptions, as in Python's tables of its own; vLLM's server answers BadRequestError where
#: its engine raises VLLMValidationError, a ValueError until vLLM 0.30.
_BASES = {
    "VLLMValidationError": ("ValueError", "BadRequestError"),
    "torch.OutOfMemoryError": ("RuntimeError",),
    "torch.cuda.OutOfMemoryError": ("RuntimeError",),
    "AcceleratorError": ("RuntimeError",),
    "DistBackendError": ("DistError", "RuntimeError"),
    "DistNetworkError": ("DistError", "RuntimeError"),
    "DistStoreError": ("DistError", "RuntimeError"),
    "RepositoryNotFoundError": ("HfHubHTTPError", "OSError"),
    "GatedRepoError": ("RepositoryNotFoundError", "HfHubHTTPError", "OSError"),
    "JSONDecodeError": ("ValueError",),
}


# Say no more than that another process died, perhaps since it was told to: vLLM's API server, torchrun.
_CONSEQUENCES = {"EngineDeadError", "ChildFailedError"}


def is_consequence(names: tuple[str, ...]) -> bool:
    """Return whether one of these classes says no more than that another process died."""
    return not _CONSEQUENCES.isdisjoint(name.rpartition(".")[2] for name in names)


def known_bases(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the bases of those classes that are Python's own, or well-known ones of the stack."""
    classes = [kind for name in names if isinstance(kind := getattr(builtins, name, None), type)]
    own = [base.__name__ for kind in classes for base in kind.__mro__[1:-1]]
    found = (_BASES.get(name) or _BASES.get(name.rpartition(".")[2]) or () for name in names)
    return (*own, *(base for bases in found for base in bases))
