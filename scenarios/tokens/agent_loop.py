"""verl's agent loop over a conversation whose turns are given."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any


def prepare_agent_loop(
    tokenizer: Any,
    model_type: str,
    prompt: Sequence[Mapping[str, str]],
    said: Sequence[str],
    response_length: int = 512,
) -> Callable[[], Any]:
    """Return a function that has verl's agent loop hold one conversation, and returns its output.

    No tool is there, which verl tells the model as the output of its calls.
    """
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop import agent_loop as loops
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop

    class Loop(ToolAgentLoop):  # type: ignore[misc]
        _class_initialized = False  # verl 0.6 takes its settings at the first loop of a class

    class Server:
        def __init__(self) -> None:
            self.turns = iter(said)

        async def generate(self, request_id: str, *, prompt_ids: list[int], **others: Any) -> SimpleNamespace:
            ids = [*tokenizer.encode(next(self.turns), add_special_tokens=False), tokenizer.eos_token_id]
            return SimpleNamespace(
                token_ids=ids, log_probs=None, num_preempted=None, routed_experts=None, extra_fields={}
            )

    turns = {
        "format": "hermes", "max_parallel_calls": 1, "max_tool_response_length": 256,
        "tool_response_truncate_side": "middle", "max_user_turns": None, "max_assistant_turns": None,
        "tool_config_path": None, "interaction_config_path": None,
    }  # fmt: skip
    rollout = {"prompt_length": 512, "response_length": response_length, "full_determinism": False, "multi_turn": turns}
    data = OmegaConf.create({"continuous_token": {"enable": False}})  # verl 0.9.0's switch, off as it is by default
    wrap = loops._DummyConfig if hasattr(loops, "_DummyConfig") else loops.DictConfigWrap  # the first is verl 0.6's
    config = {"actor_rollout_ref": {"rollout": rollout, "model": {}}, "data": {}}

    async def make() -> Any:
        return Loop(
            trainer_config=wrap(OmegaConf.create(config)),
            server_manager=Server(), tokenizer=tokenizer, processor=None, dataset_cls=None,
            data_config=wrap(data), hf_model_type=model_type,
            dataset_config=data,  # verl 0.7's name of data_config
        )  # fmt: skip

    runner = asyncio.Runner()
    loop = runner.run(make())

    def converse() -> Any:
        with runner:
            return runner.run(loop.run({}, raw_prompt=list(prompt)))

    return converse
