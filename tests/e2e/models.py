"""The tiny random models of tests/data/models (made by scripts/fixtures): every family in every container."""

import json
import struct
from dataclasses import dataclass
from pathlib import Path

from harness import DATA

ROOT = DATA / "models"


@dataclass
class TinyModel:
    name: str
    family: str
    container: str
    path: Path
    layers: int


def _layers(path):
    if path.is_dir():
        return json.loads((path / "config.json").read_text())["num_hidden_layers"]
    # In GGUF metadata a key is followed by its type (4 is uint32) and its value.
    header = path.read_bytes()
    kind, layers = struct.unpack_from("<II", header, header.index(b".block_count") + len(b".block_count"))
    assert kind == 4, path
    return layers


def _read():
    manifest = ROOT / "manifest.json"
    cases = json.loads(manifest.read_text())["cases"] if manifest.exists() else []
    return [TinyModel(c["name"], c["family"], c["container"], ROOT / c["path"], _layers(ROOT / c["path"])) for c in cases]


TINY = _read()


def name(model):
    return model.name
