"""verl's agent loop over a conversation whose turns are given."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any


async def agent_loop(
    tokenizer: Any,
    model_type: str,
    prompt: Sequence[Mapping[str, str]],
    said: Sequence[str],
    response_length: int = 512,
) -> Any:
    """verl's output of one conversation; no tool is there, which verl tells the model as the output of its calls."""
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop

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
    loop = ToolAgentLoop(
        trainer_config=DictConfigWrap(OmegaConf.create({"actor_rollout_ref": {"rollout": rollout, "model": {}}})),
        server_manager=Server(), tokenizer=tokenizer, processor=None, dataset_cls=None,
        data_config=DictConfigWrap(data), hf_model_type=model_type,
        dataset_config=data,  # verl 0.7's name of data_config
    )  # fmt: skip
    return await loop.run({}, raw_prompt=list(prompt))
