"""``rlregress run``: on a Ray cluster of two nodes, of which each says that it has a card of its own."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from patience import PATIENCE

from pytest_rlregress.commands.run import results
from pytest_rlregress.hardware import profiles
from pytest_rlregress.records import reader

pytestmark = pytest.mark.slow
#: A process that holds the cluster, answers what a test asks of it, and takes it down when its input ends.
CLUSTER = """
import json, os, sys
from pytest_rlregress.fixtures import ray_cluster

cards = [{"accelerator_type:CARD-A": 1}, {"accelerator_type:CARD-B": 1}]
with ray_cluster.start([{"resources": card} for card in cards], num_cpus=4, dashboard=True) as started:
    dashboard = f"http://{started.nodes[0].webui_url}"
    import ray
    from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager as nvidia
    from ray.job_submission import JobSubmissionClient

    client = JobSubmissionClient(dashboard)
    nodes = {node["NodeID"]: sorted(name for name in node["Resources"] if "CARD" in name) for node in ray.nodes()}
    print(json.dumps({"url": dashboard, "nodes": nodes, "token": os.environ["RAY_AUTH_TOKEN"]}), flush=True)
    for line in sys.stdin:
        if line.startswith("jobs"):
            jobs = client.list_jobs()
            found = [(job.submission_id, job.metadata, str(job.status), job.driver_node_id) for job in jobs]
        else:
            found = nvidia._gpu_name_to_accelerator_type(line.strip())
        print(json.dumps(found), flush=True)
"""
RUN = """
import sys
from pytest_rlregress.cli import main
from pytest_rlregress.commands.run import cluster, run_command
cluster.SILENCE_SECONDS, cluster.PENDING_SECONDS, run_command.POLL_SECONDS = 1, 0.5, 0.2
sys.exit(main(["run", *sys.argv[1:]]))
"""
TESTS = {
    "test_one_fails": """
        @pytest.mark.hw("card-a", "card-b")
        def test_card(pytestconfig):
            assert [name for name in os.environ if name.startswith("RAY_")] == []
            assert "OMP_NUM_THREADS" not in os.environ
            assert pytestconfig.getoption("rlregress_hw") == "card-a"
    """,
    "test_killed": """
        def test_before(): pass
        def test_dies(): os.kill(os.getpid(), signal.SIGKILL)
    """,
    "test_orphaned": """
        def test_waits(capsys):
            with capsys.disabled():
                print("\\nwaiting in", os.getpid(), flush=True)
            time.sleep(1)
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(100)
    """,
    "test_slow": """
        def test_waits(capsys):
            with capsys.disabled():
                print("\\nwaiting in", os.getpid(), flush=True)
            time.sleep(100)
    """,
    "test_talks": """
        @pytest.mark.hw("card-a", "card-b")
        def test_card(): pass
        def test_talks(capsys):
            with capsys.disabled():
                for number in range(40):
                    print(f"\\nsaid {number}", flush=True)
                    time.sleep(0.1)
    """,
}


@pytest.fixture(scope="module")
def ray():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment.pop("OMP_NUM_THREADS", None)
    with subprocess.Popen(
        [sys.executable, "-c", CLUSTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        started = json.loads(process.stdout.readline())

        def ask(what):
            process.stdin.write(f"{what}\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": started["token"]}
        ray = argparse.Namespace(url=started["url"], nodes=started["nodes"], ask=ask, environment=environment)
        ray.statuses = lambda: [(name, status) for name, _, status, _ in ask("jobs")]
        yield ray
        process.stdin.close()
        process.wait(PATIENCE)


@contextmanager
def _launcher(path, ray):
    """A working folder with the tests and profiles, and how to run the command on it."""
    folder = path / "work"
    (folder / "hw").mkdir(parents=True)
    for card in "abc":
        text = (profiles.SHIPPED / "cpu.toml").read_text()
        (folder / "hw" / f"card-{card}.toml").write_text(f'ray_accelerator = "CARD-{card.upper()}"\n{text}')
    (folder / "pytest.ini").write_text("[pytest]\nrlregress_hardware = hw\naddopts = -p no:cacheprovider\n")
    for name, body in TESTS.items():
        lines = [line[8:] for line in body.splitlines()]
        (folder / f"{name}.py").write_text("\n".join(["import os, signal, time, pytest", *lines]))
    begun = []

    def start(hardware, *arguments, url=ray.url, tests="test_one_fails", records="records"):
        words = [f"--hw={hardware}", f"--hardware={folder / 'hw'}", f"--working-dir={folder}", f"--ray-address={url}"]
        words += [f"--record-dir={records if '://' in records else path / records}", *arguments, "--", f"{tests}.py"]
        output, errors = (path / f"{len(begun)}.{kind}" for kind in ("output", "errors"))
        with open(output, "w") as out, open(errors, "w") as err:
            command = [sys.executable, "-c", RUN, *words]
            process = subprocess.Popen(command, stdout=out, stderr=err, env=ray.environment)
        process.output, process.errors = output, errors
        begun.append(process)
        return process

    yield argparse.Namespace(start=start, records=path / "records", path=path)
    for process in begun:
        process.kill()
        process.wait()
    assert not [found.pid for found in psutil.process_iter() if str(folder) in " ".join(_cmdline(found))]


@pytest.fixture
def launcher(tmp_path, ray):
    with _launcher(tmp_path, ray) as launcher:
        yield launcher


@pytest.fixture(scope="module")
def crowd(tmp_path_factory, ray):
    """Runs that are under way at once, each with a folder for its records: most of their time they wait for Ray."""
    with _launcher(tmp_path_factory.mktemp("crowd"), ray) as launcher:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", launcher.path / "bare"], check=True)
        python = f"--python={launcher.path / 'bare/bin/python'}"
        launcher.nodes = launcher.start("card-a,card-b", records="nodes")
        (launcher.path / "storage").mkdir()
        launcher.url = f"file://{launcher.path / 'storage'}"
        launcher.stored = launcher.start("card-a,card-b", records=launcher.url)
        launcher.killed = launcher.start("card-a", tests="test_killed", records="killed")
        launcher.orphaned = launcher.start("card-b", tests="test_orphaned", records="orphaned")
        launcher.missing = launcher.start("card-b", python, records="missing")
        yield launcher


def _cmdline(process):
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def _ended(process, seconds=120):
    process.wait(seconds)
    out, err = process.output.read_text(), process.errors.read_text()
    print(out, err)
    return process.returncode, out, err


def _wait(look, seconds=60):
    """Look again and again; what was found in time."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def _until(process, pattern):
    """The first that it prints and that matches."""

    def look():
        found = re.search(pattern, process.output.read_text(), re.M)
        assert found or process.poll() is None, _ended(process)
        return found

    return _wait(look, 120)


def _runs(pid):
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@contextmanager
def _relay(url):
    """A way to the dashboard that can be cut: ``cut()`` what is connected, ``close()`` also for good."""
    host, port = url.removeprefix("http://").split(":")
    door = socket.create_server(("127.0.0.1", 0))
    pairs = []

    def copy(source, target):
        with suppress(OSError):
            while piece := source.recv(65536):
                target.sendall(piece)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve():
        with suppress(OSError):
            while True:
                ends = door.accept()[0], socket.create_connection((host, int(port)))
                pairs.append(ends)
                for one, other in (ends, ends[::-1]):
                    threading.Thread(target=copy, args=[one, other], daemon=True).start()

    def cut():
        for end in (end for pair in pairs for end in pair):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close():
        with suppress(OSError):
            door.shutdown(socket.SHUT_RDWR)
        door.close()
        cut()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield argparse.Namespace(url=f"http://127.0.0.1:{door.getsockname()[1]}", cut=cut, close=close)
    finally:
        close()


def test_each_card_runs_on_its_own_node(crowd, ray):
    code, out, err = _ended(crowd.nodes)
    assert code == results.FAILED, out + err
    names = re.findall(r"job (rlregress-\S+) asks", out)
    where = {about["hardware"]: ray.nodes[node] for name, about, _, node in ray.ask("jobs") if name in names}
    assert where == {"card-a": ["accelerator_type:CARD-A"], "card-b": ["accelerator_type:CARD-B"]}
    assert "[card-a] hardware: card-a (no GPU)" in out
    platforms = {}
    for path in (crowd.path / "nodes").glob("*.json"):
        found = reader.read(path).results
        platforms[found.extra.hardware.profile] = found.summary.failed
        assert str(path) in out
    assert platforms == {"card-a": 0, "card-b": 1}
    table = out.partition("hardware  node")[2]
    assert re.search(r"^card-a .* passed$", table, re.M)
    assert re.search(r"^card-b .* tests failed$", table, re.M)
    assert "no run" not in out


def test_each_node_writes_its_record_to_a_url(crowd):
    """Nothing is sent back through the logs then, and nothing is written here."""
    code, out, err = _ended(crowd.stored)
    assert code == results.FAILED, out + err
    found = {path: reader.read(path).results for path in (crowd.path / "storage").rglob("*.json")}
    assert {one.extra.hardware.profile: one.summary.failed for one in found.values()} == {"card-a": 0, "card-b": 1}
    table = out.partition("hardware  node")[2]
    assert all(f" {crowd.url}/{path.relative_to(crowd.path / 'storage')} " in table for path in found)
    assert "no run" not in out


def test_rejects_a_card_that_no_node_has(launcher, ray):
    code, out, err = _ended(launcher.start("card-a,card-c"))
    assert (code, out) == (results.USAGE, "")
    assert err.count("\n") == 1
    assert "no node has accelerator_type:CARD-C and 1 CPU for --hw=card-c; there are 1 node with" in err
    assert "accelerator_type:CARD-A" in err


def test_killed_pytest_leaves_its_journal(crowd):
    code, out, _ = _ended(crowd.killed)
    assert code == results.UNKNOWN
    assert "pytest was killed by SIGKILL" in out
    (journal,) = (crowd.path / "killed").iterdir()
    found = {test.name: test.raw_status for test in reader.read(journal).results.tests}
    assert found == {"test_killed.py::test_before": "passed", "test_killed.py::test_dies": "interrupted"}
    assert str(journal) in out
    assert "no run" not in out


def test_killed_job_has_no_result(crowd):
    code, out, _ = _ended(crowd.orphaned)
    assert code == results.UNKNOWN
    assert "the job ended before pytest had: the node went down, or somebody stopped or killed it" in out
    assert "no run, not a pass: card-b" in out
    _wait(lambda: not _runs(int(re.search(r"waiting in (\d+)", out)[1])), 10)


def test_names_a_node_without_the_harness(crowd):
    code, out, _ = _ended(crowd.missing)
    assert code == results.UNKNOWN
    assert "the node's Python does not have the harness: pip install pytest-rlregress==" in out
    assert "no run, not a pass: card-b" in out


def test_first_ctrl_c_stops_jobs_and_second_leaves(launcher, ray):
    """Once, the jobs are stopped, and what they found comes back; with the second one it is not waited for."""
    once = launcher.start("card-a,card-c", "--wait", tests="test_slow")
    twice = launcher.start("card-b", tests="test_slow")
    stopped, left = (int(_until(process, r"waiting in (\d+)")[1]) for process in (once, twice))
    for process in (once, twice):
        process.send_signal(signal.SIGINT)
    _until(twice, "Ctrl-C leaves without waiting")
    twice.send_signal(signal.SIGINT)
    code, out, _ = _ended(twice, 10)
    assert code == 130
    assert "these may still run, ray job stop --address" in out
    assert "hardware  node" not in out
    code, out, _ = _ended(once, 60)
    assert code == 130
    assert "stopped by Ctrl-C: 2 of 2 jobs" in out
    assert not _runs(stopped)
    (record,) = launcher.records.iterdir()
    assert [test.raw_status for test in reader.read(record).results.tests] == ["interrupted"]
    assert "stopped by Ctrl-C; never began; should its turn come, Ray stops it at once" in out
    name = re.search(r"job (rlregress-card-a-\S+) asks", out)[1]
    _wait(lambda: (name, "STOPPED") in ray.statuses())
    _wait(lambda: not _runs(left))  # the first one did stop it


def test_stops_at_the_time_limit(launcher):
    code, out, _ = _ended(launcher.start("card-c", "--wait", "--timeout=2"))
    assert code == results.UNKNOWN
    assert re.search(r"^\[card-c\] pending for \d s: accelerator_type:CARD-C and 1 CPU is in use, or", out, re.M)
    assert "stopped after 2 s; never began" in out
    assert "no run, not a pass: card-c" in out


def test_survives_a_cut_connection_once(launcher, ray):
    """Once, that costs no line and says none twice. For good, it is given up, and the job goes on."""
    with _relay(ray.url) as back, _relay(ray.url) as gone:
        once = launcher.start("card-a", url=back.url, tests="test_talks")
        forever = launcher.start("card-b", url=gone.url, tests="test_talks")
        _until(once, r"said 3$")
        back.cut()
        _until(forever, r"said 3$")
        gone.close()
        code, out, _ = _ended(forever)
        assert code == results.UNKNOWN
        assert out.count("no answer, trying again for 1 s: ") == 1
        name = re.search(r"job (\S+) asks", out)[1]
        assert f"ray job logs --address {gone.url} {name} shows what it did" in out
        code, out, _ = _ended(once)
    assert code == results.GOOD
    assert re.findall(r"^\[card-a\] said (\d+)$", out, re.M) == [str(number) for number in range(40)]
    _wait(lambda: (name, "SUCCEEDED") in ray.statuses())


def test_profiles_use_the_card_names_of_ray(ray):
    """Ray's own reading of what NVML calls a card: the resource that its nodes have."""
    cards = {
        "a100": ["NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe"],
        "a6000": ["NVIDIA RTX A6000"],
        "b200": ["NVIDIA B200"],
        "h100": ["NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM2e", "NVIDIA H100 PCIe", "NVIDIA H100 NVL"],
        "h20": ["NVIDIA H20", "NVIDIA H20-3e"],
        "h200": ["NVIDIA H200", "NVIDIA H200 NVL"],
        "l4": ["NVIDIA L4"],
        "rtx-5070-ti": ["NVIDIA GeForce RTX 5070 Ti"],
        "rtx-pro-6000-blackwell": ["NVIDIA RTX PRO 6000 Blackwell Server Edition"],
        "t4": ["Tesla T4"],
    }
    shipped = {name: profile for name, profile in profiles.load_profiles().items() if not profile.is_cpu}
    assert cards.keys() == shipped.keys()
    for name, profile in shipped.items():
        for card in cards[name]:
            assert any(re.fullmatch(pattern, card) for pattern in profile.nvml_names)
            assert ray.ask(card) == profile.ray_accelerator
