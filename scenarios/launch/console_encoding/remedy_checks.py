"""Only the encoding of the streams is changed."""

from __future__ import annotations


def test_the_rest_of_the_environment(subject):
    before = {"PATH": "/bin", "PYTHONPATH": "/src", "PYTHONIOENCODING": "gbk"}
    environ = dict(before)
    after = subject(environ)
    assert environ == before, "the caller's environment was changed"
    assert {name: after[name] for name in ("PATH", "PYTHONPATH")} == {"PATH": "/bin", "PYTHONPATH": "/src"}
