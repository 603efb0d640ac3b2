"""`rlregress diagnose`: what a log shows is found however it is printed, and what it mentions is not."""

from __future__ import annotations

import io
import textwrap

import pytest
from first_documents import TRANSCRIPTS

from pytest_rlregress.diagnosis import reader
from pytest_rlregress.diagnosis.findings import Diagnosis, name_test
from pytest_rlregress.failures import catalogue
from pytest_rlregress.failures.verdicts import Outcome

OTHER = "(WorkerDict pid=99) step:12 - actor/pg_loss:0.01 - critic/score/mean:0.5"
OTHER_TRACEBACK = [
    "(Reward pid=7) Traceback (most recent call last):",
    '(Reward pid=7)   File "/opt/reward.py", line 12, in score',
    "(Reward pid=7)     return answers[key]",
    "(Reward pid=7) LookupError: no answer to 12",
]
BAR = "Processed prompts:  45%|████▌     | 45/100 [00:01<00:01, 41.23it/s, est. speed input: 12.3 toks/s]"


@pytest.fixture(scope="session")
def shipped():
    return catalogue.load([catalogue.SHIPPED])


def diagnose(known, *texts):
    diagnosis = Diagnosis(known)
    for text in texts:
        stream = io.BytesIO(text if isinstance(text, bytes) else text.encode())
        diagnosis.read("log", reader.read_stream(stream, "log"))
    diagnosis.end()
    return diagnosis


def ids(diagnosis):
    return [finding.failure.id for finding in diagnosis.documented]


def named(diagnosis):
    """Answers, or else what could be one: some documented lines are too short to tell one program from others."""
    return ids(diagnosis) or [finding.failure.id for finding in diagnosis.possible]


def prefixed(prefix):
    return lambda lines: [prefix + line for line in lines]


def between(*others):
    """Lines of others after each line; the lines themselves come from a Ray worker."""

    def interleave(lines):
        spread = []
        for number, line in enumerate(lines):
            spread += [f"(TaskRunner pid=1, ip=10.0.0.1) {line}", others[number % len(others)]]
        return spread + list(others)

    return interleave


SHOWN = {
    "plain": lambda lines: lines,
    "ray": prefixed("(TaskRunner pid=1, ip=10.0.0.1) "),
    "coloured": prefixed("\x1b[36m(TaskRunner pid=1)\x1b[0m "),
    "colours without escape": prefixed("[36m(TaskRunner pid=1)[0m "),
    "vllm": prefixed("(EngineCore_DP0 pid=1) ERROR 12-01 05:34:47 [core.py:1] "),
    "vllm in ray": prefixed("(Actor pid=1) (EngineCore pid=1) ERROR 12-01 05:34:47 [core.py:1] "),
    "torchrun": prefixed("[rank0]: "),
    "srun": prefixed("12: "),
    "kubernetes": prefixed("2025-12-01T05:34:47.123456789Z stderr F "),
    "docker compose": prefixed("trainer-1  | "),
    "logging": prefixed("2025-12-01 05:34:47,123 - verl.trainer - ERROR - "),
    "hydra": prefixed("[2025-12-01 05:34:47,123][__main__][ERROR] - "),
    "loguru": prefixed("2025-12-01 05:34:47.123 | ERROR    | verl.main:run:12 - "),
    "other workers": between(OTHER),
    "other tracebacks": between(*OTHER_TRACEBACK),
    "before and after": lambda lines: [OTHER] * 500 + lines + [OTHER] * 500,
    "progress bar before": lambda lines: [f"\r{BAR}\r{BAR}{lines[0]}", *lines[1:]],
    "progress bars between": lambda lines: [text for line in lines for text in (line, f"\r{BAR}\r{BAR}")],
    "carriage returns": lambda lines: [f"{line}\r" for line in lines],
}
MENTIONED = {
    "comment": prefixed("# "),
    "quotation": lambda lines: ["That is in the documentation:", *(f"> {line}" for line in lines)],
    "list": prefixed("- "),
    "code block": lambda lines: [f"        {line}" for line in lines if not line.startswith("File ")],
    "grep": prefixed("docs/faq.md:120:"),
    "code": lambda lines: [f"    raise ValueError({line!r})" for line in lines],
    "prose": lambda lines: [f'If you see "{line}" the documentation helps.' for line in lines],
    "prose without quotes": lambda lines: [f"It is known that {line} may be printed." for line in lines],
    "information": lambda lines: [f"INFO 12-01 05:34:47 [config.py:1] Set this to avoid {line}" for line in lines],
    "shell trace": lambda lines: [f"+ grep -c {line!r} run.log" for line in lines],
}


@pytest.mark.parametrize("failure", TRANSCRIPTS)
@pytest.mark.parametrize("form", SHOWN)
def test_transcript_shows_exactly_its_failure(shipped, failure, form):
    lines = TRANSCRIPTS[failure].splitlines()
    diagnosis = diagnose(shipped, "\n".join(SHOWN[form](lines)) + "\n")
    assert named(diagnosis) == [failure]


@pytest.mark.parametrize("failure", TRANSCRIPTS)
@pytest.mark.parametrize("form", MENTIONED)
def test_mentioned_error_is_not_a_failure(shipped, failure, form):
    lines = TRANSCRIPTS[failure].splitlines()
    assert named(diagnose(shipped, "\n".join(MENTIONED[form](lines)))) == []


@pytest.mark.parametrize("failure", TRANSCRIPTS)
@pytest.mark.parametrize("width", [100, 60])
def test_finds_failures_in_wrapped_lines(shipped, failure, width):
    lines = [
        part
        for line in TRANSCRIPTS[failure].splitlines()
        for part in textwrap.wrap(line, width, break_on_hyphens=False) or [""]
    ]
    frames = any(line.startswith("File ") for line in lines)
    if not frames:
        assert named(diagnose(shipped, "\n".join(lines))) == [failure]


def test_separates_errors_of_workers_that_fail_at_once(shipped):
    tracebacks = [
        [
            f"(WorkerDict pid={pid}) {line}"
            for line in (
                "Traceback (most recent call last):",
                '  File "/opt/verl/protocol.py", line 99, in list_of_dict_to_dict_of_list',
                "    assert key in output",
                f"{error}",
            )
        ]
        for pid, error in [(1, "AssertionError"), (2, "LookupError: b"), (3, "AssertionError"), (4, "LookupError: d")]
    ]
    diagnosis = diagnose(shipped, "\n".join(line for lines in zip(*tracebacks, strict=True) for line in lines))
    assert [(finding.failure.id, finding.count) for finding in diagnosis.documented] == [("dataproto-concat-keys", 2)]
    assert [finding.what for finding in diagnosis.unknown] == ["LookupError: b", "LookupError: d"]


@pytest.mark.parametrize("ranks", [43, 100])
def test_reads_a_traceback_that_many_ranks_interleave(shipped, ranks):
    lines = (
        "Traceback (most recent call last):",
        '  File "/opt/train.py", line 9, in main',
        "    step(batch)",
        "    ^^^^^^^^^^^",
        '  File "/opt/verl/protocol.py", line 99, in list_of_dict_to_dict_of_list',
        "    assert key in output",
        "           ^^^^^^^^^^^^^",
        "AssertionError",
    )
    diagnosis = diagnose(shipped, "".join(f"[rank{rank}]: {line}\n" for line in lines for rank in range(ranks)))
    assert [(finding.failure.id, finding.count) for finding in diagnosis.documented] == [
        ("dataproto-concat-keys", ranks)
    ]
    assert diagnosis.unknown == []


def test_names_an_exception_from_another_worker(shipped):
    text = """\
Traceback (most recent call last):
  File "/opt/main.py", line 12, in main
    ray.get(runner.run.remote(config))
ray.exceptions.RayTaskError(KeyError): ray::TaskRunner.run() (pid=5477, ip=10.0.0.1)
  File "/opt/transformers/configuration_auto.py", line 1000, in __getitem__
    raise KeyError(key)
KeyError: 'ministral3'
"""
    diagnosis = diagnose(shipped, text)
    assert ids(diagnosis) == ["unrecognised-model-type"]
    assert diagnosis.unknown == []


def test_lines_keep_their_numbers_across_blocks(shipped, monkeypatch):
    monkeypatch.setattr(reader, "_BLOCK_BYTES", 64)
    for before in range(0, 200, 7):
        log = "an ordinary line\n" * before + "No API\nkey configured\n" + "x" * before + "\nKeyError: 'ministral3'\n"
        found = {one.failure.id: one.places[0].number for one in diagnose(shipped, log).documented}
        assert found == {"wandb-key-missing": before + 1, "unrecognised-model-type": before + 4}


def test_counts_lines_around_a_long_progress_bar(shipped, monkeypatch):
    monkeypatch.setattr(reader, "_BLOCK_BYTES", 4096)
    log = f"first\n{BAR}\r" * 2 + f"\r{BAR}" * 2000 + "KeyError: 'ministral3'\n"
    (found,) = diagnose(shipped, log).documented
    assert found.places[0].number == 3


def test_reads_logs_with_bytes_that_are_not_text(shipped):
    assert ids(diagnose(shipped, b"\xfa\xfe step\n" * 3 + b"KeyError: 'ministral3'\n\xc3")) == [
        "unrecognised-model-type"
    ]


def test_failing_test_is_named_by_its_own_end_and_by_its_log(shipped):
    log = "an ordinary line\n(EngineCore pid=1) ERROR 12-01 05:34:47 [core.py:1] KeyError: 'ministral3'"
    refused = '(APIServer pid=1) INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 400 Bad Request\n'
    for outcome, expected in [
        (Outcome("failed", exceptions=("builtins.KeyError",), message="'ministral3'"), ["unrecognised-model-type"]),
        (Outcome("failed", exceptions=("TimeoutError",), message="no answer", log=log), ["unrecognised-model-type"]),
        (Outcome("hung", message="no end", log=refused), ["stalled-rollout"]),
        (Outcome("failed", exceptions=("TimeoutError",), message="no answer", log=refused), []),
    ]:
        assert [failure.id for failure in name_test(outcome, shipped.values())] == expected
