"""Runs the real program for the tests and looks at what it leaves behind.

Every process the tests start carries a mark in its environment, which its runner processes inherit: so the runners of this
test session are told from all others on the machine, also when their parent is dead.
"""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import time
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("VERBUND") or ROOT / "build" / "verbund").absolute()
DATA = ROOT / "tests" / "data"
TIMEOUT_S = float(os.environ.get("VERBUND_E2E_TIMEOUT_S", 180))  # of one run; a hang is a failure, not a wait

MARK = f"VERBUND_E2E={uuid.uuid4()}"
ENVIRONMENT = {**os.environ, **dict([MARK.split("=")])}


def command(*args):
    return [str(PROGRAM), *map(str, args)]


def run(*args, stdin="", env=None, timeout=TIMEOUT_S):
    """Runs the program to its end; stdout and stderr are captured, so neither is a terminal. stdin: str or bytes."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    p = subprocess.run(command(*args), input=data, capture_output=True, env={**ENVIRONMENT, **(env or {})}, timeout=timeout)
    return subprocess.CompletedProcess(p.args, p.returncode, p.stdout.decode(), p.stderr.decode(errors="replace"))


def run_json(*args, **options):
    """Runs the program with --json and returns its object. Anything but success is a test failure that shows stderr."""
    p = run(*args, "--json", **options)
    assert p.returncode == 0, f"exit {p.returncode}: {p.stderr[-2000:]}"
    return json.loads(p.stdout)


def refused(*args, **options):
    """Runs the program, which must refuse with one clear message; returns the message."""
    p = run(*args, **options)
    lines = [line for line in p.stderr.splitlines() if line.strip()]
    assert p.returncode > 0, f"exit {p.returncode}, stdout {p.stdout[-300:]!r}, stderr {p.stderr[-2000:]}"  # < 0: killed by a signal
    assert 1 <= len(lines) <= 2, f"one line and perhaps a hint, not {len(lines)}: {p.stderr[-2000:]}"
    for noise in ("terminate", "what():", "Assertion", "runtime error", "\x1b"):
        assert noise not in p.stderr, p.stderr[-2000:]
    assert p.stdout == "", f"a refusal belongs on stderr: {p.stdout[-300:]!r}"
    return p.stderr


class Started:
    """A running program with its output in files, so that it never blocks on a pipe and can be read meanwhile."""

    def __init__(self, *args, stdin="", env=None):
        self.folder = tempfile.TemporaryDirectory(prefix="verbund-e2e-")
        self.out_path, self.err_path = (pathlib.Path(self.folder.name) / name for name in ("out", "err"))
        stdin_path = pathlib.Path(self.folder.name) / "in"
        stdin_path.write_text(stdin)
        with open(stdin_path, "rb") as i, open(self.out_path, "wb") as o, open(self.err_path, "wb") as e:
            self.process = subprocess.Popen(
                command(*args), stdin=i, stdout=o, stderr=e, env={**ENVIRONMENT, **(env or {})}, start_new_session=True
            )

    def out(self):
        return self.out_path.read_bytes().decode(errors="replace")

    def err(self):
        return self.err_path.read_bytes().decode(errors="replace")

    def alive(self):
        return self.process.poll() is None

    def runners(self):
        return runners(self.process.pid)

    def wait_for_runners(self, count):
        """Their process ids in the order of their start, which is the order of ranks."""
        found = wait_until(lambda: len(self.runners()) == count and self.runners(), 60)
        assert found, f"{count} runners expected, {self.runners()} seen; {self.err()[-1000:]}"
        return found

    def wait_for_text(self, characters=40, timeout_s=TIMEOUT_S):
        assert wait_until(lambda: len(self.out()) >= characters or not self.alive(), timeout_s), f"no text: {self.err()[-1000:]}"
        assert self.alive(), f"ended with {self.process.returncode} before it was disturbed: {self.err()[-1000:]}"

    def wait_for_end(self, timeout_s):
        """Seconds until it ended, or None."""
        begun = time.monotonic()
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        return time.monotonic() - begun

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.alive():
            self.process.kill()
            self.process.wait()
        self.folder.cleanup()


def runners(parent=None):
    """Process ids of live `verbund runner` processes of this test session, oldest first; with `parent`, only its children."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            argv = pathlib.Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
            if (
                len(argv) < 2
                or b"runner" not in argv[1:4]
                or MARK.encode() not in pathlib.Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
            ):
                continue
            state, ppid, started = (stat_fields(entry)[i] for i in (0, 1, 19))
        except OSError:
            continue  # it ended meanwhile
        if state != "Z" and (parent is None or int(ppid) == parent):
            found.append((int(started), int(entry)))
    return [pid for _, pid in sorted(found)]


def stat_fields(pid):
    """Fields of /proc/PID/stat from the state on; the name before it may hold spaces and brackets."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def wait_until(condition, timeout_s, every_s=0.02):
    """The first true value of `condition`, or None."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(every_s)
    return None


def flags_id(value):
    """Reads well as the id of a test that is given a list of flags."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def cpu_flags():
    for line in open("/proc/cpuinfo"):
        if line.startswith("flags"):
            return set(line.split())
    return set()


def isas():
    """Instruction sets this machine can be told to use, besides its best one."""
    wide = {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= cpu_flags()
    return ["scalar", "avx2"] + (["avx512bw", "avx512"] if wide else [])


SIZE = re.compile(r"\d+(?:\.\d+)? ?(?:[kKMGT]i?B|bytes|B)\b")


def sizes_in(text):
    """Memory sizes that a message names."""
    return SIZE.findall(text)
