"""More ranks than cores: nobody may spin another one off the processor."""

import os

from harness import run_json

ASK = ["run", "smollm2", "Count:", "--raw", "--max-tokens", 48, "--ignore-eos", "--temperature", 0, "--threads", 1]


def test_more_ranks_than_cores_finish(figure, smollm2):
    rate = {n: run_json(*ASK, "--local", n)["timings"]["decode_tokens_per_s"] for n in (1, 2, 5)}
    figure(
        f"decode on {os.cpu_count()} cores: "
        + ", ".join(f"{n} rank(s) {r:.1f} tokens/s" for n, r in rate.items())
        + f"; 5 against 1: {rate[5] / rate[1]:.2f}"
    )
    assert rate[5] > rate[1] / 3


def test_twice_as_many_ranks_as_cores_on_tcp(smollm2):
    ranks = min(9, 2 * os.cpu_count() + 1)
    answer = run_json(*ASK, "--local", ranks, "--transport", "tcp")
    assert len(answer["token_ids"]) == 48 and len(answer["ranks"]) == ranks
