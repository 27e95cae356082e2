"""What cannot work is refused at once: one clear line on stderr, a non-zero exit, nothing loaded, nothing left."""

import os
import struct
import time

import pytest

import models
from harness import DATA, flags_id, refused, run, run_json

RUN = ["run", "smollm2", "Hello"]

BAD_FLAGS = {
    "--local": ["0", "-1", "x", "2.5", "1000000"],
    "--stages": ["0", "-1", "x", "31"],
    "--shares": ["1:2:3", "0:0", "a:b", "1:-1", "1", ":", "nan:1"],
    "--backend": ["cuda", ""],
    "--transport": ["pigeon", ""],
    "--isa": ["mmx", ""],
    "--threads": ["-1", "x"],
    "--memory": ["much", "-5MB", "5XB", ""],
    "--context": ["-1", "x", "99999999999999999999"],
    "--prefill-chunk": ["-1", "x"],
    "--max-tokens": ["-1", "x"],
    "--temperature": ["-1", "x", "nan", "inf"],
    "--top-k": ["x", "1.5"],
    "--top-p": ["-0.1", "2", "nan"],
    "--min-p": ["-0.1", "2"],
    "--repeat-penalty": ["0", "-1", "x"],
    "--seed": ["x", "-1", "99999999999999999999999"],
    "--fault": ["nonsense", "skip:1", "jitter:x"],
}


@pytest.mark.parametrize("flag,value", [(flag, value) for flag, values in BAD_FLAGS.items() for value in values])
def test_a_bad_value_names_its_flag(flag, value, smollm2):
    message = refused(*RUN, f"{flag}={value}")
    word = flag.removeprefix("--").removesuffix("s")
    assert word in message or word.replace("-", "_") in message or word.replace("-", " ") in message, message


@pytest.mark.parametrize(
    "flags,word",
    [
        (["--local", 3, "--stages", 2], "stages"),
        (["--local", 4, "--stages", 2, "--shares", "1:1:1:1"], "shares"),
        (["--local", 2, "--stages", 2, "--layers", "20:20"], "30"),
        (["--local", 2, "--stages", 2, "--layers", "30"], "layers"),
        (["--local", 2, "--stages", 2, "--layers", "30:0"], "layer"),
        (["--local", 2, "--stages", 2, "--layers", "a:b"], "layers"),
        (["--nonsense"], "--nonsense"),
    ],
    ids=flags_id,
)
def test_flags_that_do_not_go_together(flags, word, smollm2):
    assert word in refused(*RUN, *flags)


@pytest.mark.parametrize(
    "args", [[], ["run"], ["fly"], ["inspect"], ["run", "smollm2", "one", "two"]], ids=lambda a: flags_id(a) or "nothing"
)
def test_a_command_that_makes_no_sense(args):
    p = run(*args)
    assert p.returncode > 0 and p.stdout == "" and "terminate" not in p.stderr
    assert "--help" in p.stderr or "verbund" in p.stderr, p.stderr


# --- models --------------------------------------------------------------------------------------------------------------


def gguf(tensors=0, keys=0, rest=b"", version=3):
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + rest


def key(name, kind, value):
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value


def tensor(name, dimensions, kind=0, offset=0):
    return (
        struct.pack("<Q", len(name))
        + name
        + struct.pack("<I", len(dimensions))
        + b"".join(struct.pack("<Q", d) for d in dimensions)
        + struct.pack("<IQ", kind, offset)
    )


HOSTILE = {
    "empty": b"",
    "text": b"This is a letter and no model.\n" * 50,
    "43 bytes": gguf(1, 1)[:24] + b"\0" * 19,
    "magic only": b"GGUF",
    "future version": gguf(version=99),
    "2^63 tensors": gguf(2**63),
    "2^63 keys": gguf(0, 2**63),
    "key of 2^63 bytes": gguf(0, 1, struct.pack("<Q", 2**63) + b"abc"),
    "array of 2^63 numbers": gguf(0, 1, key(b"a", 9, struct.pack("<IQ", 4, 2**63))),
    "arrays in arrays": gguf(0, 1, key(b"a", 9, struct.pack("<IQ", 9, 1) * 100000)),
    "unknown value type": gguf(0, 1, key(b"a", 77, b"\0" * 8)),
    "dimension of 2^42 + 1": gguf(1, 0, tensor(b"token_embd.weight", [2**42 + 1, 2**42 + 1])),
    "10^6 dimensions": gguf(1, 0, struct.pack("<Q", 1) + b"t" + struct.pack("<I", 10**6) + b"\1" * 64),
    "no dimensions of use": gguf(1, 0, tensor(b"t", [0, 0, 0, 0])),
    "offset beyond the file": gguf(1, 0, tensor(b"t", [32], 0, 2**62)),
    "key that is not UTF-8": gguf(0, 1, key(b"\xff\xfe", 4, b"\0\0\0\0")),
    "no architecture": gguf(0, 0),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("args", [["run"], ["inspect"]], ids=" ".join)
def test_a_file_that_is_no_model(args, content, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    begun = time.monotonic()
    message = refused(*args, path)
    assert time.monotonic() - begun < 2
    assert "model.gguf" in message, message


@pytest.mark.parametrize("part", [0.001, 0.5, 0.999])
def test_a_truncated_model(part, smollm2, tmp_path):
    path = tmp_path / "cut.gguf"
    with open(smollm2, "rb") as whole:
        path.write_bytes(whole.read(int(smollm2.stat().st_size * part)))
    message = refused("run", path, "Hello", "--local", 2)
    assert "cut.gguf" in message, message


@pytest.mark.parametrize("model", [m for m in models.TINY if m.container == "safetensors"], ids=models.name)
def test_truncated_safetensors(model, tmp_path):
    for source in model.path.iterdir():
        content = source.read_bytes()
        (tmp_path / source.name).write_bytes(
            content[:-100] if source.name.startswith("model") and source.suffix == ".safetensors" else content
        )
    message = refused("run", tmp_path, "Hello", "--raw")
    assert ".safetensors" in message, message


@pytest.mark.parametrize("path", [os.devnull, "/dev/zero", "/nowhere/model.gguf", "/", str(DATA.parent / "e2e")])
def test_a_path_that_is_no_model(path):
    assert path in refused("run", path, "Hello")


def test_an_empty_folder(tmp_path):
    message = refused("run", tmp_path, "Hello")
    assert str(tmp_path) in message and ("config.json" in message or ".gguf" in message), message


def test_a_fifo_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.gguf")
    refused("run", tmp_path / "pipe.gguf", "Hello", timeout=10)


def test_a_name_that_is_not_there_says_how_to_get_it(tmp_path):
    message = refused("run", "smollm2", "Hello", env={"VERBUND_MODELS": str(tmp_path)})
    assert str(tmp_path) in message and "fetch" in message, message


def test_the_model_folder_is_found(smollm2, tmp_path):
    """$VERBUND_MODELS, then $XDG_DATA_HOME/verbund/models, then ~/.local/share/verbund/models; or the path itself."""
    ask = ["Hello", "--raw", "--local", 1, "--max-tokens", 1, "--temperature", 0, "--hash-logits"]
    expected = run_json("run", smollm2, *ask)["logits_sha256"]
    for variable, folder in (("VERBUND_MODELS", "."), ("XDG_DATA_HOME", "verbund/models"), ("HOME", ".local/share/verbund/models")):
        place = tmp_path / variable / folder
        place.mkdir(parents=True)
        (place / "smollm2.gguf").symlink_to(smollm2)
        env = {"VERBUND_MODELS": "", "XDG_DATA_HOME": "", "HOME": str(tmp_path)} | {variable: str(tmp_path / variable)}
        assert run_json("run", "smollm2", *ask, env=env)["logits_sha256"] == expected, variable
