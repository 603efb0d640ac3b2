"""What a benchmark says a process took is of that process, whatever ran before it and whoever started it."""

from __future__ import annotations

import json
import subprocess
import sys

from installed import CHECKOUT

PEAK = "from benchmarks.measure import peak_mib; print(peak_mib())"


def done(script):
    """What a script that imports the benchmarks prints, read as JSON."""
    command = [sys.executable, "-c", script]
    return json.loads(subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout)


def test_measures_memory_of_the_process_alone():
    small, large, inherited = done(f"""
import json, os, subprocess, sys
from benchmarks.measure import run
large = run([sys.executable, "-c", "kept = b'x' * (100 << 20)\\n{PEAK}"])
kept = b"x" * (200 << 20)
small = run([sys.executable, "-c", "{PEAK}"])
_, _, used = os.wait4(subprocess.Popen([sys.executable, "-c", ""]).pid, 0)
print(json.dumps([float(small.out), float(large.out), used.ru_maxrss / 1024]))
""")
    assert small < 90
    assert 100 < large < 190
    assert inherited > 200  # what the kernel says of a child of a large process: no figure of a benchmark


def test_measures_time_of_the_process_alone():
    alone, busy = done("""
import json, os, subprocess, sys
from benchmarks.measure import run
WORK = "import time\\nwhile time.process_time() < 1: pass"
earlier = subprocess.Popen([sys.executable, "-c", WORK]).pid  # nobody waits for it but subprocess, at the next start
os.waitid(os.P_PID, earlier, os.WEXITED | os.WNOWAIT)
alone = run([sys.executable, "-c", ""])
busy = run([sys.executable, "-c", WORK])
print(json.dumps([alone.core_seconds, busy.core_seconds]))
""")
    assert alone < 0.9
    assert busy >= 1


def test_captures_output_and_exit_code_of_a_process():
    found = done("""
import json, sys
from dataclasses import asdict
from benchmarks.measure import run
print(json.dumps(asdict(run([sys.executable, "-c", "import sys; print('out'); sys.exit('err')"]))))
""")
    assert (found["code"], found["out"], found["err"]) == (1, "out\n", "err\n")
    assert found["seconds"] > 0


def test_diagnose_reads_no_ordinary_line_closely():
    """A text that a signature looks for, and that ordinary logs are full of, would make every line be read closely."""
    lines, stopped_at = done("""
import json
from benchmarks.diagnose import BAR, DOCUMENTED, ORDINARY
from pytest_rlregress.failures import catalogue
from pytest_rlregress.diagnosis.reader import Search
search = Search(catalogue.load([catalogue.SHIPPED]).values())
lines = [line.format(pid=1, n=2, x=3.5, y=0.5, s=34, r=6) for line in [*ORDINARY, BAR]]
lines += [line.lower() for line in lines]
found = [line for line in lines if search.find(line.encode(), 0)]
print(json.dumps([len(lines), found if search.find(DOCUMENTED.encode(), 0) else "not even at a failure"]))
""")
    assert lines == 16
    assert stopped_at == []
