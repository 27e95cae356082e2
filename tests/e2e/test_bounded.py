"""A rank that dies, hangs or diverges ends the run within the deadline with an error that names it, and leaves nothing
behind (conftest.py looks for runners and shared memory after every test)."""

import os
import signal
import time

import pytest

from harness import Started, flags_id, run, wait_until

END_S = 5.0  # the default deadline is 2 s; the rest is for tearing down on a busy machine
# With chunks of one token this takes long enough to be caught in the middle at any speed.
LONG_PROMPT = " ".join(str(n) for n in range(1500))

DECODE = ["--raw", "--max-tokens", 4000, "--context", 4200, "--ignore-eos", "--temperature", 0]


def loading(*flags):
    p = Started("run", "smollm2", "Hello", "--fault", "slow-load:20000", *flags)
    ranks = p.wait_for_runners(3)
    time.sleep(0.7)
    return p, ranks


def prefilling(*flags):
    p = Started("run", "smollm2", "--raw", "--context", 8000, "--prefill-chunk", 1, "--max-tokens", 8, *flags, stdin=LONG_PROMPT)
    ranks = p.wait_for_runners(3)
    # Loading one third of the demo model takes a fraction of this much processor time, prefilling 5000 tokens one by one much more.
    assert wait_until(lambda: all(cpu_seconds(r) > 1.5 for r in ranks) or not p.alive(), 60)
    return p, ranks


def decoding(*flags):
    p = Started("run", "smollm2", "Count to a thousand:", *DECODE, *flags)
    ranks = p.wait_for_runners(3)
    p.wait_for_text()
    return p, ranks


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def assert_ends_naming(p, rank, begun):
    took = p.wait_for_end(END_S)
    assert took is not None, f"still running {END_S} s later: {p.err()[-1000:]}"
    assert time.monotonic() - begun < END_S
    assert p.process.returncode > 0, f"exit {p.process.returncode}: {p.err()[-1000:]}"
    assert f"rank {rank}" in p.err(), p.err()[-1000:]
    assert wait_until(lambda: not p.runners(), 2) is not None


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGSTOP], ids=["SIGKILL", "SIGSTOP"])
@pytest.mark.parametrize("phase", [loading, prefilling, decoding], ids=["load", "prefill", "decode"])
def test_one_rank_is_lost(phase, signal_, rank):
    p, ranks = phase("--local", 3)
    with p:
        assert phase is decoding or p.out() == "", "it was to be caught before the first token"
        os.kill(ranks[rank], signal_)
        assert_ends_naming(p, rank, time.monotonic())


@pytest.mark.parametrize("flags", [["--transport", "tcp"], ["--stages", 3], ["--stages", 3, "--transport", "tcp"]], ids=flags_id)
@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGSTOP], ids=["SIGKILL", "SIGSTOP"])
def test_one_rank_is_lost_on_other_links(flags, signal_):
    p, ranks = decoding("--local", 3, *flags)
    with p:
        os.kill(ranks[1], signal_)
        assert_ends_naming(p, 1, time.monotonic())


def test_the_only_rank_is_lost():
    with Started("run", "smollm2", "Count to a thousand:", *DECODE, "--local", 1) as p:
        (rank,) = p.wait_for_runners(1)
        p.wait_for_text()
        os.kill(rank, signal.SIGKILL)
        assert_ends_naming(p, 0, time.monotonic())


@pytest.mark.parametrize("flags", [["--local", 2], ["--local", 3, "--transport", "tcp"], ["--local", 2, "--stages", 2]], ids=flags_id)
def test_a_rank_that_skips_a_step_is_found(flags):
    begun = time.monotonic()
    p = run("run", "smollm2", "Hello", "--raw", "--max-tokens", 30, "--ignore-eos", "--fault", "skip:1@5", *flags, timeout=60)
    assert p.returncode > 0, p.stdout
    assert "ranks diverged" in p.stderr and "rank 1" in p.stderr, p.stderr
    assert time.monotonic() - begun < 20  # all of it, the load too


@pytest.mark.parametrize("fault", ["slow-plan:4000", "slow-load:4000"])
def test_slow_is_not_lost(fault):
    """A rank that plans or loads for longer than a silent one may live is alive all the same."""
    p = run("run", "smollm2", "Hello", "--raw", "--max-tokens", 4, "--local", 2, "--fault", fault)
    assert p.returncode == 0, p.stderr
    assert p.stdout.strip() != ""


@pytest.mark.parametrize("phase", [loading, prefilling, decoding], ids=["load", "prefill", "decode"])
def test_the_parent_is_killed(phase):
    p, ranks = phase("--local", 3)
    with p:
        p.process.kill()
        p.process.wait()
        left = lambda: [r for r in ranks if os.path.exists(f"/proc/{r}") and "\nState:\tZ" not in open(f"/proc/{r}/status").read()]
        assert wait_until(lambda: not left(), END_S), f"runners outlive their parent: {left()}"


@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("phase", [loading, prefilling, decoding], ids=["load", "prefill", "decode"])
def test_an_interrupt_ends_it_at_once(phase, signal_):
    p, _ = phase("--local", 3)
    with p:
        p.process.send_signal(signal_)
        took = p.wait_for_end(END_S)
        assert took is not None and took < 1.5, f"{took} s; {p.err()[-1000:]}"
        assert p.process.returncode in ((130,) if signal_ == signal.SIGINT else (130, 143)), p.err()[-1000:]
        assert "terminate" not in p.err() and " lost" not in p.err(), p.err()[-1000:]  # no rank failed: it was asked to end
