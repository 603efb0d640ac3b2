"""Which lines of a trainer run without a condition, and which the trainer expects to fail."""

import pytest
from made_wheels import make_wheel, open_releases

from pytest_rlregress.commands.moved.checker import Diagnostic, read_diagnostics
from pytest_rlregress.commands.moved.conditions import Conditions, Seen
from pytest_rlregress.commands.moved.wheels import TRAINER

SOURCE = """
import vllm
from packaging import version
from vllm.a import plain
try:
    from vllm.a import caught
except ImportError:
    from vllm.a import instead
try:
    from vllm.a import raised
except ImportError as error:
    raise ImportError("no") from error
try:
    from vllm.a import Flag
    HAS_FLAG = True
except ImportError:
    HAS_FLAG = False


def always(engine):
    engine.call(gone=1)


def asks(engine):
    if hasattr(engine, "call"):
        engine.call(asked=1)
    if HAS_FLAG:
        engine.call(flagged=1)
    if engine.mode == 2:
        engine.call(by_mode=1)
    try:
        engine.call(tried=1)
    except TypeError:
        engine.call(again=1)
    try:
        engine.call(swallowed=1)
    except Exception as error:
        print(error)


def leaves(engine):
    if not supports_version(engine):
        return
    engine.call(after=1)


def old_only(engine):
    engine.call(old=1)


def new_only(engine):
    engine.call(new=1)


if version.parse(vllm.__version__) >= version.parse("2.0"):
    new_only(1)
else:
    old_only(1)
"""


@pytest.fixture
def conditions(tmp_path):
    make_wheel(tmp_path, "trl", "9001.0", {"trl/a.py": SOURCE})
    return Conditions(open_releases(tmp_path, links=[tmp_path]).read("trl", "9001.0", TRAINER), "vllm")


def find(conditions, word, rule="unknown-argument", failing=()):
    line = next(at for at, text in enumerate(SOURCE.splitlines(), 1) if word in text)
    return conditions.find(Diagnostic("trl/a.py", line, rule, ""), Seen("2.0", failing))


@pytest.mark.parametrize(
    ("word", "rule"),
    [
        ("import plain", "missing-module-member"),
        ("import raised", "missing-module-member"),  # what catches it raises again
        ("gone=1", "unknown-argument"),
        ("by_mode=1", "unknown-argument"),  # a condition, but not on the package
        ("swallowed=1", "unknown-argument"),  # the call fails, whoever logs it
        ("new=1", "unknown-argument"),  # this release takes that branch
    ],
)
def test_a_line_without_a_guard(conditions, word, rule):
    assert not find(conditions, word, rule)


@pytest.mark.parametrize(
    ("word", "rule", "says"),
    [
        ("import caught", "missing-module-member", "ImportError is caught"),
        ("import instead", "import-not-found", "only after ImportError"),
        ("asked=1", "unknown-argument", "if hasattr(engine, 'call')"),
        ("flagged=1", "unknown-argument", "if HAS_FLAG"),
        ("tried=1", "unknown-argument", "TypeError is caught"),
        ("after=1", "unknown-argument", "unless not supports_version(engine)"),
        ("old=1", "unknown-argument", "old_only is called under a condition"),
    ],
)
def test_a_line_that_is_guarded(conditions, word, rule, says):
    assert find(conditions, word, rule) == says


def test_an_import_that_replaces_another_counts_if_both_fail(conditions):
    line = next(at for at, text in enumerate(SOURCE.splitlines(), 1) if "import caught" in text)
    assert not find(conditions, "import instead", "import-not-found", failing={("trl/a.py", line)})


def test_reads_where_what_is_called_is_declared(tmp_path):
    text = """\
error[unknown-argument]: Argument `x` does not match any known parameter of function `f`
  --> release-1/trl/a.py:3:4
   |
3  | f(x=1)
   |   ^^^
info: Function signature here
  --> release-2/vllm/b.py:7:5

warning[possibly-missing-attribute]: Attribute `y` may be missing
  --> release-1/trl/a.py:5:4

error[missing-attribute]: Object of type `A` has no attribute `z`
  --> release-1/trl/a.py:9:4
"""
    found = [*read_diagnostics(text, tmp_path, tmp_path / "release-1", tmp_path / "release-2")]
    assert [(one.path, one.line, one.rule, one.declared) for one in found] == [
        ("trl/a.py", 3, "unknown-argument", "vllm/b.py"),
        ("trl/a.py", 9, "missing-attribute", ""),
    ]
