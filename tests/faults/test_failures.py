"""Who is blamed for a failure, from what Ray's table and the stacks of processes say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hfdsl.errors import LostProcessError, RoleError
from hfdsl.runtime import failures
from hfdsl.runtime.failures import Called, late_ranks, lost_process
from hfdsl.single_controller.stacks import Frame, WatchedProcess
from hfdsl.single_controller.waiting import how_it_ended

CLOSED = RoleError(
    "HF806", "'reward.score' raised on rank 0 in step 4: RuntimeError: [gloo] Connection closed by peer\n\nTrace"
)
LOST = LostProcessError("HF806", "a worker's output is lost (OwnerDiedError)")


def worker(name: str) -> Any:
    return SimpleNamespace(_actor_id=name.encode())


WORKERS = {"reward": [worker("r0"), worker("r1")], "critic": [worker("c0")]}


def table(**dead: str) -> dict[str, dict[str, Any]]:
    """Ray's table, in which these processes are dead, for these causes; others of the cluster are, too."""
    states = {"x9": {"State": "DEAD", "Pid": 9, "DeathCause": "exit code 9"}}
    for number, name in enumerate(("r0", "r1", "c0")):
        states[name] = {
            "State": "DEAD" if name in dead else "ALIVE",
            "Pid": 100 + number,
            "Address": {"IPAddress": "10.0.0.7"},
            "DeathCause": dead.get(name, ""),
        }
    return {name.encode().hex(): state for name, state in states.items()}


@pytest.fixture
def dead(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    causes: dict[str, str] = {}
    monkeypatch.setattr(failures, "actors", lambda: table(**causes))
    monkeypatch.setattr(failures, "SEEN_SECONDS", -1.0)
    monkeypatch.setattr(failures, "NODE_SECONDS", -1.0)
    return causes


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "time", SimpleNamespace(monotonic=lambda: 102.0))


def called(label: str) -> Called:
    return Called(f"'{label}'", 4, 100.0)


RUNNING = {
    ("reward", 0): called("reward.score"),
    ("reward", 1): called("reward.score"),
    ("critic", 0): called("critic.values"),
}


def test_the_dead_are_named_before_the_peer_that_noticed(dead: dict[str, str]) -> None:
    dead["r1"] = "Worker exits with an exit code 1. The process receives a SIGTERM."
    error = lost_process(CLOSED, WORKERS, RUNNING)
    assert error is not None
    died = "rank 1 of 'reward' died in step 4, in 'reward.score', 2.0 s after it was called: "
    assert error.message.splitlines() == [
        f"a worker's process is gone: {died}pid 101 on node 10.0.0.7 was ended by SIGTERM",
        "  waiting for it: rank 0 of 'reward'",
        "  noticed by: 'reward.score' raised on rank 0 in step 4: RuntimeError: [gloo] Connection closed by peer",
    ]


def test_all_that_are_dead_are_named(dead: dict[str, str]) -> None:
    dead |= {"r0": "exit code 3", "c0": ""}
    error = lost_process(LOST, WORKERS, {})
    assert error is not None
    assert error.message == (
        "a worker's process is gone: rank 0 of 'critic' died: pid 102 on node 10.0.0.7 ended without a traceback, as "
        "after SIGKILL (kill -9 or the OOM killer), a crash, or os._exit; "
        "rank 0 of 'reward' died: pid 100 on node 10.0.0.7 ended with exit status 3"
    )


def test_without_a_dead_process_an_error_is_its_own_cause(dead: dict[str, str]) -> None:
    assert lost_process(CLOSED, WORKERS, RUNNING) is None
    assert lost_process(LOST, WORKERS, RUNNING) is None
    dead["r1"] = "exit code 1"
    own = RoleError("HF806", "'reward.score' raised on rank 0 in step 4: ValueError: bad rollout")
    assert lost_process(own, WORKERS, RUNNING) is None


@pytest.mark.parametrize(
    ("report", "how"),
    [
        ("pid: 7 ip: 1.2.3.4 Worker exits with an exit code 4.", "pid 7 on node 1.2.3.4 ended with exit status 4"),
        ("The actor died because its node has died. The node died", "was lost with its node"),
    ],
)
def test_how_a_process_ended(report: str, how: str) -> None:
    assert how_it_ended(report) == how


def frames(*lines: str) -> tuple[Frame, ...]:
    return tuple(Frame(file, 7, function) for function, file in (line.split("@") for line in lines))


CALLER = "_call_body@/h/hfdsl/runtime/rank/executor.py"


def test_late_ranks_are_listed_by_what_holds_them_up(monkeypatch: pytest.MonkeyPatch) -> None:
    stacks = {
        0: frames("wait@/t/torch/distributed/c10d.py", "total@/u/roles.py", "score@/u/roles.py", CALLER, "run@/h/a.py"),
        1: frames("sleep@/u/sleeping.py", "score@/u/roles.py", CALLER),
        2: frames("get@/r/worker.py"),
        3: (),
    }
    monkeypatch.setattr(failures, "stacks", lambda processes: {index: stacks[index] for index in processes})
    processes = {("reward", rank): WatchedProcess("abcdefghijk", 40 + rank, 3, "t", 1) for rank in range(4)}
    running = {("reward", rank): called("reward.score") for rank in range(4)}
    where = "of 'reward' (pid {} on node abcdefgh) in 'reward.score', called 2 s ago: "
    assert late_ranks(processes, running).splitlines()[1:] == [
        f"  rank 3 {where.format(43)}gave no stack: its process is stopped, or out of reach",
        f"  rank 1 {where.format(41)}runs score (/u/roles.py:7), in sleep (/u/sleeping.py:7)",
        f"  rank 0 {where.format(40)}waits for other ranks, in total (/u/roles.py:7)",
    ]
