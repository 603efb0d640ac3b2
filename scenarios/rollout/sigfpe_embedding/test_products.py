"""Products without any ids, and a table of exit codes that tells ids from products."""

import platform
from pathlib import Path

import pytest
from packaging.version import Version

from pytest_rlregress.containment.post_mortem import find_copies
from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.rollout.sigfpe_embedding import acts, exit_codes
from pytest_rlregress.stack.lazy import torch

GPU = pytest.mark.hw(capability=">=8.0")
#: The first nvidia-cublas-cu12 that was reported as a cure.
CURED = Version("12.3.4.1")
#: What is swept: five children each.
SWEPT = ["2x1024x18432-linear", "64x14688x1536-matmul", "8x1024x4096-matmul", "head-8"]


def control_code():
    """Return how a child ends that divides by zero."""
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip(f"needs x86_64, which traps a division by zero: this is {platform.machine()}")
    return acts.find_exit_code(acts.divide_by_zero)


def is_cured():
    """Return whether each libcublasLt that this process has mapped is of the cure or later."""
    copies = find_copies(Path("/proc/self/maps").read_text())
    versions = [version for family, version, _ in copies if family == "libcublasLt"]
    return bool(versions) and all(version and Version(version) >= CURED for version in versions)


def find_exit_codes(name, device):
    """Do each act with a product in a child of its own."""
    return {one: acts.find_exit_code(acts.do_act, name, one, device) for one in acts.ACTS}


def check_table(names, device):
    """Print the exit codes of the acts with these products, and check what they say."""
    control = control_code()
    assert torch.ones(1)  # torch is imported once, here, and not in each child
    used = acts.find_exit_code(acts.use, device)
    assert used == 0, f"{device} can't be used: a child that only counts to one ended with {used}"
    with act():
        rows = {name: find_exit_codes(name, device) for name in names}
    table = exit_codes.render_table(rows, control)
    print(table)
    found = exit_codes.find_contradictions(rows, control, cured=is_cured())
    assert not found, "\n".join([*found, table])


@GPU
@pytest.mark.isolated
@pytest.mark.reproduces("sigfpe-embedding")
@pytest.mark.parametrize("name", acts.PRODUCTS)
def test_product(name):
    control = control_code()
    assert control == exit_codes.SIGFPE, f"control: {control}; a product that lives says nothing"
    product = acts.PRODUCTS[name]
    hidden = acts.draw_hidden(product, acts.DEVICE)
    with act():
        acts.report_sum(name, acts.multiply(product, hidden))


@GPU
@pytest.mark.isolated
@pytest.mark.guards("sigfpe-embedding")
@pytest.mark.needs("torch")
def test_exit_codes():
    check_table(SWEPT, acts.DEVICE)


@pytest.mark.isolated
@pytest.mark.guards("sigfpe-embedding", fidelity="stand-in")
@pytest.mark.needs("torch")
def test_exit_codes_on_a_processor():
    """The same children where no cuBLAS is: none may die, and the control must."""
    check_table(["8x1024x4096-matmul"], "cpu")
