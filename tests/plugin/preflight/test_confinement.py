"""``rlregress preflight -- COMMAND``: the kernel holds the command, by whatever way it tries to change something."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest

from pytest_rlregress.cli import main
from pytest_rlregress.commands.preflight import command
from pytest_rlregress.util import confinement

CHANGES = {
    "removed by a descriptor": "os.remove('kept', dir_fd=os.open(here, os.O_RDONLY))",
    "tree removed from a temporary folder": "os.chdir(tempfile.mkdtemp()); shutil.rmtree(here, ignore_errors=True)",
    "made by a descriptor": "os.mkdir('out', dir_fd=os.open(here, os.O_RDONLY))",
    "opened by a descriptor": "os.open('out', os.O_CREAT | os.O_RDWR, dir_fd=os.open(here, os.O_RDONLY))",
    "renamed by descriptors": "fd = os.open(here, os.O_RDONLY); os.rename('kept', 'out', src_dir_fd=fd, dst_dir_fd=fd)",
    "renamed out of a temporary folder": "open(f'{tmp}/x', 'w').close(); os.rename(f'{tmp}/x', 'kept')",
    "linked from a temporary folder": "open(f'{tmp}/x', 'w').close(); os.link(f'{tmp}/x', 'out')",
    "emptied": "os.open('kept', os.O_TRUNC)",
    "made by opening": "os.open('out', os.O_CREAT)",
    "truncated": "os.truncate('kept', 0)",
    "pipe": "os.mkfifo('out')",
    "device": "os.mknod('out')",
    "mode": "os.chmod('kept', 0o777)",
    "time": "os.utime('kept', (0, 0))",
    "attribute": "os.setxattr('kept', 'user.a', b'1')",
    "database": "import sqlite3; sqlite3.connect('out').execute('create table a (b)')",
    "shared memory": "open('/dev/shm/rlr-out', 'w')",
    "C: mode": "libc.chmod(b'kept', 0o777)",
    "C: removed": "libc.unlink(b'kept')",
    "C: system": "libc.system(b'touch out')",
    "C: fork": "libc.fork() or libc.creat(b'out', 0o600)",
    "spawn": "from multiprocessing import util; util.spawnv_passfds('/usr/bin/touch', [b'touch', b'out'], [])",
    "exec": "os.execv('/usr/bin/touch', ['touch', 'out'])",
    "parent killed": "os.kill(os.getppid(), 9)",
    "C: parent killed": "libc.kill(os.getppid(), 9)",
    "UDP": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', port))",
    "C: connection": (
        "address = struct.pack('=H', 2) + port.to_bytes(2, 'big') + bytes([127, 0, 0, 1, *bytes(8)]); "
        "libc.connect(socket.socket().fileno(), address, 16)"
    ),
    "by a link": "os.symlink(here, f'{tmp}/link'); open(f'{tmp}/link/kept', 'w')",
}
SCRIPT = """\
import ctypes, os, shutil, socket, struct, tempfile
here, tmp, port, libc = os.getcwd(), tempfile.mkdtemp(), {port}, ctypes.CDLL(None)
"""


def describe(folder):
    """What a folder holds, to the last byte and attribute."""
    found = {}
    for path in sorted(folder.iterdir()):
        status = path.lstat()
        found[path.name] = (status.st_mode, status.st_mtime_ns, status.st_size, os.listxattr(path), path.read_bytes())
    return found


@pytest.fixture
def tried(tmp_path, monkeypatch, capsys):
    """Run a script's command, and see that nothing changed by it; what was said of it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept").write_text("kept")

    def tried(text, code=2):
        (tmp_path / "train.py").write_text(text, encoding="utf-8")
        before, shared = describe(tmp_path), {*os.listdir("/dev/shm")}
        assert main(["preflight", "--hw=h100", "--", sys.executable, "train.py"]) == code
        assert describe(tmp_path) == before
        assert "rlr-out" not in {*os.listdir("/dev/shm")} - shared
        return capsys.readouterr().err

    return tried


@pytest.mark.parametrize("text", CHANGES.values(), ids=CHANGES)
def test_command_changes_nothing(tried, text):
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as udp, closing(socket.socket()) as tcp:
        udp.bind(("127.0.0.1", 0))
        udp.setblocking(False)
        with suppress(OSError):  # its port may be in use for TCP: then nobody listens there
            tcp.bind(udp.getsockname())
        tcp.listen()
        tcp.setblocking(False)
        assert "can't confine" not in tried(SCRIPT.format(port=udp.getsockname()[1]) + text)
        with pytest.raises(BlockingIOError):
            udp.recv(1)
        with pytest.raises(BlockingIOError):
            tcp.accept()


def test_command_may_use_its_temporary_folder(tried):
    text = """
open(f"{tmp}/a", "w").write("1")
shutil.copy2(f"{tmp}/a", f"{tmp}/b")
os.makedirs(f"{tmp}/c/d")
os.rename(f"{tmp}/b", f"{tmp}/c/d/b")
os.symlink(f"{here}/kept", f"{tmp}/link")
os.link(f"{tmp}/a", f"{tmp}/e")
with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as file:
    file.write(b"1")
open(os.devnull, "w").write("1")
import threading
thread = threading.Thread(target=lambda: open(f"{tmp}/f", "w").close())
thread.start(); thread.join()
raise ValueError(sorted(os.listdir(tmp)))
"""
    assert "ValueError: ['a', 'c', 'e', 'f', 'link']" in tried(SCRIPT.format(port=0) + text)


def test_refusal_of_the_kernel_names_line_and_reason(tried):
    said = tried(SCRIPT.format(port=0) + "os.mkfifo('out')")
    assert "train.py:3: PermissionError: [Errno 13]" in said
    assert "preflight doesn't allow it before the configuration is composed" in said


@pytest.mark.parametrize("text", [CHANGES["removed by a descriptor"], CHANGES["tree removed from a temporary folder"]])
def test_says_what_the_kernel_cannot_hold_and_still_watches(tried, tmp_path_factory, monkeypatch, text):
    """As on a kernel before 5.13, or in a container that keeps Landlock away: a copy of the child without its calls."""
    folder = tmp_path_factory.mktemp("child")
    child, confines = folder / "commands" / "preflight", folder / "util" / "confinement.py"
    shutil.copytree(command.CHILD.parent, child)
    confines.parent.mkdir()
    source = Path(confinement.__file__).read_text(encoding="utf-8").replace("444, 445, 446", "9444, 9445, 9446")
    confines.write_text(source, encoding="utf-8")
    monkeypatch.setattr(command, "CHILD", child / "child.py")
    assert "the kernel can't confine the command: files: Landlock: Function not implemented" in tried(
        SCRIPT.format(port=0) + text
    )


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_filter_ends_in_a_decision_wherever_it_jumps(machine):
    steps = list(confinement._program(machine, starts=False, signals=False))
    assert len(steps) < 4096
    for at, (operation, if_so, if_not, _) in enumerate(steps):
        if operation != confinement._RETURN:
            assert at + 1 + max(if_so, if_not) < len(steps)
    assert steps[-1][0] == confinement._RETURN


def test_names_a_processor_whose_system_calls_it_does_not_know(tmp_path):
    text = (
        "import json, platform; from pytest_rlregress.util import confinement; "
        f"platform.machine = lambda: 'riscv64'; print(json.dumps(confinement.confine({str(tmp_path)!r})))"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["processes and network: seccomp: system calls of riscv64 aren't known here"]
