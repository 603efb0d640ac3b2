"""Only the encoding of the streams is changed."""


def test_changes_the_encoding_alone(subject):
    before = {"PATH": "/bin", "PYTHONPATH": "/src", "PYTHONIOENCODING": "gbk"}
    environ = dict(before)
    after = subject(environ)
    assert environ == before, "the caller's environment was changed"
    assert {name: after[name] for name in ("PATH", "PYTHONPATH")} == {"PATH": "/bin", "PYTHONPATH": "/src"}
