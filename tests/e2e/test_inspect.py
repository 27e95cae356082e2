"""`verbund inspect`, `verbund version` and the help."""

import json
import re

import pytest

import models
from harness import run


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


def test_inspect_counts_memory_for_a_context(smollm2):
    short, long = run("inspect", "smollm2", "--context", 1024).stdout, run("inspect", "smollm2", "--context", 8192).stdout
    assert "1024" in short and "8192" in long and short != long


@pytest.mark.parametrize("model", models.TINY, ids=models.name)
def test_inspect_tiny_models(model):
    told = inspect(model.path)
    assert told["family"] == model.family and told["format"].lower().startswith(model.container)


def test_version():
    p = run("version")
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
        "repeat-penalty seed stop ignore-eos system raw trace json hash-logits"
    ).split():
        assert f"--{flag}" in text, flag
