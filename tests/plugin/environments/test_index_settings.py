"""Where packages come from: what uv and pip are configured with, and that the real ones see the same."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from patience import PATIENCE

from pytest_rlregress.environments import RequestError, uv
from pytest_rlregress.scenarios.dependencies.wheel_index import wheel


@pytest.fixture
def home(tmp_path):
    """A home for configurations, and the variables that make it this process' own and leave out the machine's."""
    home = tmp_path / "home"

    def write(path, text):
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
        return str(home / path)

    nothing = write(
        "none.conf", "[global]\nindex-url = https://none.example/simple\nextra-index-url =\nfind-links =\ncert =\n"
    )
    environ = {"HOME": str(home), "XDG_CONFIG_DIRS": str(home / "etc"), "PIP_CONFIG_FILE": nothing}
    return write, environ


PIP_CONF = """\
[global]
index-url = https://me:hunter2@a.example/simple
cert = /a.pem
[install]
extra-index-url =
    https://b.example/simple
    https://c.example/simple
find-links = ~/wheels https://d.example/flat.html
"""


def test_reads_the_settings_of_pip(home):
    write, environ = home
    settings = uv.read_settings({**environ, "PIP_CONFIG_FILE": write("pip.conf", PIP_CONF)})
    url = "https://me:hunter2@a.example/simple"
    assert settings == {
        "UV_DEFAULT_INDEX": url,
        "UV_INDEX": "https://b.example/simple https://c.example/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "https://d.example/flat.html",  # the folder is not there
        "SSL_CERT_FILE": "/a.pem",
    }


def test_pip_variables_override_pip_files(home):
    write, environ = home
    environ |= {"PIP_CONFIG_FILE": write("pip.conf", PIP_CONF), "PIP_EXTRA_INDEX_URL": "https://e.example/simple"}
    settings = uv.read_settings(environ)
    assert settings["UV_INDEX"] == "https://e.example/simple"
    assert settings["UV_DEFAULT_INDEX"] == "https://me:hunter2@a.example/simple"
    without = uv.read_settings({**environ, "PIP_NO_INDEX": "1"})
    assert without["UV_DEFAULT_INDEX"] == "file:///nonexistent"


def test_nearest_pip_file_wins(home, tmp_path, monkeypatch):
    write, environ = home
    named = environ.pop("PIP_CONFIG_FILE")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    for path in (".pip", ".config/pip"):
        write(f"{path}/pip.conf", f"[global]\nindex-url = https://{path[1:4]}.example/simple\n")
    assert uv.read_settings(environ)["UV_DEFAULT_INDEX"] == "https://con.example/simple"
    (tmp_path / "pip.conf").write_text("[global]\nindex_url = https://site.example/simple\n")
    assert uv.read_settings(environ)["UV_DEFAULT_INDEX"] == "https://site.example/simple"
    settings = uv.read_settings({**environ, "PIP_CONFIG_FILE": named})
    assert settings["UV_DEFAULT_INDEX"] == "https://none.example/simple"


def test_uses_the_public_index_by_default(home):
    _, environ = home
    assert uv.read_settings({**environ, "PIP_CONFIG_FILE": os.devnull}) == {}


def test_settings_of_uv_override_those_of_pip(home):
    write, environ = home
    write(".config/uv/uv.toml", 'index-url = "https://file.example/simple"\n')
    environ |= {"PIP_CONFIG_FILE": write("pip.conf", PIP_CONF)}
    from_file = uv.read_settings(environ)
    assert from_file == {"UV_FIND_LINKS": "https://d.example/flat.html", "SSL_CERT_FILE": "/a.pem"}
    environ |= {"UV_FIND_LINKS": "/x y", "SSL_CERT_FILE": "/uv.pem"}
    assert uv.read_settings(environ) == {}
    alone = uv.read_settings({**environ, "UV_NO_CONFIG": "1"})
    assert alone["UV_DEFAULT_INDEX"] == "https://me:hunter2@a.example/simple"


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("", set()),
        ('cache-dir = "/x"', set()),
        ('extra-index-url = ["https://b.example/simple"]', {"indexes"}),
        ('[[index]]\nurl = "https://c.example/simple"', {"indexes"}),
        ("[pip]\nno-index = true", {"indexes"}),
        ('[pip]\nfind-links = ["/x"]', {"find-links"}),
    ],
)
def test_settings_in_the_uv_file_override_those_of_pip(home, text, known):
    write, environ = home
    environ |= {"PIP_CONFIG_FILE": write("pip.conf", PIP_CONF), "UV_CONFIG_FILE": write("mine.toml", text)}
    given = uv.read_settings(environ)
    left = {"indexes": "UV_DEFAULT_INDEX", "find-links": "UV_FIND_LINKS"}
    assert {one for one, variable in left.items() if variable not in given} == known


@pytest.mark.parametrize("variable", ["PIP_CONFIG_FILE", "UV_CONFIG_FILE"])
def test_rejects_an_unreadable_configuration(home, variable):
    write, environ = home
    with pytest.raises(RequestError, match=r"no configuration that (pip|uv) could read: "):
        uv.read_settings({**environ, variable: write("odd.conf", "nonsense")})


@pytest.fixture
def places(tmp_path):
    """Two indexes and a folder of links: ``app`` is in both indexes, what it needs in the folder."""
    for name, version in (("one", "1.0"), ("two", "2.0")):
        page = tmp_path / name / "app"
        page.mkdir(parents=True)
        file = wheel(page, "app", version, ["dep"])
        (page / "index.html").write_text(f'<a href="{file.name}">{file.name}</a>')
    (tmp_path / "links").mkdir()
    wheel(tmp_path / "links", "dep", "3.0")
    return [(tmp_path / name).as_uri() for name in ("one", "two")] + [str(tmp_path / "links")]


def ran(*command, **variables):
    """What a command says with only these settings of uv and pip."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_", "XDG_"))}
    done = subprocess.run(
        command, env={**kept, **variables}, input="app", capture_output=True, text=True, timeout=PATIENCE
    )
    return done.stdout + done.stderr


def resolved(tmp_path, **variables):
    from uv import find_uv_bin

    options = ("--offline", "--no-header", "--no-annotate", "--quiet", "--cache-dir", str(tmp_path / "uv"))
    return ran(find_uv_bin(), "pip", "compile", *options, "--python", sys.executable, "-", **variables).split()


def test_uv_resolves_from_what_pip_is_configured_with(home, places, tmp_path):
    write, environ = home
    one, two, folder = places
    text = f"[global]\nindex-url = {two}\nextra-index-url = {one}\nfind-links = {folder} /not/there\n"
    settings = uv.read_settings({**environ, "PIP_CONFIG_FILE": write("pip.conf", text)})
    assert resolved(tmp_path, HOME=environ["HOME"], **settings) == ["app==2.0", "dep==3.0"]
    # Untold, it knows nothing of that.
    assert "app==2.0" not in resolved(tmp_path, HOME=environ["HOME"])
    no_index = uv.read_settings({**environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": f"{folder} {one[7:]}/app"})
    assert resolved(tmp_path, HOME=environ["HOME"], **no_index) == ["app==1.0", "dep==3.0"]


def test_reads_uv_settings_as_uv_does(home, places, tmp_path):
    write, environ = home
    one, two, folder = places
    text = f'find-links = ["{folder}"]\n[[index]]\nurl = "{one}"\n[[index]]\nurl = "{two}"\ndefault = true\n'
    write(".config/uv/uv.toml", text)
    for variables, expected in (({}, "1.0"), ({"UV_INDEX": two}, "2.0")):
        settings = uv.read_settings({**environ, **variables})
        assert settings == {}
        assert resolved(tmp_path, HOME=environ["HOME"], **variables) == [f"app=={expected}", "dep==3.0"]


@pytest.mark.skipif(find_spec("pip") is None, reason="there is no pip here")
def test_reads_the_same_files_as_pip(home, places, tmp_path):
    write, environ = home
    one, two, folder = places
    write(".config/pip/pip.conf", "[global]\nindex-url = https://user.example/simple\n")  # not read beside a named file
    environ["PIP_CONFIG_FILE"] = write(
        "pip.conf", f"[global]\nindex-url = {one}\nfind-links = /g\n[install]\nfind-links =\n  {folder}\n"
    )
    environ |= {"PIP_EXTRA_INDEX_URL": two}
    settings = uv.read_settings(environ)
    said = ran(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--dry-run", "app", **environ)
    assert f"Looking in indexes: {one}, {two}" in said
    assert f"Looking in links: {folder}" in said
    found = (settings[name] for name in ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS"))
    assert (*found,) == (one, two, folder)
    assert "Would install app-2.0 dep-3.0" in said
