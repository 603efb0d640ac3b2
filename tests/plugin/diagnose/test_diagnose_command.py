"""The command `rlregress diagnose`: exit codes, what it prints, and logs of every kind and size."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from first_documents import TRANSCRIPTS
from made_failures import write_failures
from patience import PATIENCE

from pytest_rlregress.cli import main

CATALOGUE = """
id = "no-such-tokenizer"
title = "The tokenizer is not there"
seen_on = "any"
components = {}
cause = "nobody made it"
remedy = "make one"
refuted = [{ remedy = "Borrow one", why = "its ids are others." }]
[[signature]]
says = ["TokenizerError: no tokenizer called '{}'"]
"""
UNKNOWN = """\
Traceback (most recent call last):
  File "/opt/train.py", line 12, in step
    return 1 / 0
ZeroDivisionError: division by zero

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/opt/train.py", line 14, in step
    raise RuntimeError("step failed")
RuntimeError: step failed
CUDA error: misaligned address
./run.sh: line 3: 4242 Bus error               (core dumped) python train.py
"""


@pytest.fixture
def log(tmp_path):
    def write(text, name="run.log"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def as_json(capsys):
    return json.loads(capsys.readouterr().out)


def test_names_the_failure_with_its_line(log, capsys):
    path = log("step 1\nstep 2\n" + TRANSCRIPTS["wandb-key-missing"])
    assert main(["diagnose", path]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("wandb-key-missing: ")
    assert f"{path}:3" in printed
    assert "      3  No API key configured" in printed
    for key in ("cause", "remedy"):
        assert f"\n  {key}: " in printed
    assert printed.endswith("1 documented failure\n")


@pytest.mark.parametrize(
    ("line", "trainer", "keys"),
    [
        ('  File "/x/site-packages/verl/trainer/ppo/ray_trainer.py", line 9, in fit', "verl", ["verl: trainer.logger"]),
        ("(WorkerDict pid=9) loading", "verl", ["verl: trainer.logger"]),
        ('  File "/x/trl/trainer/grpo_trainer.py", line 9, in _generate', "trl", ["TRL: report_to"]),
        ("{'loss': 0.1, 'frac_reward_zero_std': 0.0, 'epoch': 0.1}", "trl", ["TRL: report_to"]),
        ("(WorkerDict pid=9) /x/trl/trainer/utils.py", None, ["verl: trainer.logger", "TRL: report_to"]),
        ("pip install verl trl", None, ["verl: trainer.logger", "TRL: report_to"]),
    ],
)
def test_remedy_uses_the_keys_of_the_trainer_in_the_log(log, capsys, line, trainer, keys):
    path = log(f"{line}\n" + TRANSCRIPTS["wandb-key-missing"])
    assert main(["diagnose", path]) == 1
    printed = capsys.readouterr().out
    told = [one for one in ("verl: trainer.logger", "TRL: report_to") if one in printed]
    assert told == keys
    main(["diagnose", "--json", path])
    report = as_json(capsys)
    assert report["trainer"] == trainer
    assert keys[0] in report["documented"][0]["remedy"]


def test_names_nothing_in_a_good_log(log, capsys):
    assert main(["diagnose", log("step 1\nstep 2\nErrors: 0\n")]) == 0
    assert capsys.readouterr().out == "no documented failures\n"


def test_unknown_events_are_listed(log, capsys):
    assert main(["diagnose", "--json", log(UNKNOWN)]) == 3
    unknown = as_json(capsys)["unknown"]
    assert [(one["what"], one["places"][0]["line"]) for one in unknown] == [
        ("RuntimeError: step failed, after ZeroDivisionError: division by zero", 11),
        ("CUDA error: misaligned address", 12),
        ("SIGBUS: ./run.sh: line 3: 4242 Bus error               (core dumped) python train.py", 13),
    ]


def test_undocumented_error_ends_with_the_command_to_document_it(log, capsys):
    path = log("OSError: file 3 is gone\n")
    assert main(["diagnose", path]) == 3
    assert capsys.readouterr().out.endswith(
        f"To document one: rlregress new my-failure --folder scenarios/mine < {path}\n"
    )


def test_the_line_with_the_numbers_is_the_evidence(log, capsys):
    numbers = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total capacity of 79 GiB"
    )
    path = log(UNKNOWN.partition("ZeroDivisionError")[0] + numbers + "\n")
    main(["diagnose", path])
    _, place, evidence, *_ = capsys.readouterr().out.splitlines()
    assert (place.strip(), evidence.strip()) == (f"{path}:4", f"4  {numbers}")


def test_counts_repeated_events_in_bounded_memory(log, capsys):
    text = "".join(
        f"KeyError: 'ministral3'\nstep {number}\nOSError: file {number} is gone\n\n" for number in range(500)
    )
    text += "".join(f"{'x' * number}Error: of a kind\n\n" for number in range(1, 300))
    assert main(["diagnose", "--json", log(text)]) == 1
    found = as_json(capsys)
    assert [(one["id"], one["count"]) for one in found["documented"]] == [("unrecognised-model-type", 500)]
    assert len(found["documented"][0]["places"]) == 3
    assert found["unknown"][0]["count"] == 500
    assert (len(found["unknown"]), found["unknown_left_out"]) == (100, 200)


def test_most_specific_failure_comes_first(log, capsys):
    crash = (
        'Fatal Python error: Floating point exception\n  File "/vllm/vocab_parallel_embedding.py", line 40 in apply\n'
    )
    text = crash + "\n" * 60 + "KeyError: 'ministral3'\n"
    assert main(["diagnose", "--json", log(text)]) == 1
    assert [one["id"] for one in as_json(capsys)["documented"]] == ["unrecognised-model-type", "sigfpe-embedding"]


def test_one_exception_of_a_chain_is_enough(log, capsys):
    text = UNKNOWN.replace("ZeroDivisionError: division by zero", "KeyError: 'ministral3'")
    assert main(["diagnose", "--json", log(text)]) == 1
    found = as_json(capsys)
    assert [one["id"] for one in found["documented"]] == ["unrecognised-model-type"]
    assert "step failed" not in str(found["unknown"])


def test_reads_custom_failures_and_their_refuted_remedies(log, tmp_path, capsys):
    write_failures(tmp_path, CATALOGUE)
    own = log("ray.exceptions.RayTaskError(TokenizerError): no tokenizer called 'x'\n", "a.log")
    shipped = log("KeyError: 'ministral3'\n", "b.log")
    asked = ["diagnose", "--scenarios", str(tmp_path), own, shipped]
    assert main(asked) == 1
    assert "  remedy: make one\n  does not help: Borrow one: its ids are others.\n" in capsys.readouterr().out
    main([*asked, "--json"])
    found, other = as_json(capsys)["documented"]
    assert (found["places"][0]["log"], other["places"][0]["log"]) == (own, shipped)
    assert found["refuted"] == [{"remedy": "Borrow one", "why": "its ids are others."}]


@pytest.mark.parametrize(
    "line",
    [
        '(APIServer pid=1) INFO:     127.0.0.1:1234 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request',
        'INFO:httpx:HTTP Request: POST http://127.0.0.1:8000/v1/completions "HTTP/1.1 400 Bad Request"',
    ],
)
def test_refused_requests_could_stall_a_rollout(log, capsys, line):
    assert main(["diagnose", "--json", log(f"INFO: Generating 0/8 rollouts\n{line}\n")]) == 3
    [found] = as_json(capsys)["possible"]
    assert (found["id"], found["places"][0]["line"]) == ("stalled-rollout", 2)
    assert main(["diagnose", log(line.replace("400 Bad Request", "200 OK"))]) == 0


@pytest.mark.parametrize("encode", [gzip.compress, lambda text: text.decode().encode("utf-16")], ids=["gzip", "utf-16"])
def test_reads_gzip_and_utf_16(log, capsys, encode):
    assert main(["diagnose", "--json", log(encode(b"\xe2\x9c\x85 step\r\nKeyError: 'ministral3'\r\n"))]) == 1
    (found,) = as_json(capsys)["documented"]
    assert found["places"][0]["line"] == 2


@pytest.mark.parametrize("arguments", [["diagnose"], ["diagnose", "-"]])
def test_reads_standard_input(monkeypatch, capsys, arguments):
    buffer = io.BytesIO(b"KeyError: 'ministral3'\n")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=buffer, isatty=lambda: False))
    assert main(arguments) == 1
    assert "standard input:1" in capsys.readouterr().out


def test_rejects_a_call_without_a_log(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    assert main(["diagnose"]) == 2
    assert "no log" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "No such file"),
        (lambda path: path.mkdir(), "a folder without files of metrics"),
        (lambda path: path.write_bytes(b""), "it is empty"),
        (lambda path: path.write_bytes(b" \n\n"), "it is empty"),
        (lambda path: path.write_bytes(bytes(range(256)) * 100), "no text but binary data"),
        (lambda path: path.write_bytes(gzip.compress(os.urandom(9999))[:5000]), "binary data|ended before"),
        (lambda path: path.write_bytes(gzip.compress(b"step\n" * 99999)[:50]), "ended before"),
    ],
    ids=["missing", "folder", "empty", "blank", "binary", "zipped binary", "cut gzip"],
)
def test_names_an_unreadable_file_and_reads_the_others(tmp_path, log, capsys, make, message):
    make(tmp_path / "bad.log")
    assert main(["diagnose", str(tmp_path / "bad.log"), log("KeyError: 'ministral3'\n")]) == 2
    printed = capsys.readouterr()
    assert str(tmp_path / "bad.log") in printed.err
    assert any(part in printed.err for part in message.split("|"))
    assert "unrecognised-model-type" in printed.out  # the others are read all the same


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_names_a_log_that_fails_while_it_is_read(log, capsys):
    assert main(["diagnose", "/proc/self/mem", log("KeyError: 'ministral3'\n")]) == 2
    printed = capsys.readouterr()
    assert "/proc/self/mem: Input/output error" in printed.err
    assert "unrecognised-model-type" in printed.out


@pytest.mark.skipif(sys.platform == "win32", reason="needs os.mkfifo")
def test_interrupt_ends_the_command(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    command = [sys.executable, "-m", "pytest_rlregress.cli", "diagnose", str(fifo)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with fifo.open("w"):  # opens once the other side reads
        time.sleep(0.2)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130
    assert (out, err) == ("", "rlregress diagnose: interrupted\n")
