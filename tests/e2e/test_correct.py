"""The demo model says what it is known to say. (Logits of tiny models against references: tests/model.)"""

from harness import run_json


def test_it_answers_sensibly(smollm2):
    ask = ["run", "smollm2", "What is the capital of France? Answer in one sentence."]
    answer = run_json(*ask, "--max-tokens", 32, "--temperature", 0)
    assert "Paris" in answer["text"] and answer["finish_reason"] == "stop"
