import pytest

from client import Server


@pytest.fixture(scope="module")
def server(smollm2):
    """One server for the tests of a file; what they leave running is theirs to end."""
    with Server(smollm2) as server:
        yield server


@pytest.fixture
def openai_client(server):
    import openai

    with openai.OpenAI(base_url=server.url("/v1"), api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """The module's server and its runners outlive a test; they are looked at when it stops (client.Server)."""
    yield
