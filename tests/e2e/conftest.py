import os
import pathlib

import pytest

import harness

_figures = []


@pytest.fixture(scope="session", autouse=True)
def program():
    if not harness.PROGRAM.exists():
        pytest.exit(f"{harness.PROGRAM} does not exist: build it first (make build) or set VERBUND", returncode=2)
    return harness.PROGRAM


@pytest.fixture(scope="session")
def model_folder():
    if os.environ.get("VERBUND_MODELS"):
        return pathlib.Path(os.environ["VERBUND_MODELS"])
    return pathlib.Path(os.environ.get("XDG_DATA_HOME") or pathlib.Path.home() / ".local" / "share") / "verbund" / "models"


@pytest.fixture(scope="session")
def smollm2(model_folder):
    """Path of the demo model. It is part of the test set-up, so its absence is an error and not a skip."""
    path = model_folder / "smollm2.gguf"
    assert path.exists(), f"{path} is not there: run scripts/fetch-model"
    return path


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """After every test: no runner process, no shared memory, whatever happened in between."""
    before = set(os.listdir("/dev/shm"))
    yield
    left = harness.wait_until(lambda: not harness.runners(), 5) is None and harness.runners()
    for pid in left or []:
        os.kill(pid, 9)
    assert not left, f"runner processes left behind: {left}"
    ours = [name for name in set(os.listdir("/dev/shm")) - before if owned(f"/dev/shm/{name}")]
    assert not ours, f"left in /dev/shm: {ours}"


def owned(path):
    try:
        return os.stat(path).st_uid == os.getuid()
    except OSError:
        return False


@pytest.fixture
def figure():
    """Call it with a line worth reading; all of them are printed at the end of the session."""
    return _figures.append


def pytest_terminal_summary(terminalreporter):
    for line in _figures:
        terminalreporter.write_line(f"figure: {line}")
