"""Reads how a process died, in the words of crash handlers, shells, kernels, launchers and schedulers."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

# As glibc's strsignal and faulthandler write them, the kernel, and who killed something for its memory.
_WORDS = {
    "floating point exception": "SIGFPE",
    "floating-point exception": "SIGFPE",
    "divide error": "SIGFPE",
    "integer divide by zero": "SIGFPE",
    "segmentation fault": "SIGSEGV",
    "segfault": "SIGSEGV",
    "general protection": "SIGSEGV",
    "access violation": "SIGSEGV",
    "aborted": "SIGABRT",
    "abort trap": "SIGABRT",
    "abort": "SIGABRT",
    "bus error": "SIGBUS",
    "illegal instruction": "SIGILL",
    "invalid opcode": "SIGILL",
    "int3": "SIGTRAP",
    "killed": "SIGKILL",
    "out of memory": "SIGKILL",
    "oom": "SIGKILL",
    "terminated": "SIGTERM",
}
_WORD = "|".join(sorted(map(re.escape, _WORDS), key=len, reverse=True))
_SHELL = "segmentation fault|floating point exception|aborted|abort trap|abort|bus error|illegal instruction|killed"
_NAME = r"SIG(?:FPE|SEGV|ABRT|BUS|ILL|TRAP|KILL|TERM|INT|HUP|QUIT|SYS|XCPU)"
#: A process is asked to end by these: nothing has failed in it.
STOPPING = ("SIGTERM", "SIGINT", "SIGHUP")


@dataclass(frozen=True)
class ProcessEnd:
    """How a process died, as one line tells it.

    Attributes:
        signal: Name of the signal, or None where the line has none.
        lead: What stands before it on the line.
        own: Whether the process' own handler says so, or the kernel that killed it for its memory, and not who waited
            for it.
        library: Where it was, if the kernel says so.
    """

    signal: str | None
    lead: str = ""
    own: bool = False
    library: str = ""


def _patterns(flags: int, *patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern, flags) for pattern in patterns)


# What a process says of itself, at the beginning of a line.
_OWN = _patterns(
    0,
    # Python's faulthandler: "Fatal Python error: Segmentation fault", "Windows fatal exception: access violation"
    r" ?(?:Fatal Python error|Windows fatal exception): (?P<words>.+)",
    # glog, Abseil: "*** SIGFPE received at time=1795277675 on cpu 0 ***"
    rf" ?\*\*\* (?P<name>{_NAME})\b",
    # torch: "!!!!!!! Segfault encountered !!!!!!!"
    r" ?!* ?(?P<words>Segfault) encountered\b",
    # UCX: "Caught signal 8 (Floating point exception: integer divide by zero)"; Open MPI: "Signal: Bus error (7)"
    r" ?Caught signal (?P<number>\d{1,3}) \(",
    r" ?Signal: [\w -]+ \((?P<number>\d{1,3})\)$",
    r" ?(?:==== backtrace \(tid: |\*\*\* Process received signal \*\*\*)",
    # gdb: "Thread 1 "python" received signal SIGFPE, Arithmetic exception."
    rf" ?(?:Program|Thread \d.*) (?:received|terminated with) signal (?P<name>{_NAME})\b",
    # glibc, libstdc++, libc++, assert()
    r" ?(?P<abort>(?:free|malloc|realloc|calloc|munmap_chunk|malloc_consolidate)\(\): |double free or corruption\b"
    r"|corrupted (?:size|double-linked)\b|\*\*\* stack smashing detected|terminate called |libc\+\+abi: terminating"
    r"|\S+: \S+:\d+: .*: Assertion [`'].*' failed\.|LLVM ERROR: )",
)
# What the kernel, a shell or a launcher says of another process, anywhere in a line.
_TOLD = _patterns(
    re.IGNORECASE,
    # kernel: "python[12]: segfault at 0 ip … error 4 in libcuda.so.1[7f+5]", "traps: python[12] trap divide error ip:…"
    rf"^(?P<lead>(?:traps: )?\S+\[\d+\]:? (?:trap )?)(?P<words>{_WORD})\b.* ip[: ].*?(?: in (?P<library>[^\s\[]+)|$)",
    # "Out of memory: Killed process 12 (python) …", "oom-kill:constraint=…,task=python,pid=12", "oom_reaper: …"
    r"^(?P<kernel>)(?P<lead>(?:memory cgroup )?)(?P<words>out of memory): kill(?:ed)? process \d+",
    r"^(?P<kernel>)(?P<lead>)(?P<words>oom)(?:-kill:constraint=|_reaper: reaped process)",
    # Slurm: "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0", "task 0: Out Of Memory"
    r"^(?P<lead>.*?)\bdetected \d+ (?P<words>oom)[-_ ]kill event",
    rf"^(?P<lead>.*?)\btasks? \d[\d,-]*: (?P<words>{_WORD})\b(?: \(core dumped\))?$",
    # systemd: "vllm.service: Main process exited, code=dumped, status=11/SEGV", "… has been killed by the OOM killer."
    r"^(?P<lead>.*?)\bcode=(?:killed|dumped), status=(?P<number>\d{1,3})/",
    r"^(?P<lead>.*?)\bkilled by the (?P<words>oom) killer",
    # Kubernetes, docker
    r"^(?P<lead>.*?)\b(?P<words>oom)killed\b(?!\W+false)",
    # shells: "Segmentation fault (core dumped)", "run.sh: line 3: 42 Killed   python", "[1]  42 bus error  python"
    rf"^(?P<lead> ?)(?P<words>(?=(?-i:[A-Z]))(?:{_SHELL}))(?:: \d+)?(?:\s*\(core dumped\).*|\s*$)",
    rf"^(?P<lead>(?:\S+: line \d+:\s+\d+ |\[\d+\][+-]?\s+(?:\d+ )?|zsh: ))(?P<words>{_SHELL})\b",
    # torchrun: "Signal 11 (SIGSEGV) received by PID 42"; "died with <Signals.SIGABRT: 6>"; "interrupted by signal 11"
    rf"^(?P<lead>.*?)\bsignal \d+ \((?P<name>{_NAME})\)",
    r"^(?P<lead>.*?)\(signal (?P<number>\d{1,3})\)",
    rf"^(?P<lead>.*?)<signals\.(?P<name>{_NAME})\b",
    rf"^(?P<lead>.*?)\b(?:by|on|with|of|got|received|to) signal:? "
    rf"(?:(?P<name>{_NAME})|(?P<number>\d{{1,3}})|(?P<words>{_WORD}))\b",
    rf"^(?P<lead>.*?)\b(?:died of|killed by|left no word:|terminated by|exited with|crashed with) (?P<name>{_NAME})\b",
    # "exit code 137", "exitcode  : -11 (pid: 42)", "exits with return code = -9", "returned non-zero exit status 1."
    r"^(?P<lead>.*?)(?<![\w.])exit(?:ed|s|ing)?(?: with)?(?: return)?(?: non-zero)?(?: exit)?[ _-]?(?:code|status|with)"
    r"\s*[:=]?\s*(?P<status>-?\d{1,10})\b(?!\.\d)",
    r"^(?P<lead>.*?)\bcode=exited, status=(?P<status>\d{1,10})/",
    # Ray, vLLM, multiprocessing: no signal is known
    r"^(?P<lead>.*?)\b(?:(?:died|exits|exited) unexpectedly|worker exit type: SYSTEM_ERROR|unexpectedly exits? with)",
)
# What Ray says of every worker that is gone: "There are some potential root causes. (1) The process is killed by
# SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called. (3) The worker is crashed …"
_POSSIBLE_CAUSES = re.compile(
    r"There are some potential root causes\..*|\(1\) The process is killed by SIGKILL by OOM killer.*"
    r"|\(3\) The worker is crashed unexpectedly due to SIGSEGV.*"
)
_WORTH_IT = re.compile(
    r"signal|SIG[A-Z]|exit|status=|kill|backtrace|dumped|fault|divide|opcode|fatal|floating|bus error|illegal|free\b|"
    r"alloc\(\)|corrupt|smash|terminat|abort|assertion|oom|out of memory|unexpectedly|LLVM|unmap_chunk",
    re.IGNORECASE,
)


def process_end(text: str) -> ProcessEnd | None:
    """Return how a process died, if a line of a log without its prefixes says so; not whether it is only quoted."""
    text = _POSSIBLE_CAUSES.sub("", text)
    if not _WORTH_IT.search(text):
        return None
    for pattern in _OWN:
        if found := pattern.match(text):
            return ProcessEnd(_find_signal(found.groupdict()), own=True)
    for pattern in _TOLD:
        if found := pattern.match(text):
            groups = found.groupdict()
            if groups.get("status") and not int(groups["status"]):
                return None
            return ProcessEnd(_find_signal(groups), groups["lead"], "kernel" in groups, groups.get("library") or "")
    return None


def _find_signal(groups: dict[str, str | None]) -> str | None:
    name, words = groups.get("name"), (groups.get("words") or "").lower()
    if groups.get("abort"):
        return "SIGABRT"
    if name:
        return name.upper()
    if number := groups.get("number"):
        return _signal_name(int(number))
    if status := groups.get("status"):
        code = int(status)  # as Python has it (-9), or as shells do (137)
        return _signal_name(-code) if code < 0 else _signal_name(code - 128)
    return next((_WORDS[word] for word in _WORDS if words.startswith(word)), None)


def _signal_name(number: int) -> str | None:
    return signal.Signals(number).name if number in set(signal.Signals) else None
