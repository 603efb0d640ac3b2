"""Takes off a line what launchers, loggers and terminals put before and around it: who wrote it, its level, a box."""

from __future__ import annotations

import re
from dataclasses import dataclass

# A bar that ended in no newline; what was printed next stands right behind it. Some count without a total.
_BAR = re.compile(r"^(?:[^|]{0,200}\d+%(?: Completed )?\|[^|]*\|?[^\[]{0,80}|(?:[^:\[]{1,80}: )?\d+ ?it )\[[^\]]*\]")
_DATE = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_LEVELS = "TRACE|DEBUG|INFO|SUCCESS|WARNING|WARN|ERROR|CRITICAL|FATAL"
_LOWER = _LEVELS.lower()
_PREFIX = re.compile(
    rf"""
    (?P<process>
        \((?:[^()]*\bpid=\d+[^()]*|raylet[^()]*|autoscaler[^()]*|gcs_server[^()]*)\)[ ]?(?:\w+\.cc:\d+:[ ])? # Ray, vLLM
      | \[(?:raylet|gcs_server|(?:rank|default)\d+|\d+,\d+)\](?:<std(?:out|err)>)?:?[ ]?     # Ray, torchrun, mpirun
      | \[(?!\S+\.\w{{1,3}}:)[\w.-]+(?:[ ]*:\d+)+\][ ]                                       # UCX, Open MPI
      | [A-Z][a-z]{{2}}[ ]{{1,2}}\d{{1,2}}[ ]\d\d:\d\d:\d\d[ ][\w.-]+[ ](?:[\w./-]+\[\d+\]|kernel):[ ]?  # journald
      | [\w.-]+[ ](?:kernel|systemd\[\d+\]):[ ]                                              # journald with ISO dates
      | [\w.-]+-\d+[ ]+\|[ ]                                                                 # docker compose
      | \#\d+[ ](?:\d+\.\d+[ ]|(?=ERROR|CANCELED))                                           # BuildKit
      | \d{{1,4}}:[ ]                                                                        # srun --label
      | (?:\d{{1,3}}\.){{3}}\d{{1,3}}:[ ]                                                    # pdsh
      | [^\t]{{1,100}}\t[^\t]{{1,100}}\t\ufeff?(?=\d{{4}}-)                                  # gh run view --log
      | wandb:[ ]
    )
  | (?:>>>[ ])+(?=[(\[])                                                                       # Python's prompt
  | (?:\^[CZ\\])+(?=\S)                                                                      # a terminal's echo of keys
  | (?:FAILED|ERROR)[ ]\S+::.{{1,200}}?[ ]-[ ]                                                  # pytest's summary
  | (?P<record>
        (?P<glog>\[?[DIWEFC]\d{{4}}[ ]\d\d:\d\d:\d\d[.\d]*[ ]+(?:\d+[ ]+)?[\w./-]+:\d+\][ ]?)
      | [ ]{{0,4}}\[{_DATE}[ ](?P<ray>[DIWEFC])[ ]\d+[ ]\d+\][ ](?:\([\w .]+\)[ ])?[\w./-]+:\d+:[ ]
      | \[(?P<bracketed>{_LEVELS})(?:\|[\w./-]+:\d+)?\](?:[ ]{_DATE})?(?:[ ]>>|:|[ ]-)?[ ]?
      | (?P<level>{_LEVELS})(?::[\w.]+:|[ ]*\|[ ]|[ ]-[ ]|:?[ ]+(?=\S)|:?$)
        (?:[\w.]+\.py:\d+[ ]--[ ])?
        (?:\d\d-\d\d[ ]\d\d:\d\d:\d\d[ ])?
        (?:\[[\w./-]+:\d+\](?:[ ]|$)|[\w./-]+:\d+\](?:[ ]|$)|[\w.<>]+:[\w.<>]+:\d+[ ]-[ ])?
      | (?:\#\#)?\[(?P<lower>{_LOWER})[ ]*\][ ]?                                             # structlog, GitHub
      | (?:srun|slurmstepd|sbatch|salloc):[ ](?P<slurm>error|fatal):[ ]
      | (?:time="[^"]*"[ ])?level=(?P<logfmt>{_LOWER})[ ]msg="?                              # docker, Kubernetes
    )
  | (?P<stamp>
        \[?(?:{_DATE}|\d\d/\d\d/\d\d(?:\d\d)?[ ]\d\d:\d\d:\d\d|\d\d:\d\d:\d\d(?:[.,]\d+)?(?=[ \]]))\]?
        (?:[ ]std(?:out|err)[ ][FP])?(?:[ ][|-](?=[ ]))?[ \t]?
        (?:(?:\[[\w.]+\]|[\w.-]+[ ]-[ ]|[\w.-]+[ ])?[ ]*(?=\[?(?:{_LEVELS})\b))?
    )
  | \[(?:[A-Za-z]+-\d+|\w+\.py:\d+)\][ ]                                                      # vLLM-Omni, cut lines
  | [ ]{{2,}}\|[ ]|E[ ]{{3,}}(?=[\w.]*(?:Error|Exception)\b)|E[ ]{{3}}                    # exception groups, pytest
  | \d+\.\d{{2,3}}[ ](?!\d)                                                                   # BuildKit's summary
  | \[[ ]{{0,6}}\d+\.\d{{6}}\][ ]|\[[A-Z][a-z]{{2}}[ ][A-Z][a-z]{{2}}[ ]{{1,2}}\d+[ ][\d:]{{8}}[ ]\d{{4}}\][ ]   # dmesg
    """,
    re.VERBOSE,
)
# A line of a report in Markdown, as ComfyUI writes it: "- **Exception Message:** No module named 'vllm'".
_MARKDOWN = re.compile(r"^[-*] \*\*(?P<name>[\w ]+):\*\*(?= )")
_MOST_PREFIXES = 8
_INITIALS = {"D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "FATAL", "C": "CRITICAL"}
# A side of a box: as it is, as a wrong encoding shows it, and in ASCII, where the other side must be there too.
_SIDE = "(?:[│┃║]|â”‚|â\x94\x82)"
_BOXED = re.compile(rf"^\s*{_SIDE}(?: (?P<inner>.*?))?\s*{_SIDE}?\s*$")
_BOXED_ASCII = re.compile(r"^\s*(?P<side>[|?]|\ufffd{1,3}) (?P<inner>.{60,}?)\s*(?P=side)\s*$")


@dataclass(frozen=True)
class Unprefixed:
    """What is left of a line, and what its prefixes say.

    Attributes:
        text: Without the prefixes; indentation stays.
        process: Who wrote it, as far as launchers say.
        level: ``ERROR`` and so on, where a logger said so.
        stamped: Whether it has a time.
        boxed: Whether it stood in a box.
    """

    text: str
    process: str = ""
    level: str = ""
    stamped: bool = False
    boxed: bool = False


def without_prefixes(text: str) -> Unprefixed:
    """Return what is left of a line without colours."""
    process, level, stamped = "", "", False
    for _ in range(_MOST_PREFIXES):
        if "%|" in text or "it [" in text or "% Completed |" in text:
            text = _BAR.sub("", text)
        found = _PREFIX.match(text)
        if found is None:
            break
        if found["process"]:
            process += found["process"].rstrip(": ")
        elif found["record"]:
            initial = found["ray"] or (found["glog"] or "").lstrip("[")[:1]
            named = found["bracketed"] or found["level"] or found["lower"] or found["slurm"] or found["logfmt"]
            level = named.upper() if named else _INITIALS[initial]
        elif found["stamp"]:
            stamped = True
        text = text[found.end() :]
    if text[2:4] == "**":
        text = _MARKDOWN.sub(r"\g<name>:", text)
    boxed = _BOXED.match(text) or (_BOXED_ASCII.match(text) if text.rstrip()[-1:] in ("|", "?", "\ufffd") else None)
    return Unprefixed((boxed["inner"] or "") if boxed else text, process, level, stamped, boxed is not None)
