"""Who may ask: keys, Host and Origin (H26)."""

import json
import os
import socket

import pytest

import harness
from client import Server, chat_body, free_port


@pytest.fixture
def key_file(tmp_path):
    return tmp_path / "inner" / "keys.json"


def test_keys(smollm2, key_file):
    key = harness.run("key", "--keys", key_file, "add", "laptop").stdout.strip()
    other = harness.run("key", "--keys", key_file, "add", "phone").stdout.strip()
    assert key != other and len(key) >= 40 and os.stat(key_file).st_mode & 0o077 == 0
    assert key not in key_file.read_text() and [k["name"] for k in json.loads(key_file.read_text())["keys"]] == ["laptop", "phone"]
    assert "a key named 'phone' already" in harness.refused("key", "--keys", key_file, "add", "phone")
    assert "laptop" in harness.run("key", "--keys", key_file, "list").stdout
    with Server(smollm2, "--keys", key_file) as server:
        ask = lambda headers: server.request("POST", "/v1/chat/completions", chat_body("Hi", max_tokens=1), headers=headers)  # noqa: E731
        for headers in ({"Authorization": f"Bearer {key}"}, {"x-api-key": key}, {"authorization": f"bearer {other}"}):
            assert ask(headers)[0] == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"x-api-key": key[:-1]}, {"Authorization": f"Basic {key}"}):
            status, answer, body = ask(headers)
            assert status == 401 and answer["www-authenticate"] == "Bearer" and body["error"]["code"] == "invalid_api_key"
        assert server.request("POST", "/v1/messages", {})[2]["error"]["type"] == "authentication_error"
        assert server.request("GET", "/metrics")[0] == server.request("GET", "/v1/models")[0] == 401
        assert server.status("/livez") == server.status("/readyz") == 200
        assert server.request("GET", "/health")[2] == {"status": "ok"}
        assert "instances" in server.request("GET", "/health", headers={"x-api-key": key})[2]
        assert harness.run("key", "--keys", key_file, "revoke", "laptop").returncode == 0
        assert harness.wait_until(lambda: ask({"x-api-key": key})[0] == 401, 5) and ask({"x-api-key": other})[0] == 200
        key_file.unlink()  # a lost file opens no door
        assert harness.wait_until(lambda: ask({})[0] != 401, 2) is None
    assert "no key named" in harness.refused("key", "--keys", key_file, "revoke", "nobody")


def test_beyond_this_machine_only_with_keys(smollm2, key_file):
    message = harness.refused("serve", smollm2, "--listen", f"0.0.0.0:{free_port()}", "--keys", key_file)
    assert "no API keys" in message and "verbund key add" in message


def test_hosts_and_origins(smollm2, key_file):
    with Server(smollm2, "--keys", key_file, "--allow-host", "ai.example", "--allow-origin", "https://chat.example") as server:
        get = lambda **headers: server.request("GET", "/v1/models", headers=headers)  # noqa: E731
        for host in ("localhost", f"localhost:{server.port}", "127.0.0.1", "[::1]:8372", "10.1.2.3:80", socket.gethostname(), "AI.example:8372"):
            assert get(Host=host)[0] == 200, host
        for host in ("evil.example", "localhost.evil.example:8372", "127.0.0.1.evil.example", "x"):
            assert get(Host=host)[0] == 403, host
        status, headers, _ = get(Origin="https://evil.example")
        assert status == 403 and not any(h.startswith("access-control") for h in headers)
        status, headers, _ = get(Origin="https://chat.example")
        assert status == 200 and headers["access-control-allow-origin"] == "https://chat.example" and "x-request-id" in headers["access-control-expose-headers"]
        assert not any(h.startswith("access-control") for h in get()[1])
        asked = {"Origin": "https://chat.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-stainless-os, authorization"}
        status, headers, _ = server.request("OPTIONS", "/v1/chat/completions", headers=asked)
        assert status == 204 and "POST" in headers["access-control-allow-methods"] and "x-stainless-os" in headers["access-control-allow-headers"]
        assert "access-control-allow-credentials" not in headers
        assert server.request("OPTIONS", "/v1/chat/completions", headers={**asked, "Origin": "https://evil.example"})[0] == 403
        assert server.request("OPTIONS", "/v1/models")[0] == 405
