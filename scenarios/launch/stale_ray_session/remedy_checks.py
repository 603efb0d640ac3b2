"""An address at which nobody answers is named, with the place that it comes from."""

import socket
from contextlib import closing
from pathlib import Path

import pytest


def remember(temporary, address):
    (temporary / "ray").mkdir()
    file = temporary / "ray" / "ray_current_cluster"
    file.write_text(address)
    return file


@pytest.mark.parametrize("written", ["{}", "ray://{}"])
@pytest.mark.parametrize("variable", ["RAY_TMPDIR", "TMPDIR"])
def test_an_address_that_is_gone_is_named(subject, temporary, closed, written, variable):
    address = written.format(closed)
    file = remember(temporary, f"{address}\n")
    for chosen in ({}, {"RAY_ADDRESS": ""}, {"RAY_ADDRESS": "auto"}):
        environ = {variable: str(temporary), **chosen}
        before = dict(environ)
        assert subject(environ) == f"{address}, as {file} says"
        assert environ == before
    assert subject({"RAY_ADDRESS": address}) == f"{address}, as RAY_ADDRESS says"
    assert file.read_text() == f"{address}\n"


def test_what_does_not_fail_is_left_alone(subject, temporary, closed):
    assert subject({"RAY_TMPDIR": str(temporary)}) is None
    remember(temporary, closed)
    assert subject({"RAY_TMPDIR": str(temporary), "RAY_ADDRESS": "local"}) is None
    elsewhere = str(Path(temporary, "elsewhere"))
    assert subject({"RAY_TMPDIR": elsewhere, "TMPDIR": str(temporary)}) is None
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert subject({"RAY_TMPDIR": str(temporary), "RAY_ADDRESS": address}) is None
        (temporary / "ray" / "ray_current_cluster").write_text(address)
        assert subject({"RAY_TMPDIR": str(temporary)}) is None
        assert subject({"RAY_TMPDIR": str(temporary), "RAY_ADDRESS": closed}) == f"{closed}, as RAY_ADDRESS says"
