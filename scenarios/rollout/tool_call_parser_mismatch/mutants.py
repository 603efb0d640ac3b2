from mutants import broken, failing, replaces
from pytest_rlregress.remedies.tool_calls import matching_tool_parser


@broken(only="test_only_the_named")
def never_compared(tokenizer, name):
    return name


@broken(only="test_rejects_templates")
def words_alone(tokenizer, name):
    try:
        return matching_tool_parser(tokenizer, name)
    except ValueError:
        raise ValueError(f"the tool-call parser {name} finds no call") from None


@replaces(
    "absent",
    "verl.experimental.agent_loop.tool_parser.HermesToolParser.extract_tool_calls",
    only="test_agent_loop_with_hermes",
)
async def verl_takes_bare_json(self, ids, tools=None):
    from verl.experimental.agent_loop.tool_parser import FunctionCall

    text = self.tokenizer.decode(ids, skip_special_tokens=True)
    return "", [FunctionCall(name="search", arguments="{}")] * text.startswith("{")


replaces(
    "changed",
    "verl.experimental.agent_loop.tool_parser.HermesToolParser.extract_tool_calls",
    only="test_agent_loop_with_hermes",
)(failing(ValueError("this isn't a call")))
