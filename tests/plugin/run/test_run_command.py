"""``rlregress run`` without a cluster: its options, what a job asks for, and what is read of a job's log."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.drawn import EXAMPLES
from pytest_rlregress import cli
from pytest_rlregress.commands.run import cluster, job, results
from pytest_rlregress.hardware import profiles


def test_job_requests_the_resources_of_its_profile():
    shipped = profiles.load_profiles()
    h100, cpu = (cluster.needs_of(shipped[name], 2) for name in ("h100", "cpu"))
    assert [cluster.describe_needs(one) for one in (h100, cpu)] == ["accelerator_type:H100 and 2 GPU", "1 CPU"]
    node = {"CPU": 8.0, "GPU": 8.0, "accelerator_type:H100": 1.0, "node:10.0.0.1": 1.0, "memory": 1e9}
    assert cluster.fits(h100, node)
    for other in (node | {"GPU": 1.0}, node | {"accelerator_type:H100": 0}, {"GPU": 8.0, "accelerator_type:H200": 1.0}):
        assert not cluster.fits(h100, other)
    assert [cluster.fits(cpu, {"CPU": count}) for count in (1.0, 0.0)] == [True, False]
    found = cluster.describe_nodes([node, node, {"CPU": 8.0, "node:10.0.0.3": 1.0}])
    assert found == "2 nodes with accelerator_type:H100 and 8 GPU; 1 node with no accelerator"
    assert cluster.describe_nodes([]) == "no node"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hw=h1000"], "--hw=h1000 isn't a hardware profile. Allowed: a100, "),
        (["--hw=mine", "--hardware=TMP/hw"], 'what Ray calls this card is not known: add ray_accelerator = "NAME" to '),
        (["--hw=cpu", "--working-dir=TMP/none"], "--working-dir: TMP/none isn't a folder"),
        (["--hw=cpu", "--record-dir=TMP/hw/mine.toml"], "no record can be written to TMP/hw/mine.toml: File exists"),
    ],
)
def test_rejects_bad_input(tmp_path, capsys, arguments, message):
    (tmp_path / "hw").mkdir()
    text = (profiles.SHIPPED / "h100.toml").read_text().replace("ray_accelerator", "#")
    (tmp_path / "hw/mine.toml").write_text(text.replace("NVIDIA H100", "MY CARD"))
    arguments = [f"--record-dir={tmp_path / 'records'}", *(word.replace("TMP", str(tmp_path)) for word in arguments)]
    assert cli.main(["run", *arguments]) == results.USAGE
    printed = capsys.readouterr()
    assert not printed.out
    assert message.replace("TMP", str(tmp_path)) in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--record-dir=x"], "the following arguments are required: --hw"),
        (["--hw=cpu"], "the following arguments are required: --record-dir"),
        (["--hw=,", "--record-dir=x"], "',' names no hardware"),
        (["--hw=cpu", "--record-dir=x", "--ray-address=head:6379"], "'head:6379' is not the address of a dashboard"),
        (["--hw=cpu", "--record-dir=s3://me:secret@bucket"], "a URL without a password"),
        (["--hw=cpu", "--record-dir=x", "--gpus=0"], "'0' isn't a number from 1 on"),
        (["--hw=cpu", "--record-dir=x", "--timeout=0"], "Allowed: a positive number of seconds"),
        (["--hw=cpu", "--record-dir=x", "-k", "one"], "unrecognized arguments: -k"),
    ],
)
def test_rejects_bad_options(capsys, arguments, message):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["run", *arguments])
    assert message in capsys.readouterr().err


def test_reads_options_and_pytest_words():
    words = ["--hw=h100, H20,h100", "--record-dir=x", "--ray-address=http://head:8265/", "--", "-k", "a b", "--x"]
    options = cli.parse(["run", *words])
    assert options.hw == ["h100", "h20"]
    assert options.words == ["-k", "a b", "--x"]
    assert options.ray_address == "http://head:8265"


def test_says_if_no_cluster_answers(tmp_path):
    """Also with the variable that Ray's client would silently take instead of the address that was given."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        url = f"http://127.0.0.1:{door.getsockname()[1]}"
    command = [sys.executable, "-m", "pytest_rlregress.cli", "run", "--hw=cpu", f"--record-dir={tmp_path}"]
    environment = os.environ | {"RAY_ADDRESS": "auto"}
    done = subprocess.run([*command, f"--ray-address={url}"], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (results.UNKNOWN, "")
    assert done.stderr.startswith(f"rlregress run: {url} is no Ray dashboard that takes jobs: ConnectionError: ")
    assert done.stderr.count("\n") == 1


def test_help_imports_no_ray():
    code = "import sys\nfrom pytest_rlregress.cli import main\ntry: main(['run', '--help'])\nexcept SystemExit: pass\n"
    look = "print('IMPORTED', sorted({'ray', 'torch', 'jinja2', 'aiohttp'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code + look], capture_output=True, text=True, check=True)
    assert "IMPORTED []" in done.stdout
    assert "rlregress run --hw=h100,h200,h20 --ray-address http://head:8265 --record-dir records" in done.stdout
    assert all(len(line) <= 120 for line in done.stdout.splitlines())


WHOLE = job.file_packet("b.json", b"whole")


def _finish(folder, *lines, exit=0, end=None):
    """Finish a job with this log, up to ``end`` characters: the job, and the files that were written."""
    lines = [job.packet(node="one", harness="1"), *lines, *([] if exit is None else [job.packet(exit=exit, seconds=1)])]
    log = "".join(f"{line}\n" for line in lines)[:end]
    finished = cluster.Job("h100", {}, "id", submitted=1, status="SUCCEEDED", log=log)
    results.finish(finished, folder, "")
    return finished, {path.name: path.read_bytes() for path in folder.iterdir()}


@EXAMPLES
@given(contents=st.lists(st.binary(max_size=40_000), max_size=3))
def test_records_come_through_the_log(tmp_path_factory, contents):
    folder = tmp_path_factory.mktemp("records")
    sent = {f"{number}.json": content for number, content in enumerate(contents)}
    lines = [f"said {job.MARK}", *(job.file_packet(name, content) for name, content in sent.items())]
    finished, written = _finish(folder, *lines)
    assert written == sent
    assert finished.records == tuple(str(folder / name) for name in sent)
    assert finished.words == ("passed" if sent else "passed; no record came back")


def test_a_log_cut_anywhere_has_no_half_record(tmp_path):
    contents = {"b.json": b"whole", "a.json": os.urandom(200)}
    packets = [WHOLE, job.file_packet("a.json", contents["a.json"])]
    size = len(_finish(tmp_path, *packets)[0].log)
    for path in tmp_path.iterdir():
        path.unlink()
    for end in range(size - 1):
        finished, written = _finish(tmp_path, *packets, end=end)
        assert finished.code == results.UNKNOWN
        assert written.items() <= contents.items()
    assert written == contents


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (job.file_packet("a.json", b"other").replace('"content": "', '"content": "x'), "a.json: damaged on its way: "),
        (job.file_packet("a.json", b"a").replace('"sha256": "', '"sha256": "0'), "its digest is another one"),
        (f"{job.MARK}{{", "the log is torn"),
        *(
            (job.file_packet(name, b"x"), "not the name of a record")
            for name in ("../a.json", "/tmp/a.json", ".a.json", "a.sh", "", "a b.json", "a.json\n")
        ),
    ],
)
def test_a_damaged_record_is_not_written(tmp_path, line, problem):
    folder = tmp_path / "records"
    folder.mkdir()
    finished, written = _finish(folder, line, WHOLE)
    assert (problem in finished.words, finished.code) == (True, results.UNKNOWN)
    assert written == {"b.json": b"whole"}
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize(
    ("code", "words", "ours"),
    [
        (0, "passed", results.GOOD),
        (1, "tests failed", results.FAILED),
        (2, "interrupted", results.UNKNOWN),
        (3, "an error of pytest", results.UNKNOWN),
        (4, "refused by pytest: see its output", results.USAGE),
        (5, "no tests", results.UNKNOWN),
        (143, "pytest was ended by SIGTERM", results.UNKNOWN),
        (-11, "pytest was killed by SIGSEGV", results.UNKNOWN),
        (255, "pytest ended with 255", results.UNKNOWN),
    ],
)
def test_each_pytest_exit_code_has_its_result(tmp_path, code, words, ours):
    finished, _ = _finish(tmp_path, WHOLE, exit=code)
    assert (finished.words, finished.code) == (words, ours)
    lost, _ = _finish(tmp_path, exit=code)
    assert lost.code == max(ours, results.USAGE if code == 4 else results.UNKNOWN)  # no record isn't a pass
    assert "no run, not a pass: h100" in results.table([lost])


@EXAMPLES
@given(data=st.data(), lines=st.lists(st.text(alphabet="ab", max_size=5), max_size=8))
def test_prints_each_line_of_a_growing_log_once(data, lines):
    text = "".join(f"{line}\n" for line in lines)
    printed = []
    followed = cluster.Job("h100", {}, "id")
    followed.say = printed.append
    ends = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    for end in [*ends, len(text)]:
        status = argparse.Namespace(is_terminal=lambda: False)
        info = argparse.Namespace(status=status, message="", driver_node_id="n")
        followed.poll(argparse.Namespace(get_job_info=lambda _, i=info: i, get_job_logs=lambda _, n=end: text[:n]))
    assert printed == lines


def test_job_drops_variables_of_ray_from_its_environment():
    found = {"RAY_ADDRESS": "head:6379", "RAY_JOB_CONFIG_JSON_ENV_VAR": "{}", "OMP_NUM_THREADS": "", "PATH": "/bin"}
    found |= {"PYTHONBREAKPOINT": "ray.util.rpdb.set_trace", "CUDA_VISIBLE_DEVICES": "3"}
    assert job.environment(found) == {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "3"}
    kept = {"OMP_NUM_THREADS": "8", "PYTHONBREAKPOINT": "pdb.set_trace"}
    assert job.environment(kept) == kept


@pytest.mark.slow
def test_reads_output_that_is_not_text(tmp_path):
    """A log that is not text cannot be read through Ray at all, and what pytest leaves behind must not hold it up."""
    (tmp_path / "test_it.py").write_text(
        "import os, subprocess\n"
        "def test_it(capfd):\n"
        "    with capfd.disabled():\n"
        f"        open({str(tmp_path / 'pid')!r}, 'w').write(str(subprocess.Popen(['sleep', '600']).pid))\n"
        "        os.write(1, b'\\n\\xff and \\x80 ' + b'x' * 100_000 + b'\\n')\n"
    )
    words = ["--", str(tmp_path / "test_it.py"), "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest_rlregress.commands.run.job", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True)
    left = psutil.Process(int((tmp_path / "pid").read_text()))
    assert left.name() == "sleep", "waited for its end"
    left.kill()
    lines = done.stdout.decode().splitlines()
    assert max(len(line) for line in lines if not line.startswith(job.MARK)) < 70_000
    assert any(line.startswith("\ufffd and \ufffd xxx") for line in lines)
    finished = cluster.Job("cpu", {}, "id", 1, log=done.stdout.decode())
    results.finish(finished, tmp_path, "")
    assert (finished.words, len(finished.records), done.returncode) == ("passed", 1, 0)
