"""What an upgrade of everything resolves to, by a real uv over a folder of wheels."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

from pytest_rlregress.commands.environments.environment import Environments
from pytest_rlregress.commands.upgrade import plan
from pytest_rlregress.scenarios.dependencies.wheel_index import wheel
from pytest_rlregress.stack.locks import Lock

RELEASES = {
    "tool": {"1": (), "2rc1": ()},
    "thing": {"1": ("tool>=1",), "2": ("tool>=2rc1",)},
    "early": {"1rc1": (), "1rc2": ()},
    "other": {"1": (), "2": ()},
}
HERE = Lock({"tool": "tool==1", "thing": "thing==1", "early": "early==1rc1", "other": "other==1"})


@pytest.mark.process
@pytest.mark.parametrize(
    ("pre", "moved"),
    [(False, {"other": "2"}), (True, {"other": "2", "tool": "2rc1", "thing": "2", "early": "1rc2"})],
)
def test_all_takes_a_pre_release_only_where_that_is_allowed(tmp_path, monkeypatch, pre, moved):
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    for name, versions in RELEASES.items():
        for version, requires in versions.items():
            wheel(tmp_path, name, version, requires, files={f"{name}.py": ""})
    settings = {"UV_FIND_LINKS": str(tmp_path)}
    environments = Environments(tmp_path / "environments", settings=settings, offline=True)
    context = SimpleNamespace(environments=environments, options=SimpleNamespace(pre=pre))
    requires = {name: tuple(map(Requirement, RELEASES[name][HERE.version(name)])) for name in HERE.lines}
    pins = plan.Pins({}, frozenset(HERE.lines), (), plan.find_floors(HERE, ()), requires)
    found = plan.resolve(context, HERE, pins)
    assert {name: found.version(name) for name in found.lines if found.lines[name] != HERE.lines[name]} == moved
