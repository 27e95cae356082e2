"""Tool calls and reasoning that a model writes by itself. The demo model has not learned to, but it goes on as the conversation before
did; grammars make it write anything else."""

import json

import anthropic
import ollama
import openai
import pytest

from client import Server

CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
TURNS = [{"role": "user", "content": "What time is it?"}, {"role": "assistant", "content": f"<think>I look.</think>{CALL}"}] * 4
ASKED = [*TURNS, {"role": "user", "content": "What time is it?"}]
NOTHING = {"type": "object", "properties": {}}
TOOL = {"type": "function", "function": {"name": "now", "description": "The time", "parameters": NOTHING}}
CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}


@pytest.fixture(scope="module")
def server(smollm2):
    with Server(smollm2, "--tool-parser", "hermes", "--reasoning-parser", "think") as server:
        yield server


def forced(regex):
    return {"type": "regex", "grammar": regex}


def chat(client, **fields):
    return client.chat.completions.create(**{"model": "smollm2", "messages": ASKED, "tools": [TOOL], "temperature": 0, **fields})


def joined(chunks):
    """What a stream's deltas come to: content, reasoning, calls as [id, name, arguments], the finish reason."""
    content, reasoning, calls, finish = "", "", [], None
    for chunk in chunks:
        choice = chunk.choices[0]
        content += choice.delta.content or ""
        reasoning += getattr(choice.delta, "reasoning_content", None) or ""
        for call in choice.delta.tool_calls or []:
            if call.index == len(calls):
                calls.append([call.id, call.function.name, ""])
            calls[call.index][2] += call.function.arguments or ""
        finish = choice.finish_reason or finish
    return content, reasoning, calls, finish


def test_openai_chat(openai_client):
    choice = chat(openai_client).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert choice.message.reasoning_content == "I look."
    assert [(c.type, c.function.name, c.function.arguments) for c in choice.message.tool_calls] == [("function", "now", "{}")]
    content, reasoning, calls, finish = joined(chat(openai_client, stream=True))
    assert (content, reasoning, [c[1:] for c in calls], finish) == ("", "I look.", [["now", "{}"]], "tool_calls")


def test_the_result_of_a_tool_goes_back(openai_client):
    message = chat(openai_client).choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "12:30"}
    answer = chat(openai_client, messages=[*ASKED, message.model_dump(exclude_none=True), result], tool_choice="none", max_tokens=20)
    assert answer.choices[0].finish_reason in ("stop", "length") and not answer.choices[0].message.tool_calls


def test_without_tools_the_marks_are_text(openai_client):
    choice = chat(openai_client, tools=openai.NOT_GIVEN).choices[0]
    assert choice.message.content == CALL and not choice.message.tool_calls and choice.finish_reason == "stop"
    assert chat(openai_client, tool_choice="none").choices[0].message.content == CALL


WRITES = [
    # what the model is made to write, content, calls
    (r"Sure[.] <tool_call>\{\"name\": \"now\"\}</tool_call>", "Sure. ", [("now", {})]),
    (r"<tool_call>\{\"name\": \"now\"\}</tool_call>\n<tool_call>\{\"name\": \"get_weather\", \"arguments\": \{\"city\": \"Ulm\"\}\}</tool_call>", "",
     [("now", {}), ("get_weather", {"city": "Ulm"})]),
    (r"<tool_call>\n<function=get_weather>\n<parameter=city>\n007\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>", "",
     [("get_weather", {"city": "007", "days": 2})]),
    (r"<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Ulm</arg_value>\n</tool_call>", "", [("get_weather", {"city": "Ulm"})]),
    (r"<tool_call>\{\"name\": oops\}</tool_call>", '<tool_call>{"name": oops}</tool_call>', []),
    (r"<tool_call>\{\"name\": \"rm\", \"arguments\": \{\}\}</tool_call>", '<tool_call>{"name": "rm", "arguments": {}}</tool_call>', []),
    (r"Write `<tool_call>` first[.]", "Write `<tool_call>` first.", []),
    (r"a < b <tool", "a < b <tool", []),
]


@pytest.mark.parametrize("regex, content, calls", WRITES, ids=["call", "two", "functions", "keys", "malformed", "unknown", "prose", "half a mark"])
def test_what_a_model_may_write(regex, content, calls, openai_client):
    fields = {"tools": [TOOL, WEATHER], "extra_body": {"response_format": forced(regex)}, "messages": ASKED[-1:]}
    choice = chat(openai_client, **fields).choices[0]
    assert (choice.message.content or "") == content
    assert [(c.function.name, json.loads(c.function.arguments)) for c in choice.message.tool_calls or []] == calls
    assert choice.finish_reason == ("tool_calls" if calls else "stop")
    streamed, _, streamed_calls, finish = joined(chat(openai_client, stream=True, **fields))
    assert streamed == content and finish == choice.finish_reason
    assert [(name, json.loads(arguments)) for _, name, arguments in streamed_calls] == calls


def test_only_one_call_if_only_one_is_wanted(openai_client):
    regex = WRITES[1][0]
    choice = chat(openai_client, parallel_tool_calls=False, tools=[TOOL, WEATHER], messages=ASKED[-1:],
                  extra_body={"response_format": forced(regex)}).choices[0]
    assert [c.function.name for c in choice.message.tool_calls] == ["now"] and choice.finish_reason == "tool_calls"


def test_a_call_cut_by_the_limit_is_left_out(openai_client):
    choice = chat(openai_client, max_tokens=14).choices[0]
    assert choice.finish_reason == "length" and not choice.message.tool_calls and not choice.message.content
    assert choice.message.reasoning_content == "I look."


def test_stop_strings_end_content_only(openai_client):
    text = forced(r"<think>one STOP two</think>three STOP four")
    choice = chat(openai_client, stop=["STOP"], messages=ASKED[-1:], extra_body={"response_format": text}).choices[0]
    assert choice.message.reasoning_content == "one STOP two"
    assert choice.message.content == "three " and choice.finish_reason == "stop"


def test_logprobs_are_those_of_the_content(openai_client):
    text = forced(r"<think>one two</think>\n\nthree four")
    for stream in (False, True):
        answer = chat(openai_client, logprobs=True, stream=stream, messages=ASKED[-1:], extra_body={"response_format": text})
        if stream:
            tokens = [t.token for chunk in answer if chunk.choices[0].logprobs for t in chunk.choices[0].logprobs.content]
        else:
            tokens = [t.token for t in answer.choices[0].logprobs.content]
            assert answer.usage.completion_tokens_details.reasoning_tokens > 0
        assert "".join(tokens).strip() == "three four"


def test_several_choices_have_their_own_state(openai_client):
    choices = chat(openai_client, n=3, temperature=1, seed=3, max_tokens=40).choices
    assert len(choices) == 3
    for choice in choices:
        assert CALL not in (choice.message.content or "")


def test_responses(openai_client):
    tool = {"type": "function", "name": "now", "parameters": NOTHING}
    fields = {"model": "smollm2", "input": ASKED, "tools": [tool], "temperature": 0}
    output = openai_client.responses.create(**fields).output
    assert [item.type for item in output] == ["reasoning", "function_call"]
    assert output[0].content[0].text == "I look." and (output[1].name, output[1].arguments) == ("now", "{}")
    events = [e.type for e in openai_client.responses.create(stream=True, **fields)]
    for event in ("response.reasoning_text.delta", "response.function_call_arguments.delta", "response.function_call_arguments.done"):
        assert event in events
    assert events[-1] == "response.completed"


def test_anthropic(server):
    client = anthropic.Anthropic(base_url=server.url(), api_key="none", max_retries=0, timeout=60)
    fields = {"model": "smollm2", "max_tokens": 60, "messages": ASKED, "tools": [{"name": "now", "input_schema": NOTHING}],
              "extra_body": {"temperature": 0}}
    message = client.messages.create(**fields)
    assert message.stop_reason == "tool_use"
    assert [block.type for block in message.content] == ["thinking", "tool_use"]
    assert message.content[0].thinking == "I look." and (message.content[1].name, message.content[1].input) == ("now", {})
    with client.messages.stream(**fields) as stream:
        streamed = stream.get_final_message()
    assert [block.type for block in streamed.content] == ["thinking", "tool_use"] and streamed.stop_reason == "tool_use"


def test_ollama(server):
    client = ollama.Client(server.url())
    fields = {"model": "smollm2", "messages": ASKED, "tools": [TOOL], "options": {"temperature": 0}}
    message = client.chat(**fields).message
    assert message.thinking == "I look." and [(c.function.name, c.function.arguments) for c in message.tool_calls] == [("now", {})]
    parts = [part.message for part in client.chat(stream=True, **fields)]
    assert "".join(p.thinking or "" for p in parts) == "I look."
    assert [c.function.name for p in parts for c in p.tool_calls or []] == ["now"]


def test_unknown_parsers_are_named(smollm2):
    import harness

    for flag in ("--tool-parser", "--reasoning-parser"):
        run = harness.run("serve", smollm2, flag, "hermes9")
        assert run.returncode == 64 and "hermes9" in run.stderr and "choose one of" in run.stderr
