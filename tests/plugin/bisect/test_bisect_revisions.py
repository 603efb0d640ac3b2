"""``rlregress bisect --revisions``: real git, real uv, real environments; the checkouts are made here."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from made_trials import make_run

from pytest_rlregress.commands.bisect import checkout
from pytest_rlregress.commands.bisect.checkout import bisect_commits, find_commits, open_worktree
from pytest_rlregress.commands.bisect.releases import EnvironmentContents
from pytest_rlregress.environments import RequestError
from pytest_rlregress.environments.environment import Environment
from pytest_rlregress.environments.uv import Installer
from pytest_rlregress.failures.catalogue import Catalogue
from pytest_rlregress.failures.observations import Observation
from pytest_rlregress.failures.verdicts import Outcome
from pytest_rlregress.stack.locks import Lock
from pytest_rlregress.trials import pytest_run
from pytest_rlregress.trials.context import TrialContext
from pytest_rlregress.trials.pytest_run import TrialRequest
from pytest_rlregress.trials.trial import Progress
from pytest_rlregress.util import git

pytestmark = pytest.mark.slow

PYPROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "tinylib"
version = "1.{number}"
dependencies = [
  "numpy>={number}",
]
"""
# Needs no package, so no index: an editable wheel is a .pth file.
BACKEND = """\
import pathlib, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "tinylib-1-py3-none-any.whl"
    files = {
        "tinylib.pth": str(pathlib.Path("src").resolve()),
        "tinylib-1.dist-info/METADATA": "Metadata-Version: 2.1\\nName: tinylib\\nVersion: 1\\n",
        "tinylib-1.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    record = "".join(f"{file},,\\n" for file in [*files, "tinylib-1.dist-info/RECORD"])
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        for file, text in {**files, "tinylib-1.dist-info/RECORD": record}.items():
            wheel.writestr(file, text)
    return name
"""
PYTHON = Path(sys.executable)
UNBUILDABLE = PYPROJECT.format(number=1).replace('"backend"', '"backend_of_tomorrow"')
GOOD = "def answer():\n    return 42\n"
BAD = "def answer():\n    raise ValueError('no answer')\n"
UNIMPORTABLE = "import tinylib_of_tomorrow\n"
TEST = "import tinylib\n\ndef test_answer():\n    assert tinylib.answer() == 42\n"

#: Where the commits of the history below come from, beside the one before.
PARENTS = {"side": ["3"], "repaired-aside": ["9"], "11": ["10", "side"], "13": ["12"]}
NAMES = [*map(str, range(1, 11)), "side", "11", "12", "13", "repaired-aside"]
CODE = {**dict.fromkeys(["8", "9", "10", "11"], BAD), "4": UNIMPORTABLE, "12": UNIMPORTABLE}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """Commits, tagged: 4 and 12 cannot be imported, 6 cannot be built, 8 breaks, 11 merges, 13 repairs."""
    folder = tmp_path_factory.mktemp("made") / "tinylib"
    stream, tags = [], []
    for mark, name in enumerate(NAMES, 1):
        files = {
            "backend.py": BACKEND,
            "pyproject.toml": UNBUILDABLE if name == "6" else PYPROJECT.format(number=2 if mark >= 8 else 1),
            "src/tinylib/__init__.py": CODE.get(name, GOOD),
            "test_it.py": TEST,
            "notes.txt": name,
            ".gitignore": "__pycache__/\n",
        }
        parents = PARENTS.get(name, [] if name == "1" else [NAMES[mark - 2]])
        lines = [f"commit refs/heads/main\nmark :{mark}\ncommitter A <a@b> {1_700_000_000 + mark * 86_400} +0000"]
        lines += [
            _data(f"Commit {name}"),
            *(f"{'merge' if i else 'from'} :{NAMES.index(p) + 1}" for i, p in enumerate(parents)),
        ]
        lines += ["deleteall", *(f"M 644 inline {file}\n{_data(text)}" for file, text in files.items()), ""]
        stream.append("\n".join(lines))
        tags.append(f"reset refs/tags/{name}\nfrom :{mark}\n")
    last = f"reset refs/heads/main\nfrom :{NAMES.index('13') + 1}\n"
    _git("init", "-q", "-b", "main", str(folder))
    _git("-C", str(folder), "fast-import", "--quiet", "--force", input="\n".join([*stream, *tags, last]))
    _git("-C", str(folder), "reset", "-q", "--hard")
    return folder


def _data(text):
    return f"data {len(text.encode())}\n{text}"


def _git(*arguments, **more):
    return subprocess.run(["git", *arguments], check=True, text=True, capture_output=True, **more).stdout


class Venv:
    """Environments of this environment's packages and the editable one: what a lock holds else is not under test."""

    def __init__(self, folder, installer):
        self._path, self.installer = folder / "venv", installer

    def build(self, lock):
        python, reused = self._path / "bin/python", self._path.exists()
        packages = Path(sysconfig.get_path("purelib", vars={"base": self._path}))
        if not reused:
            self.installer.run("venv", "--python", sys.executable, str(self._path))
            (packages / "here.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
            script = "import sys, pytest\nif __name__ == '__main__':\n    sys.exit(pytest.console_main())\n"
            (self._path / "bin/pytest").write_text(script)
            for line in lock.lines.values():
                if line.startswith("-e "):
                    into = ("--python", str(python), "-e", line[3:])
                    self.installer.pip("install", "--no-deps", *into, files={})
        return Environment(path=self._path, python=python, packages=packages, reused=reused)


class Counted(Installer):
    """uv, with what it was asked to install."""

    installed = 0

    def pip(self, *arguments, **more):
        self.installed += "install" in arguments
        return super().pip(*arguments, **more)


class Bisect:
    """One bisect, as the command makes it, in which nothing is held fixed."""

    def __init__(self, folder):
        self.folder, self.tried = folder, []
        self.installer = Counted({}, True)

    def __call__(self, repo, revisions):
        given = {"repo": repo, "revisions": revisions, "cache_dir": self.folder, "good": None, "all_packages": True}
        limits = {"fresh": False, "repeat": 1, "timeout": 100, "arguments": ["bisect", f"--revisions={revisions}"]}
        request, environments = TrialRequest((str(repo / "test_it.py"),)), Venv(self.folder, self.installer)
        options = SimpleNamespace(**given, **limits)
        return bisect_commits(TrialContext(options, Catalogue(), request, Progress(), environments))

    def quickly(self, python, request, **_):
        """Instead of pytest: what a test comes to, without the seconds that its start takes."""
        code = "import tinylib; tinylib.answer()"
        ended = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
        self.tried.append(Path("notes.txt").read_text())
        outcome = Outcome("passed")
        if ended.returncode:
            name, _, message = ended.stderr.splitlines()[-1].partition(": ")
            outcome = Outcome("failed", exceptions=(name,), message=message)
        return make_run({"test_it.py::test_answer": Observation("test_it.py::test_answer", outcome, outcome.kind)})


@pytest.fixture
def bisect(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(checkout, "select_contents", lambda *_: EnvironmentContents(Lock({}), {}))
    return Bisect(tmp_path)


@pytest.fixture
def quick(bisect, monkeypatch):
    monkeypatch.setattr(pytest_run, "run_tests", bisect.quickly)
    return bisect


def _short(repo, name):
    return _git("-C", str(repo), "rev-parse", name)[:12]


def _state(repo):
    """All of a checkout that a bisect might touch."""
    asked = (["status", "--short", "--branch"], ["worktree", "list"], ["for-each-ref"], ["stash", "list"], ["diff"])
    files = {path.name for path in (repo / ".git").iterdir()} - {"packed-refs"}  # empty, where git looked for one
    return [_git("-C", str(repo), *one) for one in asked], files


def test_finds_the_commit_with_real_runs_and_leaves_the_checkout_alone(bisect, repository):
    (repository / "src/tinylib/__init__.py").write_text("raise SystemExit('the checkout as it is')\n")
    (repository / "untracked").touch()
    before = _state(repository)
    answer = bisect(repository, "7..8")
    (found,) = answer.culprits
    assert _state(repository) == before
    assert not any((bisect.folder / "worktrees").glob("*/"))
    last, first = found.last_good, found.first_bad
    assert (last.title, last.verdict, first.title, first.verdict) == ("Commit 7", "passed", "Commit 8", "failed")
    assert (first.date, first.label) == ("2023-11-22", _short(repository, "8"))
    assert "ValueError: no answer" in first.text
    assert answer.command == ("rlregress", "bisect", f"--revisions={last.label}..{first.label}")
    details = dict(found.details)
    assert "src/tinylib/__init__.py" in details["files changed"]
    assert '-  "numpy>=1",' in details["requirements changed"]
    assert '+  "numpy>=2",' in details["requirements changed"]


def test_finds_the_commit_of_code_on_the_ini_pythonpath(bisect, tmp_path):
    repo = tmp_path / "lab"
    (repo / "mylab").mkdir(parents=True)
    _git("init", "-q", str(repo))
    (repo / "test_it.py").write_text(TEST.replace("tinylib", "mylab"))
    (repo / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    for number, code in enumerate([GOOD, GOOD, BAD, BAD]):
        (repo / "mylab/__init__.py").write_text(f"{code}# {number}\n")
        _git("-C", str(repo), "add", ".")
        _git("-C", str(repo), "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", f"Commit {number}")
    (found,) = bisect(repo, "HEAD~3..HEAD").culprits
    assert (found.last_good.title, found.first_bad.title) == ("Commit 1", "Commit 2")


def test_resumes_an_interrupted_bisect(quick, repository, monkeypatch):
    def interrupted(*arguments, **more):
        if len(quick.tried) == 2:
            raise KeyboardInterrupt
        return quick.quickly(*arguments, **more)

    before, processes = _state(repository), psutil.Process().children()
    monkeypatch.setattr(pytest_run, "run_tests", interrupted)
    with pytest.raises(KeyboardInterrupt):
        quick(repository, "5..9")
    monkeypatch.setattr(pytest_run, "run_tests", quick.quickly)
    assert _state(repository) == before
    assert psutil.Process().children() == processes
    (found,) = quick(repository, "5..9").culprits
    assert (found.last_good.title, found.first_bad.title) == ("Commit 7", "Commit 8")
    assert quick.tried == ["5", "9", "7", "8"]  # ⌈log2 4⌉ + 2, none twice


def test_skips_a_commit_that_cannot_be_installed(quick, repository, capsys):
    (found,) = quick(repository, "3..9").culprits
    assert (found.last_good.title, found.first_bad.title) == ("Commit 7", "Commit 8")
    assert "6" not in quick.tried
    skipped = {one.label.partition(" ")[2]: one.reason for one in found.skipped}
    assert "backend_of_tomorrow" in skipped["Commit 6"]
    assert re.search(r"tinylib \w{12}: unknown \(.*backend_of_tomorrow", capsys.readouterr().err)


def test_untestable_commits_narrow_the_answer_to_a_set(quick, repository):
    (culprit,) = quick(repository, "13..9").culprits  # the bad end is the older one: which commit repaired it?
    assert (culprit.last_good.title, culprit.first_bad.title, culprit.repaired) == ("Commit 13", "Commit 11", True)
    (between,) = culprit.between
    assert between.label.endswith(" Commit 12")
    assert between.reason.startswith("fails otherwise: ModuleNotFoundError")
    assert culprit.skipped == ()
    assert dict(culprit.details)["a merge, and how to go into it"] == "--revisions {0}^1..{0}^2".format(
        _short(repository, "11")
    )


def test_rejects_code_imported_from_outside_the_checkout(quick, repository, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(repository / "src"))
    why = quick(repository, "7..8").not_found
    assert why.kind == "untested end"
    assert re.search(r"tinylib would be imported from .*/made\d/tinylib/src/.*: see PYTHONPATH", why.reason)
    assert quick.tried == []


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("7", "not of the form GOODREV..BADREV"),
        ("7...8", "not of the form GOODREV..BADREV"),
        ("7..--all", "not of the form GOODREV..BADREV"),
        ("7..7", r"both are \w{12}, so"),
        ("7..main~99", "has no revision 'main~99'$"),
        ("side..9", r"on two branches, which come from \w{12}\. If .* ask with \w{12}\.\.9$"),
    ],
)
def test_rejects_bad_revisions(repository, spec, reason):
    with pytest.raises(RequestError, match=reason):
        find_commits(repository, spec)


def test_rejects_a_bad_checkout(repository, tmp_path, monkeypatch):
    with pytest.raises(RequestError, match=r"--repo .*/missing: no such folder"):
        find_commits(tmp_path / "missing", "7..8")
    with pytest.raises(RequestError, match=r"no git checkout .*not a git repository"):
        find_commits(tmp_path, "7..8")
    _git("clone", "-q", "--depth=1", f"file://{repository}", str(tmp_path / "shallow"))
    with pytest.raises(RequestError, match=r"no revision '7'; it is a shallow clone: git fetch --unshallow"):
        find_commits(tmp_path / "shallow", "7..main")
    git._of_a_repository.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RequestError, match="git was not found on the PATH"):
        find_commits(repository, "7..8")


def test_removes_only_the_worktree_of_a_killed_bisect(repository, tmp_path):
    theirs = tmp_path / "on a drive that is not mounted"
    _git("-C", str(repository), "worktree", "add", "-q", "--detach", str(theirs), "1")
    theirs.rename(tmp_path / "away")
    before = _state(repository)
    code = (
        "import sys, time; from pathlib import Path; from pytest_rlregress.commands.bisect import checkout\n"
        "with checkout.open_worktree(*map(Path, sys.argv[1:]), '1') as path: print(path, flush=True); time.sleep(60)"
    )
    folder = tmp_path / "worktrees"
    with subprocess.Popen([sys.executable, "-c", code, repository, folder], stdout=subprocess.PIPE, text=True) as other:
        path = Path(other.stdout.readline().strip())
        running = pytest.raises(RequestError, match="another bisect of it is running")
        with running, open_worktree(repository, folder, "1"):
            pass
        other.kill()
    assert path.exists()
    _git("-C", str(repository), "worktree", "lock", str(path))  # as one that was killed while it was made
    with open_worktree(repository, folder, "2") as again:
        assert again == path
        assert (path / "notes.txt").read_text() == "2"
    assert not path.exists()
    assert _state(repository) == before
    _git("-C", str(repository), "worktree", "prune")


def test_ignores_the_git_variables_of_a_hook(repository, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    assert find_commits(repository, "7..8")[0] == repository


def test_checking_out_a_commit_removes_files_of_the_previous_one(repository, tmp_path):
    with open_worktree(repository, tmp_path, "7") as path:
        bytecode = path / "src/tinylib/__pycache__/__init__.cpython-311.pyc"
        for file in (bytecode, path / "left/behind.txt"):
            file.parent.mkdir()
            file.touch()
        (path / "notes.txt").write_text("changed")
        checkout.check_out(path, "8")
        assert (path / "notes.txt").read_text() == "8"
        assert not bytecode.exists()
        assert git.git(path, "status", "--short") == ""


def test_packages_of_the_checkout_come_from_the_worktree(repository, tmp_path):
    built, environment = [], SimpleNamespace(python=PYTHON, reused=False)
    environments = SimpleNamespace(build=lambda lock: built.append(lock) or environment)
    lines = {"tinylib": "tinylib==1", "sibling": f"-e {repository / 'sibling'}", "other": f"-e {tmp_path}"}
    tests = (f"{repository}/test_it.py::test_answer", f"{tmp_path}/test_mine.py")
    _, commits, _ = find_commits(repository, "7..8")
    with open_worktree(repository, tmp_path, "7") as path:
        builder = checkout.CommitBuilder(environments, repository, path, path, "tinylib", Lock(lines))
        request = builder.move_request(TrialRequest(tests))
        assert request.arguments == (f"{path}/test_it.py::test_answer", f"{tmp_path}/test_mine.py")
        assert request.options == (f"--rootdir={path}",)
        assert builder.move_request(TrialRequest(tests[1:])) == TrialRequest(tests[1:])
        builder.build(builder.candidate(commits[1]).lock())
        assert (path / "notes.txt").read_text() == "8"
    moved = {"tinylib": f"-e {path}", "sibling": f"-e {path / 'sibling'}", "other": f"-e {tmp_path}"}
    assert built[0].lines == moved
