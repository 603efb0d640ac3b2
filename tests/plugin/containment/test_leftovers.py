"""Litter: what is abandoned goes, what is in use stays, whoever looks at the same time."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path

import pytest
from patience import PATIENCE

from pytest_rlregress.containment import leftovers
from pytest_rlregress.util import shared_memory
from pytest_rlregress.util.shared_memory import SharedMemoryWatch

HOLDS_A_FOLDER = """
import sys, time
from pytest_rlregress.containment import leftovers
print(leftovers.session_folder().path, flush=True)
time.sleep(60)
"""
HOLDS_AN_ENTRY = """
import ctypes, os, sys, time
file = os.open(sys.argv[1], os.O_RDWR)
if sys.argv[2] == "mapped":  # by C: Python's own mmap keeps a descriptor
    assert ctypes.CDLL(None).mmap(None, ctypes.c_size_t(4096), 3, 1, file, ctypes.c_long(0)) != -1
    os.close(file)
print(flush=True)
time.sleep(60)
"""


pytestmark = pytest.mark.usefixtures("temporary")


@pytest.fixture
def start():
    """Start a script in a process of its own; wait for its first line."""
    started = []

    def start(script, *args):
        process = subprocess.Popen([sys.executable, "-c", script, *args], stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def entry(monkeypatch):
    """``entry()``: a new entry of shared memory, apart from what others on this machine make and remove meanwhile."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="rlr-test-") as folder:
        monkeypatch.setattr(shared_memory, "FOLDER", Path(folder))

        def entry():
            path = Path(folder, secrets.token_hex(4))
            path.write_bytes(bytes(4096))
            return path

        yield entry


def test_folder_leaves_room_for_the_sockets_of_ray(temporary):
    folder = leftovers.session_folder()
    assert folder.path.parent == temporary
    assert len(folder.path.name) == len("rlr-XXXXXXXX")
    (folder.path / "ray" / "sockets").mkdir(parents=True)
    folder.remove()
    assert not list(temporary.iterdir())


def test_removes_the_folder_of_a_killed_run_but_not_of_a_living_one(start, temporary):
    killed, gone = start(HOLDS_A_FOLDER)
    _, living = start(HOLDS_A_FOLDER)
    other = temporary / "rl-other"
    other.mkdir()
    Path(gone, "deep").mkdir()
    assert Path(gone).exists(), "swept by the second run while the first one was alive"
    killed.kill()
    killed.wait()
    mine = leftovers.session_folder()
    assert sorted(temporary.iterdir()) == sorted([Path(living), mine.path, other])
    leftovers.remove_if_abandoned(Path(living))
    leftovers.remove_if_abandoned(mine.path)
    assert sorted(temporary.iterdir()) == sorted([Path(living), mine.path, other])
    mine.remove()


@pytest.fixture
def abandoned(start):
    """The folder of a run that was killed."""
    process, folder = start(HOLDS_A_FOLDER)
    process.kill()
    process.wait()
    return Path(folder)


def test_keeps_the_folder_of_another_user(abandoned, monkeypatch):
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    leftovers.remove_if_abandoned(abandoned)
    assert abandoned.exists()
    monkeypatch.undo()
    leftovers.remove_if_abandoned(abandoned)
    assert not abandoned.exists()


USERS_FOLDERS = {
    "without a mark": lambda folder, _: (folder.mkdir(), (folder / "model.pt").touch()),
    "empty": lambda folder, _: folder.mkdir(),
    "with a file lock": lambda folder, _: (folder.mkdir(), (folder / "lock").touch()),
    "with an empty mark": lambda folder, mark: (folder.mkdir(), (folder / mark).touch()),
    "with a pipe as its mark": lambda folder, mark: (folder.mkdir(), os.mkfifo(folder / mark)),
    "a file": lambda folder, _: folder.touch(),
}


@pytest.mark.parametrize("make", USERS_FOLDERS.values(), ids=USERS_FOLDERS)
def test_keeps_a_users_folder_of_such_a_name(temporary, make):
    folder = temporary / "rlr-experiments"
    make(folder, leftovers._MARK)
    before = sorted(temporary.rglob("*"))
    leftovers.session_folder().remove()
    assert sorted(temporary.rglob("*")) == before


@pytest.mark.parametrize("how", ["copied", "renamed", "linked"])
def test_keeps_an_abandoned_folder_that_a_user_copied_or_renamed(abandoned, how):
    (abandoned / "kept.txt").touch()
    folder = abandoned.with_name("rlr-keep")
    if how == "copied":
        shutil.copytree(abandoned, folder)
    elif how == "renamed":
        abandoned.rename(folder)
    else:
        folder.symlink_to(abandoned, target_is_directory=True)
    leftovers.remove_if_abandoned(folder)
    assert (folder / "kept.txt").exists()


def test_session_folder_on_a_disk_without_locks(temporary, monkeypatch):
    def refuse(*_, **__):
        raise OSError("no locks available")

    monkeypatch.setattr(leftovers.files, "lock", refuse)
    folder, other = leftovers.session_folder(), leftovers.session_folder()
    assert sorted(temporary.iterdir()) == sorted([folder.path, other.path])
    folder.remove()
    other.remove()
    assert not list(temporary.iterdir())


def make_folders(count, results):
    lost = 0
    for _ in range(count):
        folder = leftovers.session_folder()
        (folder.path / "file").write_text("mine")
        for other in Path(tempfile.gettempdir()).glob("rlr-*"):
            leftovers.remove_if_abandoned(other)
        lost += (folder.path / "file").read_text() != "mine"
        folder.remove()
    results.put(lost)


def test_concurrent_runs_keep_each_others_folders(temporary):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    makers = [context.Process(target=make_folders, args=(200, results)) for _ in range(4)]
    for maker in makers:
        maker.start()
    assert [results.get(timeout=PATIENCE) for _ in makers] == [0] * 4
    for maker in makers:
        maker.join()
        assert maker.exitcode == 0
    for folder in temporary.glob("rlr-*"):  # a sweeper that lost a race may leave an empty one for the next
        leftovers.remove_if_abandoned(folder)
    assert not list(temporary.glob("rlr-*"))


@pytest.mark.parametrize("how", ["open", "mapped"])
def test_removes_shared_memory_of_a_descendant_after_its_last_use(start, entry, how):
    watch = SharedMemoryWatch()
    path = entry()
    assert select.select(watch.sources(), [], [], 1)[0], "told of nothing"
    holder, _ = start(HOLDS_AN_ENTRY, str(path), how)
    watch.look()
    watch.remove()
    assert path.exists(), "it is in use"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    watch.remove()
    assert not path.exists()
    assert not select.select(watch.sources(), [], [], 0)[0], "told of the same twice"


def test_keeps_shared_memory_of_other_processes(start, entry, monkeypatch):
    watch = SharedMemoryWatch()
    nobodys, anothers = entry(), entry()
    with monkeypatch.context() as patch:
        patch.setattr(shared_memory, "descendants", lambda pid: frozenset())  # the holder is a stranger
        holder, _ = start(HOLDS_AN_ENTRY, str(anothers), "open")
        watch.look()
    holder.kill()
    holder.wait()
    watch.remove()
    assert nobodys.exists()
    assert anothers.exists()


def test_keeps_shared_memory_from_before_the_run(start, entry):
    path = entry()
    watch = SharedMemoryWatch()
    entry()
    holder, _ = start(HOLDS_AN_ENTRY, str(path), "open")
    watch.look()
    holder.kill()
    holder.wait()
    watch.remove()
    assert path.exists()


def test_recreated_entry_counts_as_new(entry):
    path = entry()
    before = shared_memory.files()
    entry()  # else the file system may hand out the number of the removed file again
    path.unlink()
    path.write_bytes(b"new")
    assert path.name in {entry.name for entry in shared_memory.files() - before}


def test_ignores_entries_of_another_user(entry):
    path = entry()
    with suppress(PermissionError):
        os.chown(path, os.getuid() + 1, -1)
    if path.stat().st_uid == os.getuid():
        pytest.skip("only root can make a file of another user")
    assert path.name not in {entry.name for entry in shared_memory.files()}


def test_finds_the_holder_of_a_renamed_semaphore():
    before = shared_memory.files()
    lock = multiprocessing.get_context("spawn").Lock()
    name = lock._semlock.name.removeprefix("/")
    (made,) = (entry for entry in shared_memory.files() - before if entry.name == f"sem.{name}")
    assert shared_memory.holders([made], [os.getpid()]) == {made: {os.getpid()}}


def test_avoids_a_temporary_folder_too_deep_for_sockets(monkeypatch, tmp_path):
    deep = tmp_path / ("deep" * 12)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    folder = leftovers.session_folder()
    try:
        socket = folder.path / "c123456" / str(uuid.uuid4())  # as vLLM names one in a child's TMPDIR
        socket.parent.mkdir()
        with contextlib.closing(multiprocessing.connection.Listener(str(socket), "AF_UNIX")):
            assert not list(deep.iterdir())
    finally:
        folder.remove()
