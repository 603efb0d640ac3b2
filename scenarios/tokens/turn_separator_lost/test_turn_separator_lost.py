import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.scenarios.batch.masks import LAYOUTS, TEXT
from pytest_rlregress.scenarios.tokens.agent_loop import prepare_agent_loop

EVERY_TEMPLATE = pytest.mark.parametrize("template", LAYOUTS)
QUESTION = {"role": "user", "content": "How big is Lisbon?"}
SAID = ['<tool_call>\n{"name": "search", "arguments": {"query": "Lisbon"}}\n</tool_call>', "Half a million."]


@pytest.mark.needs("verl-trainer")
@pytest.mark.reproduces("turn-separator-lost")
def test_agent_loop(tiny_qwen):
    """A model of the Llama architecture with ChatML, as SmolLM2; verl 0.9.1 knows the types of Qwen alone."""
    tokenizer = tiny_qwen.tokenizer("qwen2.5")
    converse = prepare_agent_loop(tokenizer, "llama", [QUESTION], SAID)
    with act():
        output = converse()
    text = tokenizer.decode(output.prompt_ids + output.response_ids)
    answer = text.rindex("<|im_start|>assistant\n")
    lost = text[:answer].count("<|im_end|><|im_start|>")
    if lost != 0:
        silent(f"{lost} of 1 turns of the assistant is not followed by the line break of its template")


@EVERY_TEMPLATE
@pytest.mark.guards("turn-separator-lost")
@given(said=TEXT, added=st.one_of(TEXT.map(lambda text: [("user", text)]), st.lists(TEXT, min_size=1, max_size=3)))
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
    with act():
        context = subject(tokenizer, [QUESTION, {"role": "assistant", "content": said}], messages)
    assert tokenizer.decode(context) == wanted


@EVERY_TEMPLATE
@pytest.mark.guards("turn-separator-lost")
def test_tool_calls_outside_of_the_text_bring_the_same_context(tiny_qwen, subject, template):
    """An assistant message whose tool calls are not in its text, behind an earlier turn, brings the same context."""
    tokenizer, added = tiny_qwen.tokenizer(template), [{"role": "tool", "content": "500000"}]
    call = {"type": "function", "function": {"name": "search", "arguments": {"query": "Lisbon"}}}
    answer = {"role": "assistant", "content": "Half a million."}
    with act():
        in_text = subject(tokenizer, [QUESTION, {"role": "assistant", "content": SAID[0]}], added)
    apart = [QUESTION, answer, QUESTION, {"role": "assistant", "content": "", "tool_calls": [call]}]
    assert subject(tokenizer, apart, added) == in_text


@pytest.mark.guards("turn-separator-lost")
@pytest.mark.parametrize("fault", ["no message", "no assistant turn", "no end of turn"])
def test_rejects_a_conversation_without_an_assistants_turn(tiny_qwen, subject, fault):
    tokenizer = tiny_qwen.tokenizer()
    messages = {"no message": [], "no assistant turn": [QUESTION]}.get(fault)
    if messages is None:
        tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
        messages = [QUESTION, {"role": "assistant", "content": SAID[1]}]
    with act(), pytest.raises(ValueError, match="assistant"):
        subject(tokenizer, messages, [QUESTION])


@EVERY_TEMPLATE
@pytest.mark.guards("turn-separator-lost")
def test_context_does_not_depend_on_the_words_said(tiny_qwen, subject, template):
    """Also in the words that mark a place, and by a tokenizer that puts its first token before whatever it encodes."""
    from tokenizers.processors import TemplateProcessing

    tokenizer, added = tiny_qwen.tokenizer(template), [{"role": "user", "content": "Why?"}]
    with act():
        wanted = subject(tokenizer, [QUESTION, {"role": "assistant", "content": ""}], added)
    first = (tokenizer.eos_token, tokenizer.eos_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(f"{first[0]} $A", special_tokens=[first])
    assert tokenizer.encode("Why?")[0] == first[1]
    for words in ("what the assistant said", "what the assistant said.. what the assistant said.", "XXXX", "None"):
        said = {"role": "assistant", "content": words}
        asked = {"role": "user", "content": f"Is {words} what the assistant said?"}
        assert subject(tokenizer, [asked, said, asked, said], added) == wanted
    context = tokenizer.decode(subject(tokenizer, [QUESTION, said], [asked]))
    assert context == tokenizer.decode(wanted).replace("Why?", asked["content"])
    tokenizer.chat_template = "{% for one in messages %}{{ loop.index }}: {{ one.content + eos_token }}{% endfor %}"
    context = subject(tokenizer, [QUESTION, said, asked, said], added)
    assert tokenizer.decode(context) == f"5: Why?{tokenizer.eos_token}"
