"""The promise of docs/DESIGN.md 4.1 on the real program: the hash over the f32 logits of every sampled position is the same
for every way of cutting, carrying, chunking, batching and computing the model."""

import itertools

import pytest

import models
from harness import isas, run_json

SHORT = "The three largest cities of France are"
# More than two blocks of 64 tokens, so that chunks and KV blocks end in different places.
LONG = " ".join(
    f"On day {day} the ship sailed {3 * day + 7} miles to the north and the crew counted {day * day} gulls." for day in range(1, 11)
)

PLACEMENTS = {
    "2 ranks": ["--local", 2],
    "3 ranks": ["--local", 3],
    "4 ranks": ["--local", 4],
    "5 ranks": ["--local", 5],  # more than the demo model's 3 KV heads
    "shares 1:1": ["--local", 2, "--shares", "1:1"],
    "shares 3:1": ["--local", 2, "--shares", "3:1"],
    "shares 2:2:1": ["--local", 3, "--shares", "2:2:1"],
    "2 stages": ["--local", 2, "--stages", 2],
    "2 stages, 20:10": ["--local", 2, "--stages", 2, "--layers", "20:10"],
    "3 stages, 17:1:12": ["--local", 3, "--stages", 3, "--layers", "17:1:12"],
    "2 x 2": ["--local", 4, "--stages", 2],
    "2 x 2, 3:1, 11:19": ["--local", 4, "--stages", 2, "--shares", "3:1", "--layers", "11:19"],
}
CHUNKS = {f"chunk {n}": ["--local", 1, "--prefill-chunk", n] for n in (1, 7, 64, 100000)}
ENGINES = {
    "tcp": ["--local", 2, "--transport", "tcp"],
    "shm": ["--local", 2, "--transport", "shm"],
    "2 stages, tcp": ["--local", 2, "--stages", 2, "--transport", "tcp"],
    "1 thread": ["--local", 1, "--threads", 1],
    "2 threads": ["--local", 1, "--threads", 2],
    "3 ranks of 2 threads": ["--local", 3, "--threads", 2],
    "chunk 7 on 3 ranks": ["--local", 3, "--prefill-chunk", 7],
    "chunk 7 on 2 stages": ["--local", 2, "--stages", 2, "--prefill-chunk", 7],
    "jitter": ["--local", 3, "--fault", "jitter:1"],
    "jitter, tcp": ["--local", 3, "--transport", "tcp", "--fault", "jitter:2"],
    "jitter, 2 x 2": ["--local", 4, "--stages", 2, "--fault", "jitter:3"],
    "with five others": ["--local", 1, "--also", 5],
    "with five others on 2 ranks": ["--local", 2, "--also", 5, "--prefill-chunk", 7],
    "with five others on 2 stages": ["--local", 2, "--stages", 2, "--also", 5],
}


def ask(model, prompt, max_tokens, *flags):
    answer = run_json(
        "run", model, "--raw", "--max-tokens", max_tokens, "--temperature", 0, "--ignore-eos", "--hash-logits", *flags, stdin=prompt
    )
    assert len(answer["token_ids"]) == max_tokens
    assert len(answer["logits_sha256"]) == 64
    return answer["logits_sha256"], answer["token_ids"], answer["text"]


@pytest.fixture(scope="module")
def short_answer(smollm2):
    return ask("smollm2", SHORT, 8, "--local", 1)


@pytest.fixture(scope="module")
def long_answer(smollm2):
    return ask("smollm2", LONG, 4, "--local", 1)


def test_the_hash_tells_answers_apart(short_answer, long_answer):
    assert short_answer[0] != long_answer[0]
    assert short_answer[0] != ask("smollm2", SHORT, 7, "--local", 1)[0]  # it covers every sampled position
    assert short_answer[0] != ask("smollm2", SHORT + " the", 8, "--local", 1)[0]


@pytest.mark.parametrize("flags", PLACEMENTS.values(), ids=PLACEMENTS.keys())
def test_placements(flags, short_answer):
    assert ask("smollm2", SHORT, 8, *flags) == short_answer


@pytest.mark.parametrize("flags", [*CHUNKS.values(), *ENGINES.values()], ids=[*CHUNKS.keys(), *ENGINES.keys()])
def test_chunks_transports_threads_and_batches(flags, long_answer):
    assert ask("smollm2", LONG, 4, *flags) == long_answer


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("isa", isas())
def test_instruction_sets(isa, nodes, short_answer):
    assert ask("smollm2", SHORT, 8, "--local", nodes, "--isa", isa) == short_answer


SAMPLING = {
    "greedy": ["--temperature", 0],
    "top-k": ["--temperature", 0.9, "--top-k", 40, "--seed", 7],
    "top-k of 256, top-p": ["--temperature", 1.3, "--top-k", 256, "--top-p", 0.9, "--seed", 8],
    "top-k, min-p": ["--temperature", 1, "--top-k", 5, "--min-p", 0.05, "--seed", 9],
    "top-p of all": ["--temperature", 0.8, "--top-p", 0.95, "--seed", 10],
}


@pytest.mark.parametrize("sampling", SAMPLING.values(), ids=SAMPLING.keys())
def test_candidates_draw_what_whole_rows_draw(sampling, smollm2):
    """The hash needs whole rows of logits at rank 0; without it the best of each rank are enough where the settings allow it."""

    def tokens(*flags):
        return run_json("run", "smollm2", "--raw", SHORT, "--max-tokens", 16, "--ignore-eos", *sampling, *flags)["token_ids"]

    expected = tokens("--hash-logits")
    assert len(expected) == 16
    for cut in (["--local", 1], ["--local", 2], ["--local", 3, "--also", 5], ["--local", 2, "--stages", 2], ["--local", 4, "--stages", 2]):
        assert tokens(*cut) == expected, cut
        assert tokens(*cut, "--hash-logits") == expected, cut


@pytest.mark.parametrize("kv", ["q8", "f32"])
def test_kv_formats(kv, long_answer):
    """Each format has its own bits, and they are the same however the model is cut, chunked and computed."""
    expected = ask("smollm2", LONG, 4, "--local", 1, "--kv", kv)
    assert expected[0] != long_answer[0]
    for flags in (["--local", 3, "--prefill-chunk", 100], ["--local", 2, "--stages", 2, "--isa", "avx2", "--threads", 2]):
        assert ask("smollm2", LONG, 4, *flags, "--kv", kv) == expected, flags


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_fast_dense(name):
    """--fast-dense has its own bits, and they too are the same however the model is cut, chunked and computed; a quantised model's stay."""
    model = next(m for m in models.TINY if m.name == name)
    plain = ask_tiny(model, "--local", 1)
    expected = ask_tiny(model, "--local", 1, "--fast-dense")
    assert expected[0] != plain[0]
    for isa in isas():
        for flags in (["--local", 2], ["--local", 3, "--prefill-chunk", 33], ["--local", 2, "--stages", 2, "--threads", 2]):
            assert ask_tiny(model, *flags, "--isa", isa, "--fast-dense") == expected, (isa, flags)
    assert ask("smollm2", SHORT, 4, "--local", 2, "--fast-dense") == ask("smollm2", SHORT, 4, "--local", 1)


# --- tiny models of every family and format ------------------------------------------------------------------------------

TINY_PROMPT = LONG[:170]  # mostly one token a byte; two and a half blocks of 64


def ask_tiny(model, *flags):
    return ask(model.path, TINY_PROMPT, 4, *flags)


def tiny_placements(layers):
    """What a model of so many layers can be cut into; 5 ranks leave some of them without a head."""
    cuts = {name: flags for name, flags in PLACEMENTS.items() if "--layers" not in flags and (layers >= 2 or "--stages" not in flags)}
    if layers >= 3:
        cuts["2 stages, uneven"] = ["--local", 2, "--stages", 2, "--layers", f"{layers - 1}:1"]
        cuts["2 x 2, 3:1, uneven"] = ["--local", 4, "--stages", 2, "--shares", "3:1", "--layers", f"1:{layers - 1}"]
        cuts["3 stages"] = ["--local", 3, "--stages", 3]
    return cuts


def test_there_are_tiny_models_of_every_family():
    assert {"llama", "qwen2", "qwen3"} <= {m.family for m in models.TINY}
    assert {"safetensors", "gguf"} <= {m.container for m in models.TINY}


@pytest.mark.parametrize("model", models.TINY, ids=models.name)
def test_tiny_model(model):
    """A few cuts that together use everything, on every family and format."""
    expected = ask_tiny(model, "--local", 1)
    for flags in (
        ["--local", 3, "--prefill-chunk", 7],
        ["--local", 2, "--shares", "3:1", "--transport", "tcp", "--also", 5],
        ["--local", 5],
        ["--local", 1, "--isa", "scalar"],
    ):
        assert ask_tiny(model, *flags) == expected, flags


@pytest.mark.full
@pytest.mark.parametrize("model", models.TINY, ids=models.name)
def test_tiny_model_full_matrix(model):
    expected = ask_tiny(model, "--local", 1)
    for cut, transport, chunk in itertools.product(tiny_placements(model.layers).values(), ("shm", "tcp"), (1, 7, 64, 100000)):
        flags = [*cut, "--transport", transport, "--prefill-chunk", chunk]
        assert ask_tiny(model, *flags) == expected, flags
    for cut, threads, isa in itertools.product(tiny_placements(model.layers).values(), (1, 2), isas()):
        flags = [*cut, "--threads", threads, "--isa", isa, "--also", 5]
        assert ask_tiny(model, *flags) == expected, flags


@pytest.mark.full
@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS.keys())
def test_demo_model_full_matrix(placement, long_answer):
    for transport, chunk, threads, isa in itertools.product(("shm", "tcp"), (1, 7, 100000), (1, 2), isas()[1:]):
        flags = [*placement, "--transport", transport, "--prefill-chunk", chunk, "--threads", threads, "--isa", isa]
        assert ask("smollm2", LONG, 4, *flags) == long_answer, flags


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize("placement", [PLACEMENTS["3 ranks"], PLACEMENTS["2 x 2"]], ids=["3 ranks", "2 x 2"])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_jitter_seeds(seed, placement, transport, long_answer):
    assert ask("smollm2", LONG, 4, *placement, "--transport", transport, "--also", 3, "--fault", f"jitter:{seed}") == long_answer


# Guessed tokens change how rows are put together and nothing else. What repeats is guessed right, what does not is guessed wrong.
REPETITIVE = "one two three four five six seven eight nine ten. one two three four five six seven"


@pytest.mark.parametrize(
    "flags",
    [["--local", 1], ["--local", 3], ["--local", 2, "--stages", 2, "--draft-rows", 40], ["--local", 2, "--also", 5, "--draft-rows", 12]],
    ids=["1 rank", "3 ranks", "2 stages", "with five others"],
)
@pytest.mark.parametrize("prompt", [REPETITIVE, LONG], ids=["repetitive", "long"])
def test_speculation(flags, prompt, smollm2):
    want = ask("smollm2", prompt, 60, "--local", 1)
    answer = run_json(
        "run", "smollm2", "--raw", "--max-tokens", 60, "--temperature", 0, "--ignore-eos", "--hash-logits", "--speculate", "ngram", *flags,
        stdin=prompt,
    )
    assert (answer["logits_sha256"], answer["token_ids"], answer["text"]) == want
    assert 0 < answer["speculation"]["accepted_tokens"] <= answer["speculation"]["drafted_tokens"]


@pytest.mark.parametrize("flags", [["--seed", 7], ["--seed", 7, "--repeat-penalty", 1.3, "--top-k", 40], ["--seed", 7, "--stop", "eight"]])
def test_speculation_with_sampling(flags, smollm2):
    ask_again = ["run", "smollm2", "--raw", "--local", 1, "--max-tokens", 80, *flags]
    plain, guessed = (run_json(*ask_again, *more, stdin=REPETITIVE) for more in ([], ["--speculate", "ngram"]))
    for key in ("text", "token_ids", "finish_reason", "seed"):
        assert guessed[key] == plain[key]
