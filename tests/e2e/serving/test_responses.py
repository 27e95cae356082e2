"""OpenAI's Responses API: the official client, and the order of events byte by byte."""

import json

import openai
import pytest
from pydantic import BaseModel

from client import Wire

HI = "Why is the sky blue?"


def ask(client, **fields):
    return client.responses.create(**{"model": "smollm2", "input": HI, "temperature": 0, "max_output_tokens": 24, **fields})


def raw_events(server, **fields):
    with Wire(server) as wire:
        wire.post("/v1/responses", {"model": "smollm2", "input": HI, "temperature": 0, "max_output_tokens": 4, "stream": True, **fields})
        wire.until(b"\r\n\r\n")
        text = wire.until(b"0\r\n\r\n").decode()
    frames = [line for line in text.splitlines() if line.startswith(("event: ", "data: "))]
    datas = [json.loads(line[6:]) for line in frames[1::2]]
    assert [line[7:] for line in frames[::2]] == [d["type"] for d in datas] and "[DONE]" not in text
    assert [d["sequence_number"] for d in datas] == list(range(len(datas)))
    return datas


def test_whole_and_stream_are_the_same(openai_client):
    whole = ask(openai_client)
    assert whole.object == "response" and whole.status == "incomplete" and whole.incomplete_details.reason == "max_output_tokens"
    assert whole.usage.output_tokens == 24 and whole.usage.total_tokens == whole.usage.input_tokens + 24
    with openai_client.responses.stream(model="smollm2", input=HI, temperature=0, max_output_tokens=24) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = None
    assert text == whole.output_text and final is None


def test_the_order_of_events(server):
    datas = raw_events(server)
    names = [d["type"].removeprefix("response.") for d in datas]
    assert names[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert names[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert set(names[4:-4]) == {"output_text.delta"}
    created, last = datas[0]["response"], datas[-1]["response"]
    assert created["usage"] is None and created["output"] == [] and created["id"] == last["id"] and set(created) == set(last)
    added, done = datas[2], datas[-2]
    assert added["item"]["content"] == [] and added["item"]["status"] == "in_progress" and added["output_index"] == done["output_index"] == 0
    assert all(d["item_id"] == added["item"]["id"] and d["content_index"] == 0 for d in datas[3:-2])
    text = "".join(d["delta"] for d in datas[4:-4])
    assert done["item"]["content"] == [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    assert last["output"] == [done["item"]] and all(isinstance(last["usage"][k], int) for k in ("input_tokens", "output_tokens", "total_tokens"))


TOOLS = [
    {"type": "function", "name": "roll", "parameters": {"type": "object", "properties": {"sides": {"type": "integer", "minimum": 2, "maximum": 99}}, "required": ["sides"], "additionalProperties": False}, "strict": True}
]


def test_a_forced_tool_and_its_result(openai_client, server):
    answer = ask(openai_client, tools=TOOLS, tool_choice="required", max_output_tokens=64)
    (call,) = answer.output
    assert answer.status == "completed" and call.type == "function_call" and call.name == "roll" and 2 <= json.loads(call.arguments)["sides"] <= 99
    datas = raw_events(server, tools=TOOLS, tool_choice={"type": "function", "name": "roll"}, max_output_tokens=64)
    names = [d["type"].removeprefix("response.") for d in datas]
    assert names[2] == "output_item.added" and names[-3:] == ["function_call_arguments.done", "output_item.done", "completed"]
    assert datas[-3]["arguments"] == "".join(d["delta"] for d in datas if d["type"].endswith("arguments.delta")) == call.arguments
    follow = [{"role": "user", "content": HI}, call, {"type": "function_call_output", "call_id": call.call_id, "output": "4"}]
    assert ask(openai_client, input=follow, tools=TOOLS, max_output_tokens=8).output_text


def test_custom_and_namespace_tools(openai_client):
    """H21: what Codex sends; hosted tools are left out."""
    tools = [
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}},
        {"type": "namespace", "name": "mcp", "tools": TOOLS}, {"type": "web_search"}, {"type": "local_shell"},
    ]  # fmt: skip
    raw = openai_client.responses.with_raw_response.create(model="smollm2", input=HI, tools=tools, temperature=0, max_output_tokens=4)
    assert raw.headers["x-verbund-ignored"] == "web_search, local_shell"
    answer = ask(openai_client, tools=tools, tool_choice={"type": "function", "name": "mcp__roll"}, max_output_tokens=64)
    assert answer.output[0].name == "roll" and answer.output[0].to_dict()["namespace"] == "mcp"


def test_structured_output(openai_client):
    class Person(BaseModel):
        name: str
        age: int

    answer = openai_client.responses.parse(model="smollm2", input="Invent a person.", text_format=Person, temperature=0, max_output_tokens=200)
    assert isinstance(answer.output_parsed, Person)


def test_stored_responses(openai_client, server):
    first = ask(openai_client, instructions="Be brief.")
    assert openai_client.responses.retrieve(first.id).output_text == first.output_text
    second = ask(openai_client, input="Go on.", previous_response_id=first.id)
    items = openai_client.responses.input_items.list(second.id).data
    assert [i.role for i in items] == ["user", "assistant", "user"]
    alone = [{"role": "user", "content": HI}, *first.output, {"role": "user", "content": "Go on."}]
    assert ask(openai_client, input=alone).output_text == second.output_text
    assert server.post("/v1/responses/input_tokens", {"model": "smollm2", "input": "Go on.", "previous_response_id": first.id})[1]["input_tokens"] == second.usage.input_tokens
    openai_client.responses.delete(first.id)
    for gone in (lambda: openai_client.responses.retrieve(first.id), lambda: openai_client.responses.delete(first.id), lambda: openai_client.responses.cancel(first.id)):
        with pytest.raises(openai.NotFoundError):
            gone()
    with pytest.raises(openai.BadRequestError) as refused:
        ask(openai_client, previous_response_id=first.id)
    assert refused.value.code == "previous_response_not_found"
    unstored = ask(openai_client, store=False)
    with pytest.raises(openai.NotFoundError):
        openai_client.responses.retrieve(unstored.id)


def test_what_does_not_fit_is_refused_or_loses_its_oldest_turns(openai_client):
    turns = [{"role": "user", "content": f"Question {i}: " + "word " * 400} for i in range(30)] + [{"role": "user", "content": HI}]
    with pytest.raises(openai.BadRequestError) as refused:
        ask(openai_client, input=turns)
    assert "8192" in refused.value.message
    answer = ask(openai_client, input=turns, truncation="auto", max_output_tokens=4)
    assert answer.truncation == "auto" and 7000 < answer.usage.input_tokens < 8192


def test_logprobs(openai_client):
    answer = ask(openai_client, include=["message.output_text.logprobs"], top_logprobs=2)
    logprobs = answer.output[0].content[0].logprobs
    assert "".join(t.token for t in logprobs) == answer.output_text and len(logprobs[0].top_logprobs) == 2


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"background": True}, "background"), ({"truncation": "sometimes"}, "truncation"), ({"input": [{"type": "spell"}]}, "input[0].type"),
        ({"extra_body": {"messages": []}}, "messages"), ({"extra_body": {"conversation": "c"}}, "conversation"), ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)  # fmt: skip
def test_refusals(openai_client, fields, param):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(openai_client, **fields)
    assert refused.value.param == param
    if param == "messages":
        assert "input" in refused.value.message
