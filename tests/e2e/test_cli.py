"""What a person (or a script) sees of `verbund run`: where text goes, how a run ends, what each flag does."""

import fcntl
import json
import os
import re
import select
import subprocess
import termios
import time

import pytest

from harness import ENVIRONMENT, Started, command, flags_id, run, run_json, wait_until

PROMPT = "Once upon a time there was a small village"
RAW = ["run", "smollm2", "--raw"]
ONE = [*RAW, "--local", 1]
GREEDY = [*ONE, "--temperature", 0, "--ignore-eos"]
GREEDY_ON_TWO = [*RAW, "--local", 2, "--temperature", 0, "--ignore-eos"]
TIMINGS = {"load_s", "ttft_s", "prefill_tokens", "prefill_tokens_per_s", "decode_tokens", "decode_tokens_per_s"}
RANK = {"rank", "node", "stage", "share", "weight_bytes", "kv_bytes", "planned_bytes", "peak_rss_bytes"}


@pytest.fixture(scope="module")
def greedy(smollm2):
    """24 greedy tokens after PROMPT: what other runs are compared with."""
    return run_json(*GREEDY, PROMPT, "--max-tokens", 24, "--hash-logits")


# --- output --------------------------------------------------------------------------------------------------------------


def test_json_is_one_object_with_everything(smollm2):
    p = run("run", "smollm2", "Say hello.", "--local", 3, "--json", "--hash-logits", "--max-tokens", 8)
    assert p.returncode == 0, p.stderr
    answer = json.loads(p.stdout)  # one object and nothing else
    assert isinstance(answer["text"], str) and all(isinstance(t, int) for t in answer["token_ids"])
    assert answer["finish_reason"] in ("stop", "length")
    assert re.fullmatch("[0-9a-f]{64}", answer["logits_sha256"])
    assert TIMINGS <= set(answer["timings"]) and all(v >= 0 for v in answer["timings"].values())
    assert answer["timings"]["load_s"] > 0 and answer["timings"]["ttft_s"] > 0
    assert [r["rank"] for r in answer["ranks"]] == [0, 1, 2] and all(RANK <= set(r) for r in answer["ranks"])
    assert sorted(tuple(sorted((link["a"], link["b"]))) for link in answer["links"]) == [(0, 1), (0, 2), (1, 2)]
    assert {link["transport"] for link in answer["links"]} == {"shm"}


def test_the_hash_is_there_only_when_asked_for(greedy):
    assert "logits_sha256" not in run_json(*GREEDY, PROMPT, "--max-tokens", 2)


def test_the_links_tell_the_transport_in_use(smollm2):
    links = run_json(*RAW, PROMPT, "--local", 2, "--max-tokens", 2, "--transport", "tcp")["links"]
    assert [link["transport"] for link in links] == ["tcp"]


def test_rdma_or_the_reason_why_not(smollm2):
    link = run_json(*RAW, PROMPT, "--local", 2, "--max-tokens", 2, "--transport", "verbs")["links"][0]
    if link["transport"] == "verbs":
        assert link["note"] == ""
        return
    assert link["transport"] == "tcp" and "no RDMA: rank 0 has no usable port: " in link["note"]
    p = run(*RAW, PROMPT, "--local", 2, "--max-tokens", 2, "--transport", "verbs", "--require-rdma")
    assert p.returncode == 69 and "no RDMA between rank" in p.stderr


def test_requiring_rdma_of_another_transport_is_refused(smollm2):
    p = run(*RAW, PROMPT, "--require-rdma")
    assert p.returncode == 64 and "--require-rdma: transport shm is not RDMA" in p.stderr


def test_text_goes_to_stdout_and_the_rest_to_stderr(greedy):
    p = run(*GREEDY, PROMPT, "--max-tokens", 24)
    assert p.returncode == 0
    assert p.stdout.rstrip("\n") == greedy["text"].rstrip("\n")
    for word in ("rank", "share", "shm"):
        assert word not in p.stdout
    assert "\x1b" not in p.stdout + p.stderr, "no colours and no cursor movement when it is not a terminal"


def test_the_table_names_ranks_and_rates(smollm2):
    p = run("run", "smollm2", "Say hello.", "--local", 2, "--max-tokens", 8)
    table = p.stderr.lower()
    for word in ("rank", "share", "weights", "kv", "shm", "prefill", "decode", "tokens/s"):
        assert word in table, f"'{word}' is missing: {p.stderr}"


def test_tokens_stream_as_they_come(smollm2):
    with Started(*GREEDY, PROMPT, "--max-tokens", 1500) as p:
        p.wait_for_text(20)
        first = len(p.out())
        assert wait_until(lambda: len(p.out()) > first + 20 and p.alive(), 30)


def test_a_trace_shows_every_rank(greedy, tmp_path):
    trace = tmp_path / "trace.json"
    p = run(*GREEDY_ON_TWO, PROMPT, "--max-tokens", 24, "--trace", trace)
    assert p.returncode == 0, p.stderr
    assert p.stdout.rstrip("\n") == greedy["text"].rstrip("\n")
    events = json.loads(trace.read_text())["traceEvents"]
    assert {e["pid"] for e in events if e["name"] == "process_name" and f"rank {e['pid']} " in e["args"]["name"]} == {0, 1}
    spans = [e for e in events if e["ph"] == "X"]
    assert min(e["ts"] for e in spans) == 0 and all(e["dur"] >= 0 for e in spans)
    for rank in (0, 1):
        steps = {e["args"]["step"]: e for e in spans if e["pid"] == rank and e["name"] == "step"}
        assert len(steps) == 24
        for e in (e for e in spans if e["pid"] == rank and e["name"] in ("norm+qkv", "attention", "o", "mlp", "reduce", "head")):
            step = steps[e["args"]["step"]]
            assert step["ts"] <= e["ts"] and e["ts"] + e["dur"] <= step["ts"] + step["dur"] + 0.01
        last = steps[max(steps)]
        assert last["args"]["rows"] == 1 and last["args"]["sequences"] == 1
    reductions = [e["args"] for e in spans if e["name"] == "reduce" and e["args"]["step"] == max(steps)]
    assert len(reductions) == 2 * 2 * 30 and {r["bytes"] for r in reductions} == {576 * 8}
    assert {e["name"] for e in spans if e["pid"] == 0} >= {"schedule", "sample", "publish", "collect logits"}


@pytest.mark.parametrize(
    "flags, values",
    [
        (["--temperature", 0], 2),  # the best of the other rank: a logit and an id
        (["--temperature", 0.5, "--top-k", 20], 40),
        (["--temperature", 0.5], 49152 // 2),
        (["--temperature", 0, "--hash-logits"], 49152 // 2),
    ],
    ids=flags_id,
)
def test_the_head_sends_what_sampling_needs(flags, values, smollm2, tmp_path):
    trace = tmp_path / "trace.json"
    p = run(*RAW, PROMPT, "--local", 2, "--max-tokens", 3, "--ignore-eos", "--trace", trace, *flags)
    assert p.returncode == 0, p.stderr
    spans = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    for rank, name in ((1, "send logits"), (0, "collect logits")):
        sent = [e["args"]["bytes"] for e in spans if e["pid"] == rank and e["name"] == name]
        assert sent == [4 * values + 4] * 3  # and one word: whether the step is good


# --- prompt --------------------------------------------------------------------------------------------------------------


def test_prompt_from_stdin(greedy):
    answer = run_json(*GREEDY, "--max-tokens", 24, "--hash-logits", stdin=PROMPT)
    assert answer["logits_sha256"] == greedy["logits_sha256"] and answer["text"] == greedy["text"]


def test_the_chat_template_and_the_system_text_are_in_the_prompt(smollm2):
    tokens = lambda *flags: run_json("run", "smollm2", "Hello", "--local", 1, "--max-tokens", 1, *flags)["timings"]["prefill_tokens"]
    raw, chat, system = (
        tokens("--raw"),
        tokens(),
        tokens("--system", "You are a pirate who answers only in rhymes about the open sea and the wind."),
    )
    assert raw < chat and raw <= 2
    assert system != chat


def test_empty_prompt_in_a_chat(smollm2):
    assert len(run_json("run", "smollm2", "", "--local", 1, "--max-tokens", 4)["token_ids"]) > 0


def test_nothing_at_all_to_continue_is_refused(smollm2):
    """Raw and empty: this model adds no first token of its own, so there is nothing to compute from."""
    p = run(*ONE, "", "--max-tokens", 4)
    assert p.returncode > 0 and "prompt" in p.stderr, p


def test_unicode_goes_through(smollm2):
    """run() decodes strictly, so a character cut in half while streaming would raise; and the two forms must agree."""
    ask = [*GREEDY, "--max-tokens", 40]
    prompt = "Grüße aus 東京 🗼👩‍👩‍👧, 🇫🇷 и привет: 東京 🗼👩‍👩‍👧"
    assert run(*ask, stdin=prompt).stdout.rstrip("\n") == run_json(*ask, stdin=prompt)["text"].rstrip("\n")


def test_text_that_is_not_utf8_is_refused(smollm2):
    p = run(*ONE, "--max-tokens", 4, stdin=b"abc \xff\xfe\xc3\x28")
    assert p.returncode > 0 and "UTF-8" in p.stderr, p.stderr


def test_prompt_longer_than_the_context(smollm2):
    p = run(*ONE, "--context", 64, "--max-tokens", 4, stdin="one two three " * 100)
    numbers = [int(n) for n in re.findall(r"\d+", p.stderr)]
    assert p.returncode > 0 and 64 in numbers and any(290 <= n <= 310 for n in numbers), p.stderr


def test_the_context_ends_an_answer(smollm2):
    answer = run_json(*GREEDY, PROMPT, "--context", 64, "--max-tokens", 500)
    assert answer["finish_reason"] == "length"
    assert 50 <= answer["timings"]["prefill_tokens"] + len(answer["token_ids"]) <= 65


# --- the end of an answer ------------------------------------------------------------------------------------------------


def test_max_tokens(greedy):
    none = run_json(*GREEDY, PROMPT, "--max-tokens", 0)
    assert (none["text"], none["token_ids"], none["finish_reason"]) == ("", [], "length")
    one = run_json(*GREEDY, PROMPT, "--max-tokens", 1)
    assert one["token_ids"] == greedy["token_ids"][:1] and one["finish_reason"] == "length"
    assert len(greedy["token_ids"]) == 24 and greedy["finish_reason"] == "length"


def test_a_stop_string_ends_and_is_cut_off(greedy):
    middle = len(greedy["text"]) // 2
    stop = greedy["text"][middle - 4 : middle + 4]  # begins and ends inside words, so across tokens
    before = greedy["text"][: greedy["text"].index(stop)]
    for flags in (["--stop", stop], ["--stop", "never said", "--stop", stop]):
        answer = run_json(*GREEDY, PROMPT, "--max-tokens", 24, *flags)
        assert (answer["text"], answer["finish_reason"]) == (before, "stop")
    assert run(*GREEDY, PROMPT, "--max-tokens", 24, "--stop", stop).stdout.rstrip("\n") == before.rstrip("\n")


def test_a_stop_string_that_only_begins_is_kept(greedy):
    answer = run_json(*GREEDY, PROMPT, "--max-tokens", 24, "--stop", greedy["text"][-3:] + "#")
    assert (answer["text"], answer["finish_reason"]) == (greedy["text"], "length")


def test_the_end_token_and_ignoring_it(smollm2):
    question = [
        "run",
        "smollm2",
        "Answer with one word: what is the capital of France?",
        "--local",
        1,
        "--temperature",
        0,
        "--max-tokens",
        60,
    ]
    ended, ignored = run_json(*question), run_json(*question, "--ignore-eos")
    assert ended["finish_reason"] == "stop" and len(ended["token_ids"]) < 60
    assert ignored["finish_reason"] == "length" and len(ignored["token_ids"]) == 60
    assert "<|im_end|>" not in ended["text"]


# --- sampling ------------------------------------------------------------------------------------------------------------


def sample(*flags):
    return run_json(*RAW, PROMPT, "--ignore-eos", "--max-tokens", 24, *flags)["text"]


def test_a_seed_repeats_a_text(smollm2):
    hot = ["--temperature", 1, "--seed"]
    assert sample(*hot, 7) == sample(*hot, 7)
    assert sample(*hot, 7) != sample(*hot, 8)
    assert sample(*hot, 7) == sample(*hot, 7, "--local", 1) == sample(*hot, 7, "--also", 3)


def test_without_a_seed_texts_differ(smollm2):
    assert len({sample("--temperature", 1) for _ in range(3)}) > 1


@pytest.mark.parametrize("flags", [["--top-k", 1], ["--top-p", 0.000001], ["--min-p", 1]], ids=flags_id)
def test_what_must_equal_greedy(flags, greedy):
    assert sample("--temperature", 1, "--seed", 5, *flags) == greedy["text"]
    assert sample("--temperature", 0, "--seed", 5, "--top-k", 50) == greedy["text"]


@pytest.mark.parametrize(
    "flags", [["--top-k", 0], ["--top-k", 1000000], ["--top-p", 1], ["--min-p", 0], ["--repeat-penalty", 1]], ids=flags_id
)
def test_what_must_change_nothing(flags):
    assert sample("--temperature", 1, "--seed", 5, "--top-k", 0, "--top-p", 1, "--min-p", 0, "--repeat-penalty", 1) == sample(
        "--temperature", 1, "--seed", 5, *complement(flags)
    )


def complement(flags):
    """All filters off, one of them in the way under test."""
    off = {"--top-k": 0, "--top-p": 1, "--min-p": 0, "--repeat-penalty": 1}
    off[flags[0]] = flags[1]
    return [x for pair in off.items() for x in pair]


def test_a_repeat_penalty_changes_a_repetition(smollm2):
    ask = [*GREEDY, "a b a b a b a b a b a b", "--max-tokens", 16]
    assert run_json(*ask)["token_ids"] != run_json(*ask, "--repeat-penalty", 1.8)["token_ids"]


# --- ending early --------------------------------------------------------------------------------------------------------


def test_ctrl_c_at_a_terminal(greedy):
    """The key goes to every process of the terminal's foreground group, the runners too."""
    with Terminal(*GREEDY_ON_TWO, PROMPT, "--max-tokens", 4000, "--context", 4100) as t:
        t.read_until(max(greedy["text"].split(), key=len))
        t.type(b"\x03")
        begun = time.monotonic()
        shown = t.read_to_end()
        assert t.process.wait(3) == 130 and time.monotonic() - begun < 1.5, shown[-1000:]
        assert "terminate" not in shown and " lost" not in shown, shown[-1000:]


def test_a_reader_that_goes_away(smollm2):
    """As in `verbund run ... | head -c 20`."""
    p = subprocess.Popen(
        command(*GREEDY, PROMPT, "--max-tokens", 4000, "--context", 4100), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
    )
    try:
        assert len(p.stdout.read(20)) == 20
        p.stdout.close()
        _, err = p.communicate(timeout=10)
        assert p.returncode != 0 and b"terminate" not in err, err[-1000:]
    finally:
        p.kill()
        p.wait()


class Terminal:
    """The program in the foreground of a terminal of its own."""

    def __init__(self, *args):
        self.leader, follower = os.openpty()
        attach = lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        self.process = subprocess.Popen(
            command(*args),
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env={**ENVIRONMENT, "TERM": "xterm"},
            start_new_session=True,
            preexec_fn=attach,
        )
        os.close(follower)
        self.shown = b""

    def read_until(self, text, timeout_s=60):
        end = time.monotonic() + timeout_s
        while text.encode() not in self.shown:
            assert time.monotonic() < end, f"no '{text}' in {self.shown[-1000:]}"
            if not self._read(0.1):
                raise AssertionError(f"it ended: {self.shown[-1000:]}")

    def read_to_end(self, timeout_s=10):
        end = time.monotonic() + timeout_s
        while time.monotonic() < end and self._read(0.1):
            pass
        return self.shown.decode(errors="replace")

    def type(self, keys):
        os.write(self.leader, keys)

    def _read(self, timeout_s):
        """False at the end: a terminal nobody writes to any more fails with EIO."""
        if not select.select([self.leader], [], [], timeout_s)[0]:
            return True
        try:
            data = os.read(self.leader, 65536)
        except OSError:
            return False
        self.shown += data
        return bool(data)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.leader)
