#!/usr/bin/env python3
"""Writes the seed corpus beside this file: tiny valid files that reach every branch of the parsers. Standard library only.

    python3 tests/fuzz/make_corpus.py
"""
import json
import pathlib
import random
import re
import struct

HERE = pathlib.Path(__file__).resolve().parent / "corpus"
BLOCKS = {"F32": (0, 1, 4, []), "F16": (1, 1, 2, []), "BF16": (30, 1, 2, []), "Q4_0": (2, 32, 18, [0]), "Q4_1": (3, 32, 20, [0, 2]),
          "Q5_0": (6, 32, 22, [0]), "Q5_1": (7, 32, 24, [0, 2]), "Q8_0": (8, 32, 34, [0]), "Q2_K": (10, 256, 84, [80, 82]),
          "Q3_K": (11, 256, 110, [108]), "Q4_K": (12, 256, 144, [0, 2]), "Q5_K": (13, 256, 176, [0, 2]), "Q6_K": (14, 256, 210, [208]),
          "MXFP4": (39, 32, 17, [])}


def string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf(keys, tensors, version=3):
    """keys: raw key-value pairs; tensors: name -> (type id, dims, data)."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join(keys)
    data = b""
    for name, (kind, dims, raw) in tensors.items():
        head += string(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, len(data))
        data += raw + b"\0" * (-len(raw) % 32)
    return head + b"\0" * (-len(head) % 32) + data


def block(rng, size, scales):
    raw = bytearray(rng.randbytes(size))
    for at in scales:
        raw[at:at + 2] = struct.pack("<e", rng.uniform(-1, 1))
    return bytes(raw)


def gguf_seeds():
    rng = random.Random(1)
    kinds = [(0, "<B", 7), (1, "<b", -7), (2, "<H", 7), (3, "<h", -7), (4, "<I", 7), (5, "<i", -7), (6, "<f", .5), (7, "<B", 1), (10, "<Q", 7), (11, "<q", -7), (12, "<d", .5)]
    keys = [string(f"k{kind}") + struct.pack("<I", kind) + struct.pack(form, value) for kind, form, value in kinds]
    keys += [string("s") + struct.pack("<I", 8) + string("ß"), string("a") + struct.pack("<IIQ", 9, 8, 2) + string("x") + string(""),
             string("n") + struct.pack("<IIQIQ", 9, 9, 1, 4, 1) + struct.pack("<I", 5), string("general.alignment") + struct.pack("<II", 4, 32)]
    yield "metadata", gguf(keys, {})
    yield "version2", gguf([], {"n": (0, [4], struct.pack("<4f", 1, 2, 3, 4))}, 2)
    for name, (kind, elements, size, scales) in BLOCKS.items():
        yield name, gguf([], {"w": (kind, [elements * 2, 2], b"".join(block(rng, size, scales) for _ in range(4)))})
    yield "several", gguf(keys[:2], {"a": (0, [4], bytes(16)), "b": (8, [32, 1, 2], block(rng, 34, [0]) * 2), "c": (1, [], bytes(2))})


def safetensors(config, tensors):
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text, config = json.dumps(header).encode(), json.dumps(config).encode()
    return struct.pack("<H", len(config)) + config + struct.pack("<Q", len(text)) + text + data


def safetensors_seeds():
    rng = random.Random(2)
    for dtype, size in (("F32", 4), ("F16", 2), ("BF16", 2), ("I64", 8)):
        yield dtype, safetensors({}, {"w": (dtype, [2, 3], rng.randbytes(6 * size)), "e": (dtype, [0, 3], b"")})
    for bits in (2, 3, 4, 5, 6, 8):
        tensors = {"m.weight": ("U32", [2, 2 * bits], rng.randbytes(16 * bits)), "m.scales": ("F16", [2, 2], struct.pack("<4e", 1, 2, 3, 4)),
                   "m.biases": ("F16", [2, 2], bytes(8))}
        yield f"affine{bits}", safetensors({"quantization": {"group_size": 32, "bits": bits}}, tensors)
    mx = {"m.weight": ("U32", [2, 8], rng.randbytes(64)), "m.scales": ("U8", [2, 2], bytes([0, 1, 127, 254]))}
    yield "mxfp4", safetensors({"quantization": {"group_size": 64, "bits": 4, "m": {"group_size": 32, "bits": 4, "mode": "mxfp4"}, "n": False}}, mx)
    yield "foreign", safetensors({"quantization_config": {"quant_method": "fp8"}}, {})


def rdma_offer_seeds():
    def text(s):
        return struct.pack("<H", len(s)) + s.encode()

    def port(device, network, gid, index, kinds=3, prefix=24, lid=0):
        return text(device) + struct.pack("<BBBBBHH", 1, network, 3, kinds, prefix, lid, index) + gid

    def offer(problem, ports, required=0, kinds=3):
        return b"\xb7\x01" + text(problem) + struct.pack("<BBIIB", required, kinds, 16384, 24, len(ports)) + b"".join(ports)

    ipv4 = bytes(10) + b"\xff\xff\x0a\x4d\x00\x01"
    yield "offer", offer("", [port("rxe0", 2, ipv4, 1), port("rdma_en3", 2, ipv4, 1, kinds=1)])
    yield "offer_infiniband", offer("", [port("mlx5_0", 1, b"\xfe\x80" + bytes(14), 0, prefix=0, lid=7)], required=1, kinds=2)
    yield "offer_none", offer("no RDMA device", [])
    yield "card", b"\xb7\x02" + text("") + struct.pack("<II", 17, 0xABCDEF)
    yield "ready", b"\xb7\x03" + text("")
    yield "ready_not", b"\xb7\x03" + text("cannot connect the queue pair")


def output_parser_seeds():
    """Format, reasoning and flags, tokens; then text, in which byte 1 stands around marks that are tokens."""
    said = [(0, '<think>a</think>\n<tool_call>{"name": "f", "arguments": {"a": "}\\""}}</tool_call>\n<tool_call>'),
            (0, "<tool_call><function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter></function></tool_call> x"),
            (0, "a `<tool_call>` b <tool_call>f<arg_key>b</arg_key><arg_value>3</arg_value></tool_call>"),
            (1, "<seed:tool_call><function=g></function></seed:tool_call>"),
            (2, '<minimax:tool_call><invoke name="f"><parameter name="a">x</parameter></invoke></minimax:tool_call>'),
            (3, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
            (4, '<｜DSML｜tool_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="b" string="false">1</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>'),
            (5, '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a":1}<|tool_call_end|><|tool_calls_section_end|>'),
            (6, '{"name": "f", "parameters": {}}; {"name": "g"}'), (7, "[f(a='x\\n', b=-1.5e3), g(c={'d': (1, [None])})]"),
            (8, '[TOOL_CALLS]f[CALL_ID]abc[ARGS]{"a": 1}[TOOL_CALLS][{"name": "g"}]'), (9, '<|tool_call>call:f{a:<|"|>x<|"|>,b:[1,{c:true}]}<tool_call|>'),
            (10, "<start_function_call>call:f{a:<escape>x<escape>}<end_function_call>"), (11, '<|tool_call|>[{"name": "f"}]'), (12, 'functools[{"name": "f"}]'),
            (13, '<tool_calls>[{"name": "f"}]</tool_calls>'), (14, '<TOOLCALL>[{"name": "f"}]</TOOLCALL>'),
            (15, '<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'),
            (15, "<|channel|>final<|message|>b<|return|>")]
    for i, (kind, text) in enumerate(said):
        for flags, tokens in ((0, 0), (0x40, 0), (0x80, 1)):
            marked = re.sub(r"(<[^<>]*>|\[[A-Z_]+\])", "\x01\\1\x01", text) if tokens else text
            yield f"{i}_{flags:02x}", bytes([kind, flags, tokens]) + marked.encode()


if __name__ == "__main__":
    for folder, seeds in (("gguf", gguf_seeds()), ("safetensors", safetensors_seeds()), ("rdma_offer", rdma_offer_seeds()),
                          ("output_parser", output_parser_seeds())):
        (HERE / folder).mkdir(parents=True, exist_ok=True)
        for name, raw in seeds:
            (HERE / folder / name).write_bytes(raw)
