"""A run with an odd value of a setting, by the environment: a run, or one sentence; never a traceback."""

from __future__ import annotations

import pytest

from pytest_rlregress.harness.settings import OPTIONS

ODD = {
    "empty": "",
    "not a number": "nan",
    "huge": "1e308",
    "very long": "9" * 5000,
    "control": "\x1b[31mred",
    "two lines": "a\nb",
    "not text": "\udcff",
    "nobody's home": "~" + "x" * 300,
    "a URL": "http://[::1",
    "a device": "/dev/null",
    "memory": "/proc/self/mem",
    "code": "math_scores = os:system",
    "commas": ",,",
}


@pytest.fixture
def answered(pytester, run, monkeypatch):
    """Run a test with a variable of the environment; see that it is answered, and return the exit code."""

    def answered(name, value, body="def test_it(): pass", *options, here=True):
        monkeypatch.setenv(name, value)
        result = run(body, "-p", "no:cacheprovider", "test_it.py", *options, here=here)
        said = result.stdout.str() + result.stderr.str()
        assert "Traceback" not in said
        assert "INTERNALERROR" not in said
        assert all(sign.isprintable() or sign in "\n\t\r" for sign in said), ascii(said)[-800:]
        assert len(said) < 5000
        assert result.ret in (0, 1, 4), said
        if result.ret == 4:
            assert len([line for line in result.errlines if line.strip()]) == 1, said
        return result.ret

    return answered


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_odd_value_is_answered(answered, option):
    for value in ODD.values():
        answered(option.env, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RLREGRESS_TIMEOUT", "1e308"),
        ("RLREGRESS_TIMEOUT", "inf"),
        ("RLREGRESS_STALL", "1e308"),
        ("RLREGRESS_MEMORY", "999999999GiB"),
        ("RLREGRESS_CACHE_DIR", "/dev/null/x"),
        ("RLREGRESS_CACHE_DIR", "/proc"),
        ("RLREGRESS_CACHE_DIR", "\x1b[31mred"),
    ],
)
def test_contained_test_runs_with_the_largest_values(answered, name, value):
    body = "import pytest\n@pytest.mark.isolated\ndef test_it(): pass\n"
    assert answered(name, value, body, here=False) == 0


PLUGINS = (
    "assertion cacheprovider capture debugging doctest faulthandler junitxml logging monkeypatch pastebin randomly "
    "recwarn rlregress setuponly skipping stepwise terminal threadexception tmpdir unittest unraisableexception "
    "warnings xdist"
)


@pytest.mark.slow
@pytest.mark.parametrize("plugin", PLUGINS.split())
def test_runs_without_a_plugin_of_pytests(answered, plugin):
    body = "import pytest\n@pytest.mark.isolated\ndef test_it(): print('said')\ndef test_other(): pass\n"
    assert answered("RLREGRESS_TIMEOUT", "600", body, "-p", f"no:{plugin}", here=False) == 0
