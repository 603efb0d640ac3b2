"""Look-ups and products by themselves, in this process or each in a child of its own."""

import ctypes
import faulthandler
import math
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from pytest_rlregress.containment.post_mortem import find_copies
from pytest_rlregress.stack.lazy import torch

#: Where the products are that were documented.
DEVICE = "cuda"


@dataclass(frozen=True)
class Product:
    """A product of ``(rows, inner)`` and ``(inner, outer)``.

    Attributes:
        way: "matmul"; "linear", a layer with a bias, which torch sends to cublasLt itself; or
            "head", a layer without one.
    """

    rows: int
    inner: int
    outer: int
    dtype: str
    way: str


#: Those that were reported to divide by zero, and the head of a 7B for 1, 8 and 256 tokens.
PRODUCTS = {
    "2x1024x18432-linear": Product(2, 1024, 18432, "bfloat16", "linear"),
    "2x1024x18432-matmul": Product(2, 1024, 18432, "bfloat16", "matmul"),
    "64x14688x1536-linear": Product(64, 14688, 1536, "float16", "linear"),
    "64x14688x1536-matmul": Product(64, 14688, 1536, "float16", "matmul"),
    "8x1024x4096-linear": Product(8, 1024, 4096, "bfloat16", "linear"),
    "8x1024x4096-matmul": Product(8, 1024, 4096, "bfloat16", "matmul"),
    "head-1": Product(1, 3584, 152064, "bfloat16", "head"),
    "head-8": Product(8, 3584, 152064, "bfloat16", "head"),
    "head-256": Product(256, 3584, 152064, "bfloat16", "head"),
}


def draw_hidden(product, device):
    """Return random states for a product, which no ids had a part in."""
    dtype = getattr(torch, product.dtype)
    return torch.randn(product.rows, product.inner, device=device, dtype=dtype)


def look_up(product, device, *, strided):
    """Look rows of an embedding up, by every second id of a tensor or by a contiguous copy."""
    options = {"device": device, "dtype": getattr(torch, product.dtype)}
    ids = torch.arange(2 * product.rows, device=device)[::2]
    table = torch.nn.Embedding(2 * product.rows, product.inner, **options)
    return table(ids if strided else ids.contiguous())


def multiply(product, hidden):
    """Multiply hidden states of ``(rows, inner)`` by random weights."""
    options = {"device": hidden.device, "dtype": hidden.dtype}
    if product.way == "matmul":
        return hidden @ torch.randn(product.inner, product.outer, **options)
    layer = torch.nn.Linear(product.inner, product.outer, bias=product.way == "linear", **options)
    return layer(hidden)


def look_up_and_multiply(product, device, *, strided=False):
    """Multiply what was looked up."""
    return multiply(product, look_up(product, device, strided=strided))


def report_sum(what, made):
    """Print a sum, which the device has to be done for, and the libcublasLt that is mapped here."""
    total = made.float().sum().item()
    assert math.isfinite(total), f"{what}: the sum is {total}"
    copies = find_copies(Path("/proc/self/maps").read_text())
    mapped = [f"{key[1]} {key[2]}" for key in copies if key[0] == "libcublasLt"]
    print(f"{what}: sum {total:.6g}, libcublasLt {', '.join(mapped) or 'not mapped'}")


#: What a child can do with a product, by the name that a table of exit codes has for it.
ACTS = {
    "look-up, strided": lambda product, device: look_up(product, device, strided=True),
    "look-up, contiguous": lambda product, device: look_up(product, device, strided=False),
    "product": lambda product, device: multiply(product, draw_hidden(product, device)),
    "both, strided": lambda product, device: look_up_and_multiply(product, device, strided=True),
    "both, contiguous": lambda product, device: look_up_and_multiply(product, device),
}


def do_act(name, act, device):
    """Do an act with one of the products, in a child."""
    torch.set_num_threads(1)  # a pool of threads does not come through a fork
    with torch.inference_mode():
        report_sum(f"{name}, {act}", ACTS[act](PRODUCTS[name], device))


def use(device):
    """Use a device, in a child, without a look-up or a product."""
    assert torch.ones(1, device=device).item() == 1


def divide_by_zero():
    """Divide integers by zero in libc; without a stack, which would look like that of an act."""
    faulthandler.disable()
    ctypes.CDLL(None).div(1, 0)


def find_exit_code(function, *arguments):
    """Call a function in a forked child; return its exit code, or a signal's negative number."""
    # No CUDA has begun in this process.
    process = get_context("fork").Process(target=function, args=arguments)
    process.start()
    process.join()
    return process.exitcode
