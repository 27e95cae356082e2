"""Starts the real server and talks to it: as a program would (Server), and byte by byte (Wire)."""

import http.client
import json
import signal
import socket
import time

import harness


NO_KEYS = {"XDG_CONFIG_HOME": "/nonexistent"}  # whatever keys this user has


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    def __init__(self, model, *flags, local=2):
        self.port = free_port()
        self.started = harness.Started("serve", model, "--local", local, "--listen", f"127.0.0.1:{self.port}", *flags, env=NO_KEYS)

    def __enter__(self):
        assert self.wait_until_ready(), f"not ready: {self.log()[-2000:]}"
        return self

    def __exit__(self, *_):
        try:
            assert self.stop() is not None, f"it did not end within 10 s: {self.log()[-2000:]}"
            assert self.started.process.returncode == 0, self.log()[-2000:]
            assert not self.started.runners()
        finally:
            self.started.__exit__()

    def stop(self, sig=signal.SIGTERM):
        """Seconds until it ended, or None."""
        if self.started.alive():
            self.started.process.send_signal(sig)
        return self.started.wait_for_end(10)

    def wait_until_ready(self, timeout_s=60):
        return harness.wait_until(lambda: self.started.alive() and self.status("/readyz") == 200, timeout_s, 0.05)

    def log(self):
        return self.started.err()

    def url(self, path=""):
        return f"http://127.0.0.1:{self.port}{path}"

    def status(self, path):
        try:
            return self.request("GET", path)[0]
        except OSError:
            return None

    def request(self, method, path, body=None, headers=None, timeout=60):
        """Status, headers (lower case) and the body: JSON where it is."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            c.request(method, path, data, headers or {})
            r = c.getresponse()
            text = r.read()
        finally:
            c.close()
        try:
            parsed = json.loads(text)
        except ValueError:
            parsed = text.decode()
        return r.status, {k.lower(): v for k, v in r.getheaders()}, parsed

    def post(self, path, body, **options):
        status, _, answer = self.request("POST", path, body, **options)
        return status, answer

    def chat(self, text, **fields):
        """The answer of a chat completion that must succeed."""
        status, answer = self.post("/v1/chat/completions", chat_body(text, **fields))
        assert status == 200, answer
        return answer

    def metric(self, name, **labels):
        """A sample's value; the sum over all samples whose labels match."""
        total, seen = 0.0, False
        for line in self.request("GET", "/metrics")[2].splitlines():
            if line.startswith((f"verbund_{name}{{", f"verbund_{name} ")) and all(f'{k}="{v}"' in line for k, v in labels.items()):
                total, seen = total + float(line.rsplit(" ", 1)[1]), True
        return total if seen else None

    def busy(self):
        return self.metric("requests_running") + self.metric("requests_waiting") > 0

    def idle(self, timeout_s=10):
        """Waits until no request runs or waits."""
        return harness.wait_until(lambda: not self.busy(), timeout_s, 0.05)


def chat_body(text, **fields):
    return {"model": "default", "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 16, **fields}


class Wire:
    """A raw connection."""

    def __init__(self, server, timeout=20):
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=timeout)
        self.seen = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data if isinstance(data, bytes) else data.encode())

    def post(self, path, body, headers=""):
        data = json.dumps(body).encode()
        self.send(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n{headers}\r\n".encode() + data)

    def until(self, marker, timeout_s=20):
        """Reads up to and with the marker."""
        end = time.monotonic() + timeout_s
        while marker not in self.seen:
            self.socket.settimeout(max(0.01, end - time.monotonic()))
            piece = self.socket.recv(65536)
            assert piece, f"closed after {self.seen[-300:]!r}"
            self.seen += piece
        at = self.seen.index(marker) + len(marker)
        got, self.seen = self.seen[:at], self.seen[at:]
        return got

    def response(self):
        """Status and body of a response with Content-Length."""
        head = self.until(b"\r\n\r\n").decode()
        length = next((int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-length:")), 0)
        while len(self.seen) < length:
            piece = self.socket.recv(65536)
            assert piece, "closed inside a body"
            self.seen += piece
        body, self.seen = self.seen[:length], self.seen[length:]
        return int(head.split(" ")[1]), body

    def closed(self, timeout_s=20):
        """True when the server closes; what it sends before is dropped."""
        self.socket.settimeout(timeout_s)
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        return True


def events(wire_text):
    """The data lines of a stream of server-sent events."""
    return [line[6:] for line in wire_text.splitlines() if line.startswith("data: ")]
