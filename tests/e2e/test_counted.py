"""Every byte is counted before it is allocated (docs/DESIGN.md 4.3), and each rank holds its slices only."""

import math
import re

import pytest

from harness import Started, flags_id, refused, run, run_json, sizes_in

ASK = ["run", "smollm2", "Name three rivers.", "--max-tokens", 8, "--temperature", 0]
SLACK_BYTES = 64 << 20


def mb(size_bytes):
    return f"{math.ceil(size_bytes / 1e6)}MB"


@pytest.fixture(scope="module")
def one(smollm2):
    return run_json(*ASK, "--local", 1, "--context", 2048)["ranks"][0]


@pytest.fixture(scope="module")
def three(smollm2):
    return run_json(*ASK, "--local", 3, "--context", 2048)["ranks"]


@pytest.mark.parametrize(
    "flags",
    [
        ["--local", 2],
        ["--local", 3],
        ["--local", 4],
        ["--local", 3, "--stages", 3],
        ["--local", 4, "--stages", 2],
        ["--local", 3, "--shares", "2:2:1"],
    ],
    ids=flags_id,
)
def test_the_weights_are_held_once(flags, one):
    ranks = run_json(*ASK, *flags)["ranks"]
    held = sum(r["weight_bytes"] for r in ranks)
    # Norms are on every rank and a KV head at a border on both sides. The embedding of this model is also its head, so
    # with pipeline stages the first and the last hold it: 49152 rows of 576 at 8 bits and their scales.
    twice = 49152 * 576 * 9 // 8 if "--stages" in flags else 0
    assert one["weight_bytes"] * 0.999 <= held < 1.1 * one["weight_bytes"] + twice
    assert max(r["weight_bytes"] for r in ranks) < one["weight_bytes"]


def test_shares_are_kept():
    large, small = run_json(*ASK, "--local", 2, "--shares", "3:1")["ranks"]
    assert 2 < large["weight_bytes"] / small["weight_bytes"] < 4


def test_layers_are_kept():
    first, second = run_json(*ASK, "--local", 2, "--stages", 2, "--layers", "20:10", "--context", 2048)["ranks"]
    assert (first["stage"], second["stage"]) == (0, 1)
    assert first["kv_bytes"] / second["kv_bytes"] == pytest.approx(2, rel=0.01)


def test_q8_halves_the_cache(one):
    half = run_json(*ASK, "--local", 1, "--context", 2048, "--kv", "q8")["ranks"][0]
    assert half["kv_bytes"] / one["kv_bytes"] == pytest.approx((64 + 4) / 128, rel=0.01)  # 64 codes and a scale for 64 halves


def test_kv_grows_with_the_context(one):
    double = run_json(*ASK, "--local", 1, "--context", 4096)["ranks"][0]
    assert double["kv_bytes"] / one["kv_bytes"] == pytest.approx(2, rel=0.05)
    assert double["planned_bytes"] - one["planned_bytes"] >= one["kv_bytes"] * 0.95
    assert double["weight_bytes"] == one["weight_bytes"]


@pytest.mark.parametrize("nodes", [1, 2])
def test_rows_of_logits_are_counted(nodes):
    """A step may want one of each running sequence: on every rank its columns, in the backend and beside it, and all of them at rank 0."""

    def planned(also):
        ranks = run_json(*ASK, "--local", nodes, "--context", 2048, "--prefill-chunk", 16, "--also", also)["ranks"]
        return [r["planned_bytes"] - r["kv_bytes"] for r in ranks]

    row = 49152 * 4
    for rank, (few, many) in enumerate(zip(planned(0), planned(10))):
        copies = 2 / nodes + (0 if nodes == 1 else 1.5 if rank == 0 else 0.5)
        assert 10 * row * copies <= many - few <= 10 * row * copies + (2 << 20)


@pytest.mark.parametrize(
    "flags",
    [
        ["--local", 1],
        ["--local", 2],
        ["--local", 5],
        ["--local", 3, "--stages", 3],
        ["--local", 2, "--transport", "tcp"],
        ["--local", 1, "--context", 8192],
    ],
    ids=flags_id,
)
def test_a_rank_uses_what_was_announced(flags):
    prompt = "The quick brown fox jumps over the lazy dog. " * 60
    for r in run_json("run", "smollm2", "--max-tokens", 8, *flags, stdin=prompt)["ranks"]:
        assert r["planned_bytes"] >= r["weight_bytes"] + r["kv_bytes"]
        assert r["peak_rss_bytes"] <= 1.1 * r["planned_bytes"] + SLACK_BYTES, r
        assert r["peak_rss_bytes"] >= r["weight_bytes"], "the weights are resident, so the peak cannot be below them"


def test_the_reported_peak_is_the_kernels(one):
    """The same figure seen from outside, while the process lives."""
    with Started("run", "smollm2", "Count:", "--raw", "--local", 1, "--context", 2048, "--max-tokens", 1500, "--ignore-eos") as p:
        (rank,) = p.wait_for_runners(1)
        p.wait_for_text()
        peak = int(re.search(r"VmHWM:\s+(\d+) kB", open(f"/proc/{rank}/status").read())[1]) * 1024
        assert peak <= 1.1 * one["planned_bytes"] + SLACK_BYTES
        assert peak == pytest.approx(one["peak_rss_bytes"], rel=0.25)


def test_too_little_memory_is_refused_with_the_numbers():
    message = refused(*ASK, "--local", 2, "--memory", "20MB")
    assert len(sizes_in(message)) >= 2, f"what is needed and what is there: {message}"
    assert re.search(r"\bfits?\b|--context|more nodes|--local", message), f"what would fit: {message}"


def test_a_budget_of_what_is_planned_is_enough_and_less_is_not(one):
    flags = ["--local", 1, "--context", 2048, "--memory"]
    assert run(*ASK, *flags, mb(one["planned_bytes"])).returncode == 0
    message = refused(*ASK, *flags, mb(one["planned_bytes"] * 0.9))
    assert len(sizes_in(message)) >= 2, message


def test_a_model_too_large_for_one_node_fits_on_three(one, three):
    budget = max(r["planned_bytes"] for r in three) + 1_000_000
    assert budget < one["planned_bytes"], "splitting must make each part smaller than the whole"
    flags = ["--context", 2048, "--memory", mb(budget)]
    refused(*ASK, "--local", 1, *flags)
    assert run_json(*ASK, "--local", 3, *flags)["text"].strip() != ""


UNITS = {"B": 1, "bytes": 1, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@pytest.mark.parametrize("text,size_bytes", [("40MB", 40e6), ("0.04GB", 40e6), ("40MiB", 40 * 2**20), ("41000000", 41e6)])
def test_memory_units(text, size_bytes):
    """The refusal names the budget it understood."""
    message = refused(*ASK, "--local", 1, "--memory", text)
    named = [float(re.match(r"[\d.]+", size)[0]) * UNITS[re.search(r"[A-Za-z]+", size)[0]] for size in sizes_in(message)]
    assert any(n == pytest.approx(size_bytes, rel=0.01) for n in named), f"{size_bytes} is not among {named}: {message}"
