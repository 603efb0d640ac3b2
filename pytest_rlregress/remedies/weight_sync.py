"""Remedies for new weights and adapters on their way to a running engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    import torch
    from peft import PeftModel
    from vllm import LLM
    from vllm.lora.request import LoRARequest

__all__ = [
    "adapter_request",
    "forget_cached_prefixes",
    "load_checked",
    "merged_weights",
    "remove_left_shared_memory",
    "run_socket",
    "send_weights_answered",
    "step_if_finite",
]


def load_checked(
    load: Callable[[Iterator[tuple[str, torch.Tensor]]], object],
    weights: Iterable[tuple[str, torch.Tensor]],
    names: Collection[str],
) -> None:
    """Load weights into an engine, and raise unless all came that should, each once, none other, and finite.

    It raises once the engine has loaded, never out of the iterator: a reload of vLLM that is broken off half-way leaves
    layers that take no other. What should not have come is not handed on. After an error the engine computes with a
    mixture of two policies: sync again, completely, before it generates.

    Args:
        load: Called once with the pairs to load, as ``lambda pairs: reload_weights(llm, pairs)``; what it raises is
            passed on.
        weights: Pairs of name and float tensor, handed on in their order and not copied, each read when ``load`` asks
            for it.
        names: Every name that has to come, such as ``model.state_dict().keys()``.

    Raises:
        ValueError: Names did not come, are not among ``names`` or came more than once, or a tensor has NaN or infinity.
            The message names them, of more than eight the first.
    """
    came: set[str] = set()
    unknown, twice, not_finite = [], [], []

    def pairs() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in weights:
            if name not in names:
                unknown.append(name)
            elif name in came:
                twice.append(name)
            else:
                came.add(name)
                if tensor.isfinite().all():
                    yield name, tensor
                else:
                    not_finite.append(name)

    load(pairs())
    missing = [name for name in names if name not in came]
    kinds = {"did not come": missing, "should not come": unknown, "came twice": twice, "not finite": not_finite}
    said = [
        f"{len(found)} {kind}: {', '.join(found[:8])}{', …' if len(found) > 8 else ''}"
        for kind, found in kinds.items()
        if found
    ]
    if said:
        raise ValueError(f"weight sync of {len(names)} tensors: {'; '.join(said)}")


def adapter_request(name: str, version: int, folder: str | Path) -> LoRARequest:
    """Return the request for a version of an adapter, which vLLM confuses with no other version and no other adapter.

    vLLM knows an adapter by its id, and what it cached of a prompt by the adapter's name and path: both have to be new
    for each version, also where its folder is rewritten in place.

    Args:
        name: Which adapter, where there are several.
        version: Of the adapter, 0 or more: such as the number of updates. Once a folder was rewritten, ask for no older
            version of it.
        folder: With ``adapter_config.json`` and the weights, as ``save_pretrained`` writes it.

    Returns:
        Its id, of 63 bits, and its name are made from name and version: the same for the same, in every process.
    """
    import hashlib

    from vllm.lora.request import LoRARequest

    label = f"{name}@{version}"
    number = int.from_bytes(hashlib.sha256(label.encode()).digest()[:8], "big") >> 1
    return LoRARequest(label, number or 1, str(folder))


def merged_weights(model: PeftModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights of a model with an adapter for an engine without one: the base's names, the adapter merged in.

    The model is left as it is, bit by bit: a layer is copied and merged when its turn comes. ``merge_adapter`` and
    ``unmerge_adapter`` round, and the base drifts with each sync.

    Args:
        model: Of PEFT, whole on this rank; LoRA, DoRA, ``modules_to_save`` and trained biases go with it.

    Yields:
        Pairs of name and tensor as ``named_parameters`` of the model without the adapter has them, in its order, a tied
        ``lm_head.weight`` too; without gradient.
    """
    import copy

    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import ModulesToSaveWrapper

    inside = None
    for path, module in model.get_base_model().named_modules():
        if inside is not None and path.startswith(inside):
            continue
        whole = module
        if isinstance(module, BaseTunerLayer):
            adapted = copy.deepcopy(module)
            adapted.merge()
            whole, inside = adapted.get_base_layer(), f"{path}."
        elif isinstance(module, ModulesToSaveWrapper):
            whole, inside = module.modules_to_save[module.active_adapters[0]], f"{path}."
        for name, parameter in whole.named_parameters(recurse=whole is not module):
            yield f"{path}.{name}", parameter.detach()


def forget_cached_prefixes(llm: LLM) -> None:
    """Make the engine compute every prompt again: call it after each update of its weights.

    Requests that are running are computed again from their first token, with the new weights, and go on: the tokens
    they have stay. By itself vLLM resets nothing while a request runs, and only its log says so.

    The store of a KV connector, where one is configured, is emptied too.

    Args:
        llm: An engine with its new weights.

    Raises:
        RuntimeError: The engine refuses: it would go on from what it cached under the old weights.
    """
    # A connector's store is one more cache, and isn't reset by default.
    connector = {"reset_connector": True} if llm.llm_engine.vllm_config.kv_transfer_config else {}
    if not llm.reset_prefix_cache(reset_running_requests=True, **connector):
        raise RuntimeError("the engine did not reset its prefix cache: it would go on from keys of the old weights")


def step_if_finite(optimizer: torch.optim.Optimizer, max_norm: float) -> float:
    """Clip the gradients by their norm and step, but make no step where that norm is not finite.

    Then neither a weight nor the optimizer's state changes. The gradients are cleared in both cases, so that a bad one
    does not stay for the next step. A caller counts the steps that were left out, and stops where they are many.

    Args:
        optimizer: With the gradients of a step, whole on this rank and unscaled.
        max_norm: Largest 2-norm of all gradients together.

    Returns:
        The norm before clipping: NaN or infinity where no step was made.
    """
    import math

    import torch

    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, max_norm))
    if math.isfinite(norm):
        optimizer.step()
    optimizer.zero_grad()
    return norm


async def send_weights_answered(sender: Any, weights: Iterable[tuple[str, torch.Tensor]], seconds: float) -> None:
    """Send weights by verl's sender, and raise where its receiver has died or does not answer.

    verl's own wait has no limit, and holds up the event loop as well.

    Args:
        sender: ``BucketedWeightSender`` of verl, not yet used.
        weights: Pairs of name and tensor, as ``async_send_weights`` takes them.
        seconds: For each bucket: as long as the engine may take to load one, and for the first to begin.

    Raises:
        RuntimeError: The receiver closed the connection, which is seen at once, or gave no answer in time; the message
            has the socket's name, which has replica and rank. The engine then has a part of the weights: restart it.
    """
    import time

    import zmq

    told: list[str] = []

    class AnsweredSocket(zmq.Socket[bytes]):
        def send(self, *args: Any, **options: Any) -> Any:
            self._wait(zmq.POLLOUT)
            return super().send(*args, **options)

        def recv(self, *args: Any, **options: Any) -> Any:
            self._wait(zmq.POLLIN)
            return super().recv(*args, **options)

        def _wait(self, event: int) -> None:
            gone = self.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            end = time.monotonic() + seconds
            while not self.poll(20, event):
                if gone.poll(0) and not self.poll(200, event):  # an answer may come just before the end
                    told.append("has gone: it died or failed")
                elif time.monotonic() > end:
                    told.append(f"gave no answer in {seconds:g} s")
                if told:
                    raise TimeoutError

    context = sender.zmq_context = zmq.Context()
    context._socket_class = AnsweredSocket
    try:
        await sender.async_send_weights(weights)
    except Exception as error:
        if told:  # whatever verl's own end then fails of: a dead receiver's memory may be gone
            raise RuntimeError(f"weight sync: the receiver at {sender.zmq_handle} {told[0]}") from error
        raise
    finally:
        context.destroy(linger=0)
        Path(sender.zmq_handle.removeprefix("ipc://")).unlink(missing_ok=True)  # verl 0.7 leaves it


def run_socket(handle: str, run: str) -> str:
    """Give a Unix socket a name of this run alone: verl's has the number of a Ray job, and each cluster counts from 1.

    To be called at both ends: by the trainer for ``sender.zmq_handle``, by ``_get_zmq_handle`` of a worker extension.

    Args:
        handle: Of ZeroMQ, such as ``ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock``.
        run: What tells this run from all others on the machine, the same at both ends, such as Ray's session folder.

    Returns:
        The handle in the same folder, with 16 digits made from its name and the run, in every process the same. A
        handle of another kind (tcp) is returned as it is.
    """
    import hashlib

    scheme, separator, path = handle.partition("://")
    if scheme != "ipc":
        return handle
    folder, slash, name = path.rpartition("/")
    digits = hashlib.sha256(f"{run}\0{name}".encode()).hexdigest()[:16]
    return f"{scheme}{separator}{folder}{slash}weights-{digits}.sock"


def remove_left_shared_memory(prefixes: Sequence[str]) -> list[str]:
    """Remove this user's shared memory that no process has mapped or open any more, and name it.

    To be called on each machine when a run has ended, or before the next begins. Ray ends an actor together with the
    process that would have tidied up after it, and what engine or sender had in ``/dev/shm`` then stays. Not where
    containers share ``/dev/shm`` and not their processes: those of another one are not seen.

    Args:
        prefixes: Of the names to look at: ``psm_`` is Python's, of vLLM's queues too; ``verl_weights_`` is verl's.

    Returns:
        The names of what was removed, in order; empty where there is no ``/dev/shm``.
    """
    from pytest_rlregress.util import shared_memory

    named = [file for file in shared_memory.files() if file.name.startswith(tuple(prefixes))]
    left = sorted(file for file, pids in shared_memory.holders(named).items() if not pids)
    for file in left:
        file.path.unlink(missing_ok=True)
    return [file.name for file in left]
