"""The official anthropic client against the real server, and the order of events byte by byte."""

import json

import anthropic
import pytest

from client import Wire

HI = [{"role": "user", "content": "Why is the sky blue?"}]
TOOLS = [{"name": "roll", "input_schema": {"type": "object", "properties": {"sides": {"type": "integer", "minimum": 2, "maximum": 99}}, "required": ["sides"], "additionalProperties": False}}]


@pytest.fixture
def client(server):
    with anthropic.Anthropic(base_url=server.url(), api_key="none", max_retries=0, timeout=60) as client:
        yield client


def ask(client, extra_body=None, **fields):
    # The client has dropped the sampling parameters; the API has not.
    body = {"temperature": 0, **(extra_body or {})}
    return client.messages.create(**{"model": "smollm2", "max_tokens": 24, "messages": HI, "extra_body": body, **fields})


def test_whole_and_stream_are_the_same(client):
    whole = ask(client)
    assert whole.content[0].type == "text" and whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 24
    with client.messages.stream(model="smollm2", max_tokens=24, messages=HI, extra_body={"temperature": 0}) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
        final = stream.get_final_message()
    assert final.stop_reason == "max_tokens" and final.usage.output_tokens == 24 and final.content[0].text == whole.content[0].text


def test_stop_sequences(client):
    whole = ask(client).content[0].text
    word = whole.split()[6]
    stopped = ask(client, stop_sequences=[word])
    assert stopped.content[0].text == whole[: whole.index(word)]
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", word)


def test_the_order_of_events(server):
    with Wire(server) as wire:
        wire.post("/v1/messages", {"model": "smollm2", "max_tokens": 3, "messages": HI, "temperature": 0, "stream": True}, "anthropic-beta: anything-2027\r\n")
        head = wire.until(b"\r\n\r\n")
        assert b"text/event-stream" in head
        text = wire.until(b"0\r\n\r\n").decode()
    frames = [line for line in text.splitlines() if line.startswith(("event: ", "data: "))]
    names = [line[7:] for line in frames[::2]]
    datas = [json.loads(line[6:]) for line in frames[1::2]]
    assert names == [d["type"] for d in datas]
    assert names[:3] == ["message_start", "ping", "content_block_start"] and names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[3:-3]) == {"content_block_delta"}
    start = datas[0]["message"]
    assert start["content"] == [] and start["stop_reason"] is None and start["usage"]["input_tokens"] > 0 and start["usage"]["output_tokens"] == 0
    assert datas[2]["content_block"] == {"type": "text", "text": ""} and all(d["index"] == 0 for d in datas[2:-2])
    assert datas[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None} and datas[-2]["usage"]["output_tokens"] == 3


def test_a_forced_tool_and_its_result(client):
    answer = ask(client, tools=TOOLS, tool_choice={"type": "any"}, max_tokens=64)
    call = answer.content[0]
    assert answer.stop_reason == "tool_use" and call.type == "tool_use" and call.name == "roll" and 2 <= call.input["sides"] <= 99
    with client.messages.stream(model="smollm2", max_tokens=64, messages=HI, extra_body={"temperature": 0}, tools=TOOLS, tool_choice={"type": "tool", "name": "roll"}) as stream:
        assert stream.get_final_message().content[0].input == call.input
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "4"}]}, {"type": "text", "text": "Go on."}]}
    assert ask(client, messages=[*HI, {"role": "assistant", "content": answer.content}, result], tools=TOOLS, max_tokens=8).content


def test_counting_agrees_with_answering(client):
    """H23, with system blocks, tools and history."""
    body = {
        "system": [{"type": "text", "text": "x-anthropic-billing-header: 123"}, {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [*HI, {"role": "assistant", "content": [{"type": "text", "text": "Because."}, {"type": "redacted_thinking", "data": "x"}]}, {"role": "user", "content": "Why?"}],
        "tools": TOOLS,
    }
    counted = client.messages.count_tokens(model="smollm2", **body).input_tokens
    for _ in range(2):  # cold and from the cache
        usage = ask(client, max_tokens=1, **body).usage
        assert usage.input_tokens + usage.cache_read_input_tokens == counted
    del body["system"][0]  # the block that changes with each request is not in the prompt
    assert client.messages.count_tokens(model="smollm2", **body).input_tokens == counted


def test_a_last_assistant_message_is_continued(client):
    answer = ask(client, messages=[{"role": "user", "content": "Count to ten."}, {"role": "assistant", "content": "1, 2, 3,"}], max_tokens=6)
    assert "4" in answer.content[0].text


def test_structured_output(client):
    schema = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 200}}, "required": ["age"], "additionalProperties": False}
    answer = ask(client, max_tokens=64, extra_body={"output_config": {"format": {"type": "json_schema", "schema": schema}}})
    assert isinstance(json.loads(answer.content[0].text)["age"], int)


def test_what_is_accepted_without_effect(client):
    answer = ask(client, max_tokens=1, metadata={"user_id": "me"}, extra_body={"context_management": {}, "tools": [{"type": "web_search_20250305", "name": "web_search"}]})
    assert answer.stop_reason == "max_tokens"
    assert ask(client, max_tokens=1, messages=[*HI, {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."}]).content


@pytest.mark.parametrize(
    "fields, text",
    [
        ({"max_tokens": 0}, "max_tokens"), ({"messages": []}, "messages"), ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0].content[0].type"),
        ({"extra_body": {"top_p": 2}}, "top_p"), ({"messages": [{"role": "user", "content": "word " * 9000}]}, "prompt is too long: 9"),
    ],
)  # fmt: skip
def test_refusals(client, fields, text):
    with pytest.raises(anthropic.BadRequestError) as refused:
        ask(client, **fields)
    assert text in refused.value.message and refused.value.body["error"]["type"] == "invalid_request_error" and refused.value.body["request_id"]


def test_unknown_models(client):
    with pytest.raises(anthropic.NotFoundError):
        ask(client, model="claude")
    assert client.models.list().data[0].id == "smollm2"
