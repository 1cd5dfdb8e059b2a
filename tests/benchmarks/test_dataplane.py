"""The benchmarks of the data plane run and show their rows; their times are for people to read."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.dataplane import relay, soak
from benchmarks.dataplane.columns import CHAINS, MAKES, NARROW, WIDE, Body, computed, expected, prompts
from benchmarks.dataplane.measure import Summary

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.timeout(1200)  # whichever test comes first waits for all commands: minutes on two quiet cores
VERL = ["verl, TensorDict", "verl, DataProto", "verl, tuned by hand"] if find_spec("verl") else []


CHAIN = ("chain", "--times", "1", "--warm", "0")
COMMANDS = {
    "split": (*CHAIN, "--mib", "0.125", "--ranks", "1", "--watched", "1", "--pools", "split", "--json",
              "--paths", "verl", "hand", "hfdsl", "floor"),
    "shared": (*CHAIN, "--mib", "0.25", "--ranks", "2", "--watched", "0", "--pools", "shared",
               "--paths", "hand", "floor"),
    "overhead": ("overhead", "--workers", "2", "--world", "2", "--times", "1", "--json"),
    "overlap": ("overlap", "--seconds", "0.01", "--ranks", "1", "--times", "1", "--json"),
    "balance": ("balance", "--rows", "16", "--longest", "32", "--ranks", "2", "--seconds", "0", "--times", "2",
                "--json"),
    "planning": ("planning", "--ranks", "64", "--rows", "4", "40", "--times", "1", "--json"),
    "soak": ("soak", "--steps", "16", "--samples", "4", "--rows", "8", "--ranks", "1", "--json"),
    "relayed": ("soak", "--steps", "8", "--samples", "2", "--rows", "8", "--ranks", "2", "--relay", "--json"),
}  # fmt: skip  # one command a line or two


def run(module: str, *options: str) -> str:
    process = subprocess.run(
        [sys.executable, "-m", module, *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def ended(request: pytest.FixtureRequest) -> Any:
    """How the commands of all tests that are not skipped end; they run in one process with one cluster."""
    items: list[Any] = [item for item in request.session.items if item.path == request.path]
    items = [item for item in items if "printed" in item.fixturenames and not item.get_closest_marker("skip")]
    names = {item.callspec.params["printed"] for item in items}
    commands = {name: command for name, command in COMMANDS.items() if name in names}
    return json.loads(run("tests.benchmarks.in_one_cluster", json.dumps(commands)).splitlines()[-1])


@pytest.fixture
def printed(request: pytest.FixtureRequest, ended: Any) -> str:
    """What a command prints."""
    end = ended[request.param]
    assert not end["error"], end["out"] + end["error"]
    return str(end["out"])


def command(name: str) -> pytest.MarkDecorator:
    """The test is about what this command prints."""
    return pytest.mark.parametrize("printed", [name], indirect=True)


def last(out: str) -> Any:
    """The object that ``--json`` prints last: Ray may have printed warnings before."""
    return json.loads(out.splitlines()[-1])


# -- what the paths share


def test_a_row_is_64_kib_and_the_narrow_one_a_third_of_it() -> None:
    sizes = {c.name: sum(width * dtype.itemsize for width, dtype in c.columns.values()) for c in CHAINS.values()}
    assert sizes["wide"] == 2**16
    assert sum(NARROW.columns[n][0] * NARROW.columns[n][1].itemsize for n in NARROW.crossing()) == 7 * 2**10


@pytest.mark.parametrize("chain", CHAINS.values(), ids=lambda chain: chain.name)
def test_every_column_that_is_read_counts_in_the_digests(chain: Any) -> None:
    columns: dict[str, Any] = {"prompts": prompts(4, 1, chain)}
    for role in MAKES:
        if chain.makes(role):
            columns |= computed(chain, role, columns)
    for role in ("update_critic", "update_actor"):
        right = computed(chain, role, columns)
        for name in chain.reads[role]:
            changed = columns[name].clone()
            changed[-1, -1] += 1
            assert computed(chain, role, columns | {name: changed}) != right, name


def test_two_batches_have_two_digests() -> None:
    assert expected(WIDE, 4, 1) != expected(WIDE, 4, 2)


def test_a_body_returns_the_same_tensors_until_its_batch_changes() -> None:
    body = Body(WIDE, "generate")
    first = body({"prompts": prompts(4, 1)})
    assert body({"prompts": prompts(4, 1)}) is first
    assert not torch.equal(body({"prompts": prompts(4, 2)})["input_ids"], first["input_ids"])
    shards = [body({"prompts": shard}) for shard in prompts(4, 1).chunk(2)]
    assert not torch.equal(shards[0]["input_ids"], shards[1]["input_ids"])


def test_a_soak_finds_what_grows() -> None:
    flat = [100.0, 90.0, 104.0, 101.0, 99.0, 103.0, 100.0, 102.0]
    leaking = [float(value) for value in range(40, 120, 10)]
    assert soak.growing({"driver MiB": flat, "driver handles": [40.0] * 8, "objects": flat}) == []
    assert soak.growing({"driver MiB": leaking, "driver handles": leaking}) == ["driver MiB", "driver handles"]
    assert soak.slope(list(range(100, 900, 100)), leaking) == pytest.approx(100)


# -- the commands


@pytest.mark.nightly
@command("split")
@pytest.mark.ray
def test_the_chain_on_split_pools(printed: str) -> None:
    [group] = last(printed)["groups"]
    hand, floor = ["Ray by hand, call by call", "Ray by hand, resident"], "shared memory, no Ray"
    narrow = [f"{name}, narrow" for name in hand]
    names = [floor, f"{floor}, narrow", *VERL, *hand, *narrow, "**hfdsl**", "**hfdsl**, narrow"]
    assert list(group["paths"]) == names


@pytest.mark.nightly
@command("shared")
@pytest.mark.ray
def test_the_chain_on_one_pool_as_a_table(printed: str) -> None:
    lines = printed.splitlines()
    [head] = [line for line in lines if "driver peak MiB" in line]
    rows = [line for line in lines if line.startswith(("| Ray by hand", "| shared memory"))]
    assert [row.count("|") for row in rows] == [head.count("|")] * 3


@pytest.mark.nightly
@command("overhead")
@pytest.mark.ray
def test_overhead(printed: str) -> None:
    steps = last(printed)["steps"]
    assert list(steps) == ["chain, 2 workers, one pool", "chain, 2 workers, two pools", "one call, 2 ranks"]
    assert all("**hfdsl**" in of and "Ray by hand" in "".join(of) for of in steps.values())


@pytest.mark.nightly
@pytest.mark.ray
def test_startup() -> None:
    options = ("--store", "100", "--ranks", "1", "--times", "1", "--paths", "light", "--json")
    seconds = last(run("benchmarks.dataplane.startup", *options))["seconds"]
    assert [len(times) for times in seconds.values()] == [1, 1]


@pytest.mark.nightly
@command("overlap")
@pytest.mark.ray
def test_overlap(printed: str) -> None:
    rows = last(printed)["rows"]
    assert len(rows) == 6
    assert {row["critical_ms"] for row in rows} == {10, 30}


@pytest.mark.nightly
@command("balance")
@pytest.mark.ray
def test_balance(printed: str) -> None:
    in_order, balanced = last(printed)["rows"]
    assert balanced["imbalance"] < in_order["imbalance"]


@pytest.mark.nightly
@command("planning")
@pytest.mark.ray
def test_planning(printed: str) -> None:
    got = last(printed)
    assert [name for name, *_ in got["plans"]] == ["64, dp", "64, pp=8, tp=8"]
    assert [rows for rows, *_ in got["steps"]] == [4, 40]


def test_where_relays_meet_calls_by_the_driver() -> None:
    calls, relayed = {8: 5.0, 16: 8.0, 32: 14.0}, {8: 7.0, 16: 7.5, 32: 9.0}
    assert relay.crossing(calls, relayed) == pytest.approx(8 + 8 * 2 / 2.5)
    assert relay.crossing(relayed, calls) == 8
    assert relay.crossing(calls, {8: 7.0, 16: 9.0, 32: 15.0}) is None
    assert relay.crossing(calls, calls) == 8

    def summary(wall: float, cpu: float) -> Summary:
        return Summary(wall, wall, cpu, 0, 0, 0, 0, 0)

    steps = {n: {"**hfdsl**, a call per rank": summary(5.0 + n, n * 0.5)} for n in (16, 8)}
    assert relay.as_on_a_cluster(steps, relay.DIRECT) == {8: 13.0, 16: 17.0}


@pytest.mark.nightly
@pytest.mark.parametrize(("printed", "samples"), [("soak", 4), ("relayed", 2)], indirect=["printed"])
@pytest.mark.ray
def test_a_short_soak(printed: str, samples: int) -> None:
    series = last(printed)["series"]
    assert set(series) == set(soak.ALLOWED)
    assert all(len(values) == samples for values in series.values())
