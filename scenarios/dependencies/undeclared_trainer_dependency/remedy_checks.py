"""What is installed, what verl declares, and verl's own absence are no reason for advice."""

import sys

from pytest_rlregress.scenarios.dependencies import wheel_index
from pytest_rlregress.scenarios.dependencies.left_out import leave_out
from pytest_rlregress.scenarios.dependencies.undeclared_trainer_dependency.test_undeclared_trainer_dependency import (
    OTHERS,
    SWANLAB,
    for_settings,
)


def test_what_is_installed_is_looked_for_and_not_imported(subject, monkeypatch, tmp_path):
    wheel = wheel_index.wheel(tmp_path, "swanlab", "0.7.0", files={"swanlab/__init__.py": "raise OSError"})
    wheel_index.put_in_front(monkeypatch, wheel, "swanlab")
    assert for_settings(subject(SWANLAB)) == []
    assert "swanlab" not in sys.modules


def test_declared_packages_need_no_advice(subject, monkeypatch, tmp_path):
    leave_out(monkeypatch, tmp_path / "rest", "swanlab", "swanlab-*.dist-info")
    requires = ["Swanlab>=0.7", 'trackio; extra == "track"']
    monkeypatch.syspath_prepend(str(wheel_index.wheel(tmp_path, "verl", "99.0", requires)))
    assert for_settings(subject(SWANLAB)) == []
    [advice] = for_settings(subject(OTHERS[0][0]))
    assert advice.why.endswith("verl 99.0 does not declare it outside of its extra track")
