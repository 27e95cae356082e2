"""Start, queue, faults and the end of a server; each test has its own (cases H11, H12, O6)."""

import concurrent.futures
import json
import os
import signal
import socket

import pytest

import harness
from client import Server, Wire, chat_body, events, free_port

LONG = {"max_tokens": 4000, "ignore_eos": True}


def test_not_ready_until_the_model_is(smollm2):
    with harness.Started("serve", smollm2, "--local", 2, "--listen", f"127.0.0.1:{(port := free_port())}", "--fault", "slow-load:1500") as started:
        server = Server.__new__(Server)
        server.port, server.started = port, started
        assert harness.wait_until(lambda: server.status("/livez") == 200, 20)
        status, _, body = server.request("GET", "/readyz")
        assert status == 503 and body == {"status": "loading"}
        status, headers, body = server.request("POST", "/v1/chat/completions", chat_body("Hi"))
        assert status == 503 and body["error"]["code"] == "model_loading" and int(headers["retry-after"]) > 0
        assert server.wait_until_ready() and server.status("/health") == 200
        assert server.stop() is not None and started.process.returncode == 0


def test_a_full_queue_refuses_and_what_is_taken_is_answered_in_order(smollm2):
    with Server(smollm2, "--parallel", 1, "--queue", 3) as server:
        ask = lambda i: server.request("POST", "/v1/chat/completions", chat_body("Count.", max_tokens=40, ignore_eos=True))  # noqa: E731
        with concurrent.futures.ThreadPoolExecutor(30) as pool:
            answers = list(pool.map(ask, range(30)))
        assert {a[0] for a in answers} == {200, 429}
        refused = next(a for a in answers if a[0] == 429)
        assert int(refused[1]["retry-after"]) > 0 and refused[2]["error"]["type"] == "rate_limit_error"
        assert len({a[2]["choices"][0]["message"]["content"] for a in answers if a[0] == 200}) == 1
        assert server.chat("Hi")["choices"]


def test_waiting_requests_that_leave_never_start(smollm2):
    with Server(smollm2, "--parallel", 1) as server:
        with Wire(server) as running:
            running.post("/v1/chat/completions", {**chat_body("Count.", **LONG), "stream": True})
            running.until(b"data: ")
            before = server.metric("prompt_tokens_total")
            for _ in range(3):
                with Wire(server) as waiting:
                    waiting.post("/v1/chat/completions", chat_body("word " * 500, **LONG))
                    assert harness.wait_until(lambda: server.metric("requests_waiting") > 0, 10)
                assert harness.wait_until(lambda: server.metric("requests_waiting") == 0, 5)
            assert server.metric("prompt_tokens_total") == before
        assert server.idle()


def test_x_request_timeout(smollm2):
    with Server(smollm2) as server:
        status, _, body = server.request("POST", "/v1/chat/completions", chat_body("Count.", **LONG), headers={"x-request-timeout": "0.5"})
        assert status == 504 and body["error"]["code"] == "timeout"
        assert server.idle()
        assert server.request("POST", "/v1/chat/completions", chat_body("Hi"), headers={"x-request-timeout": "soon"})[0] == 400


@pytest.mark.parametrize("victim", [0, 1])
def test_a_lost_rank_ends_streams_in_good_form_and_the_instance_comes_back(smollm2, victim):
    with Server(smollm2) as server:
        expected = server.chat("Why is the sky blue?")["choices"]
        with Wire(server) as stream, concurrent.futures.ThreadPoolExecutor(1) as pool:
            whole = pool.submit(server.request, "POST", "/v1/chat/completions", chat_body("Count.", **LONG))
            stream.post("/v1/chat/completions", {**chat_body("Count.", **LONG), "stream": True})
            stream.until(b"data: ")
            os.kill(server.started.runners()[victim], signal.SIGKILL)
            rest = stream.until(b"0\r\n\r\n", 10).decode()
            last = json.loads(events(rest)[-1])
            assert last["error"]["message"] and "[DONE]" not in rest
            status, _, body = whole.result()
            assert status == 500 and "rank" in body["error"]["message"]
        assert server.wait_until_ready(30)
        assert server.chat("Why is the sky blue?")["choices"] == expected
        assert server.metric("instance_restarts_total") == 1


def test_a_stopped_rank_is_noticed(smollm2):
    with Server(smollm2) as server:
        os.kill(server.started.runners()[1], signal.SIGSTOP)
        assert harness.wait_until(lambda: server.status("/readyz") == 503, 5)
        assert server.wait_until_ready(30) and server.chat("Hi")["choices"]


def test_the_end_lets_short_requests_finish_and_tells_long_ones(smollm2):
    with Server(smollm2, "--drain", 2) as server, Wire(server) as short, Wire(server) as long, Wire(server) as idle:
        idle.send("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        idle.response()
        long.post("/v1/chat/completions", {**chat_body("Count.", **LONG), "stream": True})
        short.post("/v1/chat/completions", {**chat_body("Count.", max_tokens=100, ignore_eos=True), "stream": True})
        for wire in (long, short):
            wire.until(b"data: ")
        server.started.process.send_signal(signal.SIGTERM)
        assert b"[DONE]" in short.until(b"0\r\n\r\n") and short.closed(5)
        assert idle.closed(5)
        rest = long.until(b"0\r\n\r\n", 10).decode()
        assert json.loads(events(rest)[-1])["error"]["code"] == "server_is_overloaded"
        assert server.started.wait_for_end(10) is not None


def test_a_second_server_on_the_port_is_refused(smollm2):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        message = harness.refused("serve", smollm2, "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
        assert "cannot listen on 127.0.0.1" in message and "--listen" in message


def test_what_cannot_be_served_is_refused_at_the_start(smollm2):
    listen = ("--listen", f"127.0.0.1:{free_port()}")
    assert "positions this model is made for" in harness.refused("serve", smollm2, "--context", 100000, *listen)
    assert "HOST:PORT" in harness.refused("serve", smollm2, "--listen", "nonsense")
    out = harness.run("serve", smollm2, "--memory", "60MB", *listen)
    assert out.returncode > 0 and "would fit" in out.stderr
