"""`verbund inspect`, `verbund version` and the help."""

import json
import re

import pytest

import models
from harness import run, run_json


def inspect(*args):
    p = run("inspect", *args, "--json")
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout)


def test_inspect_for_people(smollm2):
    p = run("inspect", "smollm2")
    assert p.returncode == 0, p.stderr
    for word in ("gguf", "llama", "30", "q4_1", "kv", "context"):
        assert word in p.stdout.lower(), f"'{word}' is missing: {p.stdout}"
    assert "\x1b" not in p.stdout


def test_inspect_for_programs(smollm2):
    told = inspect("smollm2")
    assert told["format"].lower().startswith("gguf") and told["family"] == "llama"
    assert told == inspect(smollm2), "a name and its path are the same model"


def test_inspect_counts_memory_for_contexts(smollm2):
    told = inspect("smollm2")
    kv = {m["context"]: m["kv_bytes"] for m in told["memory"]}
    assert kv[8192] / kv[1024] == pytest.approx(8, rel=0.05)
    assert all(m["total_bytes"] == m["kv_bytes"] + told["weight_bytes"] for m in told["memory"])
    assert all(str(context) in run("inspect", "smollm2").stdout for context in kv)


def test_what_inspect_counts_is_what_a_run_holds(smollm2):
    rank = run_json("run", "smollm2", "Hi", "--local", 1, "--max-tokens", 1)["ranks"][0]
    assert rank["weight_bytes"] == inspect("smollm2")["weight_bytes"]


@pytest.mark.parametrize("model", models.TINY, ids=models.name)
def test_inspect_tiny_models(model):
    told = inspect(model.path)
    # Mistral is a llama with a window.
    assert told["family"] == {"mistral": "llama"}.get(model.family, model.family) and told["format"].lower().startswith(model.container)


def test_version():
    p = run("version")
    assert "RDMA here: " in p.stdout
    assert p.returncode == 0 and re.search(r"\bverbund \d+\.\d+\.\d+", p.stdout), p


@pytest.mark.parametrize("args", [["--help"], ["run", "--help"], ["inspect", "--help"], ["version", "--help"]], ids=" ".join)
def test_help(args):
    p = run(*args)
    assert p.returncode == 0 and p.stderr == "" and len(p.stdout) > 50
    assert "--fault" not in p.stdout and "--also" not in p.stdout, "test hooks are not for people"


def test_help_of_run_names_every_flag():
    text = run("run", "--help").stdout
    for flag in (
        "local stages shares layers backend transport threads isa memory context prefill-chunk max-tokens temperature top-k top-p min-p "
        "repeat-penalty seed stop ignore-eos system raw trace json hash-logits require-rdma queue-pair"
    ).split():
        assert f"--{flag}" in text, flag
