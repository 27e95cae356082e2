"""`verbund perplexity`: the same figure however it is computed, near the right one, and one clear error for each bad input."""
import math
from pathlib import Path

import models
import pytest
from harness import run, run_json

TEXT = Path(__file__).resolve().parents[1] / "data" / "text" / "alice.txt"
ASK = ("perplexity", "smollm2", TEXT, "--context", 128, "--windows", 2)


@pytest.fixture(scope="module")
def figure(smollm2):
    return run_json(*ASK, "--threads", 1)


def test_the_figure_is_sane(figure):
    assert figure["windows"] == 2 and figure["scored_tokens"] == 128
    assert 5 < figure["perplexity"] < 120  # a model that knows English, with little before each token
    assert figure["perplexity"] == pytest.approx(math.exp(figure["mean_nll"]))


@pytest.mark.parametrize("flags", [["--local", 2], ["--threads", 2], ["--isa", "avx2"], ["--local", 3, "--isa", "avx2"]], ids=str)
def test_it_is_the_same_however_it_is_computed(figure, flags):
    again = run_json(*ASK, *flags)
    assert again["perplexity"] == figure["perplexity"]


def test_formats_of_keys_and_values_differ_little(figure):
    for kv in ("q8", "f32"):
        other = run_json(*ASK, "--kv", kv)["perplexity"]
        assert other != figure["perplexity"]
        assert other == pytest.approx(figure["perplexity"], rel=0.03)


def test_another_engine_agrees(figure):
    """MLX computes the same weights with f32 activations: an independent implementation of everything below the tokenizer."""
    other = run_json(*ASK, "--backend", "mlx")["perplexity"]
    assert other == pytest.approx(figure["perplexity"], rel=0.04)


def test_a_random_model_knows_nothing():
    model = models.TINY[0]
    told = run_json("perplexity", model.path, TEXT, "--context", 32, "--windows", 2)
    assert told["perplexity"] > 50


@pytest.mark.parametrize(
    "name, text, flags, words",
    [
        ("missing.txt", None, [], ["cannot be read"]),
        ("empty.txt", b"", [], ["0 tokens"]),
        ("short.txt", b"One line.", [], ["tokens", "512"]),
        ("bad.txt", b"abc\xff\xfe", [], ["UTF-8", "byte 3"]),
        ("long.txt", b"One line. " * 50, ["--context", 100000], ["100000", "positions"]),
    ],
)
def test_bad_input_is_one_clear_error(smollm2, tmp_path, name, text, flags, words):
    path = tmp_path / name
    if text is not None:
        path.write_bytes(text)
    done = run("perplexity", "smollm2", path, *flags)
    assert done.returncode != 0 and done.stdout == ""
    assert len(done.stderr.strip().splitlines()) <= 2
    assert all(word in done.stderr for word in words), done.stderr
