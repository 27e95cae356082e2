"""The official ollama client against the real server, and its lines byte by byte."""

import json
import re

import ollama
import pytest

from client import Wire

HI = [{"role": "user", "content": "Why is the sky blue?"}]
GREEDY = {"temperature": 0, "num_predict": 16}


@pytest.fixture
def client(server):
    return ollama.Client(host=server.url(), timeout=60)


def test_chat_whole_and_stream_are_the_same(client):
    whole = client.chat("smollm2", HI, options=GREEDY)
    assert whole.done and whole.done_reason == "length" and whole.eval_count == 16 and whole.prompt_eval_count > 20
    assert whole.total_duration >= whole.prompt_eval_duration + whole.eval_duration > 0 and whole.load_duration == 0
    parts = list(client.chat("SmolLM2:latest", HI, options=GREEDY, stream=True))
    assert "".join(p.message.content for p in parts) == whole.message.content
    assert [p.done for p in parts] == [False] * (len(parts) - 1) + [True] and parts[-1].eval_count == 16


def test_lines(server):
    with Wire(server) as wire:
        wire.post("/api/chat", {"model": "smollm2", "messages": HI, "options": {"temperature": 0, "num_predict": 3}})
        assert b"application/x-ndjson" in wire.until(b"\r\n\r\n")
        text = wire.until(b"0\r\n\r\n").decode()
    lines = [json.loads(line) for line in text.replace("\r\n", "\n").split("\n") if line.startswith("{")]
    assert len(lines) == 4 and lines[-1]["done"] is True and lines[-1]["message"] == {"role": "assistant", "content": ""}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", line["created_at"]) for line in lines)
    assert all(isinstance(lines[-1][k], int) for k in ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration"))


def test_generate_and_its_context(client):
    first = client.generate("smollm2", "Why is the sky blue?", options=GREEDY)
    assert first.response == client.chat("smollm2", HI, options=GREEDY).message.content
    assert len(first.context) == first.prompt_eval_count + first.eval_count
    second = client.generate("smollm2", "Go on.", context=first.context, options=GREEDY)
    assert second.prompt_eval_count > first.prompt_eval_count + 16
    raw = client.generate("smollm2", "The capital of France is", raw=True, options={**GREEDY, "num_predict": 2})
    assert "Paris" in raw.response and raw.context is None
    assert client.generate("smollm2").done_reason == "load" and client.chat("smollm2", []).done_reason == "load"


def test_a_schema_is_obeyed(client):
    schema = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 200}}, "required": ["age"], "additionalProperties": False}
    assert isinstance(json.loads(client.chat("smollm2", HI, format=schema, options={"temperature": 0, "num_predict": 64}).message.content)["age"], int)
    assert client.chat("smollm2", HI, format="json", options=GREEDY).message.content.startswith("{")


def test_long_conversations(client):
    turns = [{"role": "system", "content": "Be brief."}]
    for i in range(30):
        turns += [{"role": "user", "content": f"Question {i}: " + "word " * 400}, {"role": "assistant", "content": f"Answer {i}."}]
    turns.append({"role": "user", "content": "Why is the sky blue?"})
    answer = client.chat("smollm2", turns, options={"temperature": 0, "num_predict": 4})
    assert 7000 < answer.prompt_eval_count < 8192
    with pytest.raises(ollama.ResponseError) as refused:
        client._request_raw("POST", "/api/chat", json={"model": "smollm2", "messages": turns, "truncate": False, "stream": False})
    assert refused.value.status_code == 400 and "maximum context length is 8192" in refused.value.error


def test_what_vs_code_asks(client, server):
    """H31"""
    assert server.status("/") == 200 and server.request("HEAD", "/")[0] == 200
    version = server.request("GET", "/api/version")[2]["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version) and tuple(map(int, version.split("."))) >= (0, 6, 4)
    (model,) = client.list().models
    assert model.model == "smollm2:latest" and model.size > 90e6 and model.details.family == "llama" and model.details.quantization_level == "Q4_1"
    shown = client.show("smollm2")
    assert shown.modelinfo["general.architecture"] == "llama" and shown.modelinfo["llama.context_length"] == 8192 and "completion" in shown.capabilities
    assert client.ps().models[0].context_length == 8192


@pytest.mark.parametrize(
    "options, text",
    [({"temperature": "hot"}, "options.temperature"), ({"typical_p": 0.5}, "typical_p"), ({"repeat_last_n": 64, "repeat_penalty": 1.1}, "repeat_last_n")],
)
def test_refused_options(client, options, text):
    with pytest.raises(ollama.ResponseError) as refused:
        client._request_raw("POST", "/api/chat", json={"model": "smollm2", "messages": HI, "options": options, "stream": False})
    assert refused.value.status_code == 400 and text in refused.value.error


def test_unknown_models_and_what_is_not_offered(client, server):
    with pytest.raises(ollama.ResponseError) as refused:
        client.chat("llama9", HI)
    assert refused.value.status_code == 404 and refused.value.error == 'model "llama9" not found, try pulling it first'
    assert server.request("POST", "/api/create", {})[0] == 501 and "error" in server.request("DELETE", "/api/delete", {})[2]
    assert server.request("POST", "/v1/embeddings", {})[0] == 501
