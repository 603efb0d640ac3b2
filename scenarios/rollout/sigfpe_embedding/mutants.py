import ctypes
import sys

from mutants import failing, mutant, replaces
from pytest_rlregress.scenarios.rollout.sigfpe_embedding import acts


def read_storage(tensor):
    """What a kernel reads that ignores strides: contiguous rows from the first number on."""
    room = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    flat = tensor.as_strided((room,), (1,))
    return flat.repeat(-(-tensor.numel() // room))[: tensor.numel()].view(tensor.shape)


def look_up_storage(original, ids, *more, **named):
    return original(read_storage(ids), *more, **named)


LOOK_UP = "torch.nn.functional.embedding"


@replaces("regressed", LOOK_UP, only="test_transformers_model")
def transformers_ignores_strides(original, *arguments, **named):
    return look_up_storage(original, *arguments, **named)


@replaces("regressed", LOOK_UP, only="test_engine_model")
def engine_ignores_strides(original, *arguments, **named):
    return look_up_storage(original, *arguments, **named)


@replaces("regressed", LOOK_UP, only="test_strided_batch_trains_alike")
def step_ignores_strides(original, *arguments, **named):
    return look_up_storage(original, *arguments, **named)


@replaces("regressed", "verl.workers.utils.padding.unpad_input", only="test_verl_feeds_its_model")
def unpadding_ignores_strides(original, ids, mask, *more):
    return original(read_storage(ids), mask, *more)


@mutant("regressed", only="test_server_sends_integers")
def server_sends_tensors(monkeypatch):
    from pytest_rlregress.scenarios.rollout.sigfpe_embedding import test_sent_by_verl

    load = test_sent_by_verl.load_server_class

    def load_altered():
        server_class = load()
        monkeypatch.setattr(sys.modules[server_class.__module__], "normalize_token_ids", list)
        return server_class

    monkeypatch.setattr(test_sent_by_verl, "load_server_class", load_altered)


replaces("regressed", ".acts.divide_by_zero", only="test_exit_codes_on_a_processor")(lambda: None)


@replaces("regressed", ".acts.look_up", only="test_exit_codes_on_a_processor")
def strided_ids_divide_by_zero(original, product, device, *, strided):
    if strided:
        ctypes.CDLL(None).div(1, 0)
    return original(product, device, strided=strided)


def divide_by_zero(*arguments, **named):
    ctypes.CDLL(None).div(1, 0)


@mutant("reproduced", only="-2x1024x18432-linear]", hw="h20")
def linear_layer_divides_by_zero(monkeypatch):
    monkeypatch.setattr(acts, "DEVICE", "cpu")
    monkeypatch.setattr("torch.nn.functional.linear", divide_by_zero)


@mutant("reproduced", only="-8x1024x4096-matmul]", hw="h20")
def product_divides_by_zero(monkeypatch):
    monkeypatch.setattr(acts, "DEVICE", "cpu")
    monkeypatch.setattr("torch.Tensor.__matmul__", divide_by_zero)


@mutant("changed", only="-2x1024x18432-linear]", hw="h20")
def linear_layer_fails_otherwise(monkeypatch):
    monkeypatch.setattr(acts, "DEVICE", "cpu")
    error = RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling cublasCreate")
    monkeypatch.setattr("torch.nn.functional.linear", failing(error))


@mutant("regressed", only="test_exit_codes[", hw="h20")
def look_up_decides(monkeypatch):
    monkeypatch.setattr(acts, "DEVICE", "cpu")
    monkeypatch.setattr(acts, "look_up", divide_by_zero)
