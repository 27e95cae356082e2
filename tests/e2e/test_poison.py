"""A value outside the range of the fixed-point sums ends its request, at once and with a clear error, wherever in the pipeline it occurs."""
import json
import shutil
import struct
import time

import models
import pytest
from harness import run

SECONDS_MAX = 20  # a data wait is 60 s: nobody may be left waiting


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory):
    """The tiny llama with one layer's down projection blown up: 1e30 in every place."""

    def make(layer):
        source = next(m for m in models.TINY if m.name == "llama").path
        folder = tmp_path_factory.mktemp("poison") / "model"
        shutil.copytree(source, folder)
        path = folder / "model.safetensors"
        data = bytearray(path.read_bytes())
        (length,) = struct.unpack_from("<Q", data)
        tensor = json.loads(bytes(data[8 : 8 + length]))[f"model.layers.{layer}.mlp.down_proj.weight"]
        begin, end = (8 + length + at for at in tensor["data_offsets"])
        large = {"F32": struct.pack("<f", 1e30), "BF16": struct.pack("<f", 1e30)[2:], "F16": struct.pack("<e", 60000.0)}[tensor["dtype"]]
        data[begin:end] = large * ((end - begin) // len(large))
        path.write_bytes(data)
        return folder

    return make


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize(
    "flags",
    [
        ["--local", 1],
        ["--local", 2],
        ["--local", 2, "--stages", 2],
        ["--local", 3, "--stages", 3],
        ["--local", 4, "--stages", 2, "--prefill-chunk", 8],
        ["--local", 2, "--stages", 2, "--transport", "tcp", "--prefill-chunk", 8, "--also", 2],
    ],
    ids=lambda flags: " ".join(str(f) for f in flags),
)
def test_the_request_ends_at_once(poisoned, layer, flags):
    begun = time.monotonic()
    p = run("run", poisoned(layer), "A prompt of several tokens, enough for some chunks.", "--raw", "--max-tokens", 4, *flags, timeout=90)
    assert time.monotonic() - begun < SECONDS_MAX
    assert p.returncode == 64, p.stderr
    assert "finite" in p.stderr and len(p.stderr.strip().splitlines()) <= 3
