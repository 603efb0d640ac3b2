"""verl's agent loop appends turn by turn, and loses what the chat template writes between the turns."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.scenarios.batch.masks import LAYOUTS, TEXT

EVERY_TEMPLATE = pytest.mark.parametrize("template", LAYOUTS)
QUESTION = {"role": "user", "content": "How big is Lisbon?"}
SAID = ['<tool_call>\n{"name": "search", "arguments": {"query": "Lisbon"}}\n</tool_call>', "Half a million."]


async def agent_loop(tokenizer, model_type, said):
    """verl's output of one conversation of two turns; no tool is there, which verl tells the model as its output."""
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop

    class Server:
        def __init__(self):
            self.turns = iter(said)

        async def generate(self, request_id, *, prompt_ids, **others):
            ids = [*tokenizer.encode(next(self.turns), add_special_tokens=False), tokenizer.eos_token_id]
            return SimpleNamespace(
                token_ids=ids, log_probs=None, num_preempted=None, routed_experts=None, extra_fields={}
            )

    turns = {
        "format": "hermes", "max_parallel_calls": 1, "max_tool_response_length": 256,
        "tool_response_truncate_side": "middle", "max_user_turns": None, "max_assistant_turns": None,
        "tool_config_path": None, "interaction_config_path": None,
    }  # fmt: skip
    rollout = {"prompt_length": 512, "response_length": 512, "full_determinism": False, "multi_turn": turns}
    data = OmegaConf.create({"continuous_token": {"enable": False}})  # verl 0.9.0's switch, off as it is by default
    loop = ToolAgentLoop(
        trainer_config=DictConfigWrap(OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}})),
        server_manager=Server(), tokenizer=tokenizer, processor=None, dataset_cls=None,
        data_config=DictConfigWrap(data), hf_model_type=model_type,
        dataset_config=data,  # verl 0.7's name of data_config
    )  # fmt: skip
    return await loop.run({}, raw_prompt=[QUESTION])


@pytest.mark.needs("verl-trainer")
@pytest.mark.reproduces("turn-separator-lost")
def test_agent_loop(tiny_qwen):
    """A model of the Llama architecture with ChatML, as SmolLM2; verl 0.9.1 knows the types of Qwen alone."""
    import asyncio

    tokenizer = tiny_qwen.tokenizer("qwen2.5")
    output = asyncio.run(agent_loop(tokenizer, "llama", SAID))
    text = tokenizer.decode(output.prompt_ids + output.response_ids)
    answer = text.rindex("<|im_start|>assistant\n")
    lost = text[:answer].count("<|im_end|><|im_start|>")
    assert lost == 0, f"silent: {lost} of 1 turns of the assistant is not followed by the line break of its template"


@EVERY_TEMPLATE
@pytest.mark.guards("turn-separator-lost")
@given(
    said=TEXT,
    added=st.one_of(TEXT.map(lambda text: [("user", text)]), st.lists(TEXT, min_size=1, max_size=3)),
)
@settings(EXAMPLES, max_examples=60)
def test_as_the_family_documents(tiny_qwen, subject, template, said, added):
    tokenizer, layout = tiny_qwen.tokenizer(template), LAYOUTS[template]

    def trimmed(text):
        return text.strip() if template == "llama3" else text

    if isinstance(added[0], tuple):
        messages = [{"role": "user", "content": added[0][1]}]
        wanted = layout["user"].format(trimmed(added[0][1]))
    else:
        messages = [{"role": "tool", "content": text} for text in added]
        wanted = layout["tools"].format(
            layout["next tool"].join(layout["tool"].format(trimmed(text)) for text in added)
        )
    context = subject(tokenizer, [QUESTION, {"role": "assistant", "content": said}], messages)
    assert tokenizer.decode(context) == wanted


@EVERY_TEMPLATE
@pytest.mark.guards("turn-separator-lost")
def test_tool_calls_apart(tiny_qwen, subject, template):
    """An assistant message whose tool calls are not in its text, behind an earlier turn, brings the same context."""
    tokenizer, added = tiny_qwen.tokenizer(template), [{"role": "tool", "content": "500000"}]
    call = {"type": "function", "function": {"name": "search", "arguments": {"query": "Lisbon"}}}
    answer = {"role": "assistant", "content": "Half a million."}
    in_text = subject(tokenizer, [QUESTION, {"role": "assistant", "content": SAID[0]}], added)
    apart = [QUESTION, answer, QUESTION, {"role": "assistant", "content": "", "tool_calls": [call]}]
    assert subject(tokenizer, apart, added) == in_text


@pytest.mark.guards("turn-separator-lost")
@pytest.mark.parametrize("fault", ["no message", "no assistant turn", "no end of turn"])
def test_refused(tiny_qwen, subject, fault):
    tokenizer = tiny_qwen.tokenizer()
    messages = {"no message": [], "no assistant turn": [QUESTION]}.get(fault)
    if messages is None:
        tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
        messages = [QUESTION, {"role": "assistant", "content": SAID[1]}]
    with pytest.raises(ValueError, match="assistant"):
        subject(tokenizer, messages, [QUESTION])
