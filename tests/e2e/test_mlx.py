"""The mlx backend, where the build has it: an independent implementation of the same model."""

import pytest

from harness import PROGRAM, run_json

pytestmark = pytest.mark.skipif(
    not [p for pattern in ("*mlx*.so", "*mlx*.dylib") for p in PROGRAM.parent.glob(pattern)], reason="this build has no MLX module"
)

ASK = ["run", "smollm2", "--raw", "The capital of France is", "--max-tokens", 6, "--temperature", 0, "--ignore-eos"]


def test_it_says_what_the_native_backend_says(smollm2):
    native, mlx = run_json(*ASK, "--local", 1), run_json(*ASK, "--local", 1, "--backend", "mlx")
    assert "Paris" in mlx["text"]
    assert mlx["token_ids"][0] == native["token_ids"][0]


def test_two_ranks_agree(smollm2):
    assert "Paris" in run_json(*ASK, "--local", 2, "--backend", "mlx")["text"]


def test_mlx_transport_carries_a_native_model(smollm2):
    over_mlx = run_json(*ASK, "--local", 2, "--transport", "mlx", "--hash-logits")
    assert over_mlx["links"][0]["transport"] == "mlx"
    assert over_mlx["logits_sha256"] == run_json(*ASK, "--local", 2, "--hash-logits")["logits_sha256"]


@pytest.mark.parametrize("flags", (["--local", 3, "--stages", 3], ["--local", 4, "--stages", 2], ["--local", 3]), ids=str)
def test_mlx_transport_carries_pipelines_in_prefill_chunks(smollm2, flags):
    """A ring carries sends and collectives in one order: nothing of one step may be left unread in the next."""
    flags = [*flags, "--prefill-chunk", 3, "--hash-logits"]
    assert run_json(*ASK, *flags, "--transport", "mlx")["logits_sha256"] == run_json(*ASK, *flags)["logits_sha256"]
