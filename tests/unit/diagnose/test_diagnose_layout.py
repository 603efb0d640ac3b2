"""`rlregress diagnose` on what stands around a traceback: boxes, builders, loggers, encodings, posting."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest
from test_diagnose import diagnose, ids, shipped

assert shipped  # a fixture

TRACEBACK = """\
Traceback (most recent call last):
  File "/opt/main.py", line 12, in main
    run(config)
  File "/opt/transformers/configuration_auto.py", line 1000, in __getitem__
    raise KeyError(key)
KeyError: 'ministral3'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/opt/main.py", line 14, in main
    raise ValueError("no such model") from error
ValueError: no such model
"""
LINES = TRACEBACK.splitlines()
SIDE_IN_CP1252 = "│".encode().decode("cp1252", errors="replace").replace("\ufffd", "\x82")
REFUSAL = "max_tokens=4000 cannot be greater than max_model_len=256. Please request fewer output tokens."


def each(form):
    return "\n".join(form.format(line=line) for line in LINES)


def record(**values):
    return json.dumps(values)


POSTED = {
    "BuildKit": each("#11 1.181 {line}"),  # docker build --progress=plain
    "BuildKit's summary": each("1.181 {line}"),
    "box": "\n".join(["╭" + "─" * 90 + "╮", each("│ {line:<88} │"), "╰" + "─" * 90 + "╯"]),
    "box, wrong encoding": each(f"{SIDE_IN_CP1252} {{line:<88}} {SIDE_IN_CP1252}"),
    "box in ASCII": each("| {line:<88} |"),
    "colours, escape replaced": each("\ufffd[36m(TaskRunner pid=1)\ufffd[0m {line}"),
    "colours, escape as a question mark": each("?[36m(TaskRunner pid=1)?[0m {line}"),
    "colours, escape written out": each(r"\x1b[36m(TaskRunner pid=1)\x1b[0m {line}"),
    "colours, escape in syslog": each("#033[36m(TaskRunner pid=1)#033[0m {line}"),
    "all on one line": " ".join(TRACEBACK.split()),
    "line ends deleted": TRACEBACK.replace("\n", ""),
    "line ends written out": f"ERROR task failed: {TRACEBACK!r}",
    "a bar without a total before": "Loading: 12it [00:03,  3.99it/s]" + TRACEBACK,
    "vLLM's bar before": "Loading shards:   0% Completed | 0/3 [00:00<?, ?it/s]" + TRACEBACK,
    "gh run view --log": each("train\tRun tests\t2025-12-01T05:34:47.1234567Z {line}"),
    "a pod's node": each("10.0.0.1: {line}"),
    "Ctrl-C before it": "^C" + TRACEBACK,
    "Python's prompt before": f">>> (Worker pid=1) {LINES[0]}\n"
    + "\n".join(f"(Worker pid=1) {line}" for line in LINES[1:]),
    "header cut, moved to the right": "\n".join(f"  {line}" for line in LINES[1:6]),
    "without indentation": "\n".join(line.strip() for line in LINES),
    "indented, first line not": textwrap.indent(TRACEBACK, " " * 15).strip(),
    # json loggers, structlog, loguru's serialize=True, docker's json-file, Kubernetes around one.
    "JSON": record(level="ERROR", message="step failed", exc_info=TRACEBACK),
    "JSON of structlog": record(event="step failed", level="error", exception=TRACEBACK),
    "JSON of loguru": record(
        text=f"2025-12-01 05:34:47.123 | ERROR    | verl.main:run:12 - failed\n{TRACEBACK}",
        record={"level": {"name": "ERROR", "no": 40}, "message": "failed"},
    ),
    "JSON of docker": "\n".join(record(log=f"{line}\n", stream="stderr") for line in LINES),
    "JSON in Kubernetes": f"2025-12-01T05:34:47.1Z stderr F {record(severity='ERROR', message=TRACEBACK)}",
    "pytest's summary": "FAILED tests/test_x.py::TestY::test_z[a b] - KeyError: 'ministral3'",
    "IPython": """\
---------------------------------------------------------------------------
KeyError                                  Traceback (most recent call last)
Cell In[4], line 8
      6 model_name = "x"
----> 8 model = AutoConfig.from_pretrained(

File ~/x/configuration_auto.py:607, in AutoConfig.from_pretrained(cls, *args)
    603     config = raise_error(KeyError: 'x')
--> 604 return model_class.from_pretrained(

KeyError: 'ministral3'""",
}


@pytest.mark.parametrize("form", POSTED)
def test_finds_the_failure_in_every_layout(shipped, form):
    diagnosis = diagnose(shipped, f"an ordinary line\n{POSTED[form]}\nanother\n")
    assert ids(diagnosis) == ["unrecognised-model-type"]
    assert diagnosis.unknown == []


@pytest.mark.parametrize("mark", ["> ", "> > ", ">> ", ">"])
def test_finds_the_failure_in_a_quoted_mail(shipped, mark):
    lines = ["an ordinary line", *LINES]
    assert ids(diagnose(shipped, "\n".join(f"{mark}{line}".rstrip() for line in lines))) == ["unrecognised-model-type"]


RICH = """
import sys
from rich.console import Console
from rich.panel import Panel
from rich.traceback import Traceback
console = Console(width=80, file=sys.stdout)

def load(key):
    return {}[key]

try:
    load("ministral3")
except KeyError:
    console.print(Traceback(show_locals=True))
    if sys.argv[1:]:
        import traceback
        console.print(Panel(traceback.format_exc(), title="Error"))
"""


@pytest.mark.process
@pytest.mark.parametrize("arguments", [[], ["panel"]])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii:replace"])
def test_finds_the_failure_in_tracebacks_printed_by_rich(shipped, encoding, arguments, tmp_path):
    pytest.importorskip("rich")
    script = tmp_path / "a folder of its own" / "load.py"
    script.parent.mkdir()
    script.write_text(RICH)
    command = [sys.executable, "-X", "utf8=0", str(script), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, env={"PYTHONIOENCODING": encoding}, check=True)
    diagnosis = diagnose(shipped, done.stdout)
    assert ids(diagnosis) == ["unrecognised-model-type"]
    assert diagnosis.documented[0].count == 1 + len(arguments)
    assert diagnosis.unknown == []


@pytest.mark.parametrize(
    "text",
    [
        # vLLM 0.31, curl's output; 0.9 and before had no "error" around it.
        record(error={"message": REFUSAL, "type": "BadRequestError", "param": None, "code": 400}),
        record(object="error", message=REFUSAL, type="BadRequestError", param=None, code=400),
        f"answer: {{'error': {{'message': '{REFUSAL}', 'type': 'BadRequestError'}}}}",
        f"openai.BadRequestError: Error code: 400 - {{'error': {{'message': '{REFUSAL}', 'type': 'BadRequestError'}}}}",
        f"vllm.exceptions.VLLMValidationError: {REFUSAL} (parameter=max_tokens, value=4000)",
        json.dumps({"error": {"message": REFUSAL, "type": "BadRequestError", "code": 400}}, indent=4),  # jq's output
        # The exception's message without its class.
        f"ERROR 12-01 05:34:47 [serving.py:1] {REFUSAL}",
        f"Request failed: {REFUSAL}",
        f"WARNING process_fn raised BadRequestError: {REFUSAL}",
        f"- **Exception Message:** {REFUSAL}",  # ComfyUI's report
        f"(Worker pid=12) {REFUSAL}",
    ],
)
def test_finds_the_failure_in_a_server_refusal(shipped, text):
    assert ids(diagnose(shipped, f"$ curl localhost\n{text}\n")) == ["max-tokens-overflow"]


@pytest.mark.parametrize(
    "text",
    [
        record(level="INFO", message="Set this to avoid KeyError: 'ministral3'"),
        record(level="info", event=f"why: {REFUSAL}"),
        f"INFO 12-01 05:34:47 [serving.py:1] {REFUSAL}",
        REFUSAL,
        f"the documentation says that {REFUSAL}",
        f"see why it raised BadRequestError: {REFUSAL}",
        "| see | KeyError: 'ministral3' |",
        "{'error': None, 'message': \"KeyError: 'ministral3'\"}",
    ],
)
def test_mention_in_a_record_is_not_a_failure(shipped, text):
    assert ids(diagnose(shipped, f"an ordinary line\n{text}\n")) == []
