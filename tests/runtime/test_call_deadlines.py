"""Calls that have not ended, against a simulation: which one is late, and which one a process that is gone was in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from subprocess import PIPE

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hfdsl.plan.deadlines import CallDeadline
from hfdsl.runtime.failures import Called
from hfdsl.runtime.rank.begun_calls import BegunCall, NotePlace, last_begun
from hfdsl.runtime.ray.call_deadlines import CallClocks, SubmittedCall
from tests.nightly import examples

RANKS = 2
LIMIT = 10


@dataclass(frozen=True)
class Node:
    """A call on both ranks of a group: what it waits for, and the seconds that it takes on each rank."""

    group: str
    before: frozenset[int]
    seconds: tuple[int, ...]


@st.composite
def programs(draw: st.DrawFn) -> list[Node]:
    nodes: list[Node] = []
    for number in range(draw(st.integers(1, 7))):
        earlier = st.sampled_from(range(number)) if number else st.nothing()
        before = draw(st.frozensets(earlier, max_size=3)) if number else frozenset()
        group = draw(st.sampled_from("ab"))
        seconds = tuple(draw(st.integers(0, LIMIT - 1)) for _ in range(RANKS))
        before = before.union(*(nodes[node].before for node in before))
        nodes.append(Node(group, before, seconds))
    return nodes


class Simulation:
    """Processes run their calls in order, each as soon as all that it waits for has ended on every rank."""

    def __init__(self, nodes: list[Node], endless: tuple[int, int] | None) -> None:
        self.nodes, self.endless = nodes, endless
        self.began: dict[tuple[int, int], int] = {}
        self.ended: set[tuple[int, int]] = set()

    def tick(self, now: int) -> set[tuple[int, int]]:
        """The calls that have ended by this second."""
        moved = True
        while moved:
            moved = False
            for number, node in enumerate(self.nodes):
                for rank in range(RANKS):
                    call = (number, rank)
                    if call not in self.began and self._may_begin(number, rank):
                        self.began[call] = now
                        moved = True
                    runs = call in self.began and call not in self.ended and call != self.endless
                    if runs and now - self.began[call] >= node.seconds[rank]:
                        self.ended.add(call)
                        moved = True
        return self.ended

    def _may_begin(self, number: int, rank: int) -> bool:
        node = self.nodes[number]
        earlier = (node_number for node_number in range(number) if self.nodes[node_number].group == node.group)
        return all((node_number, rank) in self.ended for node_number in earlier) and all(
            (node_number, peer) in self.ended for node_number in node.before for peer in range(RANKS)
        )


def submitted(node: Node, number: int, rank: int) -> SubmittedCall:
    """A node on a rank, of one step."""
    return SubmittedCall(
        process=(node.group, rank),
        called=Called(f"'call {number}'", 0, 0.0),
        deadline=CallDeadline(LIMIT, "the test"),
        ranks=RANKS,
        step=("plan", 0),
        nodes=1 << number,
        before=sum(1 << predecessor for predecessor in node.before),
    )


@given(nodes=programs(), data=st.data())
@settings(max_examples=examples(200), deadline=None)
def test_only_a_call_that_never_ends_is_late(nodes: list[Node], data: st.DataObject) -> None:
    calls = [(number, rank) for number in range(len(nodes)) for rank in range(RANKS)]
    endless = data.draw(st.sampled_from([None, *calls]))
    simulation, clocks = Simulation(nodes, endless), CallClocks()
    for number, node in enumerate(nodes):
        for rank in range(RANKS):
            clocks.add((number, rank), submitted(node, number, rank))
    now, late = 0, list[SubmittedCall]()
    for now in range(LIMIT * (len(nodes) + 2)):
        clocks.end(set(simulation.tick(now)))
        late = clocks.late(float(now))
        if late:
            break
    if endless is None:
        assert not late
        assert not list(clocks)
    else:
        number, rank = endless
        assert [(call.called.labels, call.process[1]) for call in late] == [(f"'call {number}'", rank)]
        assert now == simulation.began[endless] + LIMIT + 1


def test_a_call_that_failed_in_a_step_is_remembered_while_the_next_step_begins() -> None:
    """Steps of a stream overlap: the driver may begin the next one before it reads the failure."""
    clocks, limit = CallClocks(), CallDeadline(5.0, "launch")
    calls = {
        "step": SubmittedCall(("a", 0), Called("'a.generate'", 4, 0.0), limit, ranks=1, step=("plan", 4)),
        "load": SubmittedCall(("a", 1), Called("'a.load_state'", None, 0.0), limit, ranks=1),
    }
    for key, call in calls.items():
        clocks.add(key, call)
        clocks.fail(key)
    clocks.forget_failed()
    assert clocks.running() == {("a", 0): calls["step"].called}


@given(nodes=programs(), data=st.data())
@settings(max_examples=examples(200), deadline=None)
def test_a_process_that_dies_before_its_last_reply_left_is_found_in_the_call_that_it_was_in(
    nodes: list[Node], data: st.DataObject
) -> None:
    """By its note exactly; without one it is among the calls that are named, of which there are two at most."""
    simulation, clocks = Simulation(nodes, None), CallClocks()
    for number, node in enumerate(nodes):
        for rank in range(RANKS):
            clocks.add((number, rank), submitted(node, number, rank))
    for now in range(data.draw(st.integers(0, LIMIT * len(nodes))) + 1):
        simulation.tick(now)
    group, dead = data.draw(st.sampled_from(sorted({node.group for node in nodes}))), data.draw(st.integers(0, 1))
    own = [(number, dead) for number, node in enumerate(nodes) if node.group == group]
    last_ended = [call for call in own if call in simulation.ended][-1:]
    missing = last_ended if data.draw(st.booleans()) else []
    clocks.end(simulation.ended.difference(missing))
    begun = [call for call in own if call in simulation.began][-1:]
    unended = [call for call in own if call not in simulation.ended or call in missing]
    note = BegunCall("plan", 0, f"call {begun[0][0]}") if begun else None
    named = [called.labels for called in clocks.begun((group, dead), note)]
    candidates = [called.labels for called in clocks.begun((group, dead), None)]
    assert len(candidates) <= 2
    if begun and begun[0] in unended:
        label = f"'call {begun[0][0]}'"
        assert named == [label]
        assert label in candidates
    elif note is not None:
        assert named == [f"'call {number}'" for number, _ in unended[:1]]


KILLED = """
import os, signal
from hfdsl.runtime.rank.begun_calls import CallNote
note = CallNote()
print(note.place.pid, note.place.file, note.place.token, flush=True)
input()
note.begin("ppo", 4, "critic.values")
note.begin("ppo", 4, "reward.score")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")
def test_a_note_outlives_a_process_that_is_killed() -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED], stdin=PIPE, stdout=PIPE, text=True)
    assert process.stdout is not None
    pid, file, token = process.stdout.readline().split()
    note = NotePlace(int(pid), int(file), token).open()
    assert note is not None
    assert NotePlace(int(pid), int(file), "another").open() is None
    with note:
        assert last_begun(note) is None
        process.communicate("\n")
        assert process.returncode == -signal.SIGKILL
        assert last_begun(note) == BegunCall("ppo", 4, "reward.score")
    assert NotePlace(int(pid), int(file), token).open() is None
