"""The demo model says what it is known to say. (Logits of the tiny models against their references: tests/model.)"""

import json

import pytest

from harness import DATA, run_json

# Greedy tokens and the best five logits of each position, in f32 by an independent implementation (scripts/fixtures).
REFERENCE = json.loads((DATA / "models" / "smollm2_greedy.json").read_text())["greedy"]

# Activations are rounded to 8 bits, which moves a logit of this model by some 0.1: two that are closer than this may change places.
NEAR_TIE = 0.25


@pytest.mark.parametrize("expected", REFERENCE, ids=lambda e: e["prompt"][:24])
def test_greedy_text_leaves_the_reference_only_at_a_near_tie(expected, smollm2, figure):
    ask = ["run", "smollm2", "--raw", "--temperature", 0, "--ignore-eos", "--max-tokens", len(expected["token_ids"])]
    answer = run_json(*ask, stdin=expected["prompt"])
    assert answer["timings"]["prefill_tokens"] == len(expected["prompt_ids"])
    pairs = list(zip(answer["token_ids"], expected["token_ids"], expected["top"]))
    assert len(pairs) == len(expected["token_ids"]) == len(answer["token_ids"])
    at = next((i for i, (ours, theirs, _) in enumerate(pairs) if ours != theirs), None)
    if at is None:
        figure(f"{expected['prompt'][:24]!r}: all {len(pairs)} tokens as in the reference")
        return
    ours, theirs, top = pairs[at]
    logits = dict(zip(top["ids"], top["logits"]))
    assert ours in logits, f"token {at}: {ours} is not among the reference's best five {top}"
    figure(f"{expected['prompt'][:24]!r}: leaves the reference at token {at}, where the logit gap is {logits[theirs] - logits[ours]:.3f}")
    assert logits[theirs] - logits[ours] < NEAR_TIE


def test_it_answers_sensibly(smollm2):
    ask = ["run", "smollm2", "What is the capital of France? Answer in one sentence."]
    answer = run_json(*ask, "--max-tokens", 32, "--temperature", 0)
    assert "Paris" in answer["text"] and answer["finish_reason"] == "stop"
