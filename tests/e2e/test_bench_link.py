"""`verbund bench link`: what a script reads of it, and what it refuses."""

import json
import xml.etree.ElementTree

import pytest

from harness import run


def test_bench_link_measures_every_pair_and_draws_it(tmp_path):
    picture = tmp_path / "links.svg"
    done = run("bench", "link", "--transport", "shm,tcp", "--ranks", "2,3", "--sizes", "512,64KiB", "--repeat", "20", "--json",
                       "--svg", picture)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [(m["transport"], m["ranks"]) for m in told["meshes"]] == [("shm", 2), ("shm", 3), ("tcp", 2), ("tcp", 3)]
    for mesh in told["meshes"]:
        assert [p["ranks"] for p in mesh["pairs"]] == ([[0, 1]] if mesh["ranks"] == 2 else [[0, 1], [0, 2], [1, 2]])
        for rows in [mesh["all_reduce"], *(p["rows"] for p in mesh["pairs"])]:
            assert [row["bytes"] for row in rows] == [512, 65536]
            assert all(0 < row["p50_us"] <= row["p99_us"] and row["gb_per_s"] > 0 for row in rows)
        assert all(p["transport"] == mesh["transport"] for p in mesh["pairs"])
    drawn = xml.etree.ElementTree.parse(picture).getroot()
    assert len(drawn.findall("{http://www.w3.org/2000/svg}path")) == 3 * 4


@pytest.mark.parametrize("flags, words", [(["--sizes", "100"], "multiple of 8"), (["--transport", "pigeon"], "pigeon"),
                                          (["--svg", "/no/such/folder/x.svg", "--sizes", "8", "--repeat", "10"], "cannot be written")])
def test_bench_link_refuses_what_it_cannot_do(flags, words):
    done = run("bench", "link", *flags)
    assert done.returncode != 0 and words in done.stderr
