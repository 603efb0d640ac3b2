"""The installed stack, after whatever installers did to it, has what its packages require."""

from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pytest_rlregress.failures.act import act
from pytest_rlregress.stack import COMPONENTS


def broken_requirements(names):
    """Return what these distributions require of installed ones and don't have; a missing package breaks nothing."""
    installed = {}
    for distribution in metadata.distributions():
        installed.setdefault(canonicalize_name(distribution.metadata["Name"] or ""), distribution)
    for name in installed.keys() & set(names):
        for requirement in map(Requirement, installed[name].requires or []):
            other = installed.get(canonicalize_name(requirement.name))
            wanted = not requirement.marker or requirement.marker.evaluate({"extra": ""})
            if wanted and other and not requirement.specifier.contains(other.version, prereleases=True):
                yield f"{name} {installed[name].version} requires {requirement}, {other.version} is installed"


@pytest.mark.guards("install-moves-pins", fidelity="real")
def test_the_installed_stack_is_consistent():
    components = {name for component in COMPONENTS.values() for name in component.distributions}
    with act():
        assert not list(broken_requirements(components))
