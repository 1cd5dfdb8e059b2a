"""Recovery on a backend of numbers: results are those of a run that loses nothing, and no step is repeated in vain."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import HfWarning, LostProcessError, RoleError
from hfdsl.runtime.recovery.steps import Recovery

GROUPS = {"actor": True, "critic": True, "judge": False, "engine": False}
"""Process groups, and whether they keep a state."""

CALLS = (("actor", False), ("judge", False), ("critic", True), ("engine", False), ("actor", True))
"""The calls of a step: whose, and whether it changes a state."""


@dataclass
class Numbers:
    """A state is a number; before each call the next of ``losses`` says which group is lost there, if any."""

    losses: list[str | None]
    states: dict[str, int | None] = field(default_factory=lambda: {"actor": 1, "critic": 1})
    gone: set[str] = field(default_factory=set)
    changed: set[tuple[str, int]] = field(default_factory=set)
    lost_copies: int = 0

    def step(self, number: int) -> tuple[Any, ...]:
        for group, changes in CALLS:
            self.lose()
            if self.gone:
                raise LostProcessError("HF806", f"{sorted(self.gone)}")
            if changes:
                self.changed.add(("train", number))
                self.states[group] = (self.states[group] or 0) * 31 % 1009 + number
        return tuple(self.states.values())

    def lose(self) -> None:
        group = self.losses.pop() if self.losses else None
        if group is not None:
            self.gone.add(group)
            if GROUPS[group]:
                self.states[group] = None

    def lost_ranks(self, wait: float) -> Mapping[str, Sequence[int]]:
        return {group: [0] for group in self.gone}

    def copy_states(self, peers: bool) -> Any:
        self.lose()
        if self.gone:
            self.lost_copies += 1
            raise LostProcessError("HF806", f"{sorted(self.gone)}")
        return dict(self.states)

    def copied(self, copies: Any, wait: float) -> bool:
        return True

    def rebuild(
        self, lost: Mapping[str, Sequence[int]], *, step: tuple[str, int] | None, everything: bool, wait: float
    ) -> Collection[str] | None:
        unchanged = step is not None and step not in self.changed and not any(GROUPS[group] for group in lost)
        self.changed.clear()
        self.gone.clear()
        self.lose()
        if self.gone:
            raise LostProcessError("HF806", f"{sorted(self.gone)} while others were replaced")
        if everything and not unchanged:
            self.states = {"actor": 1, "critic": 1}
        return () if unchanged else None

    def forget(self, groups: Collection[str]) -> None:
        raise NotImplementedError

    def succeeded(self, acknowledgments: Sequence[Any]) -> list[bool]:
        raise NotImplementedError

    def restore(self, copies: Any) -> None:
        self.states = dict(copies)


def run(backend: Any, every: int | None, steps: int) -> tuple[list[Any], Recovery]:
    counts = {"train": 0}
    recovery = Recovery(backend, hf.Retries(attempts=100, every=every), counts)

    def again(inputs: object) -> Any:
        result = backend.step(counts["train"])
        counts["train"] += 1
        return result

    recovery.begin()
    results = []
    for _ in range(steps):
        results.append(recovery.run("train", lambda: again(None)))
        recovery.committed("train", again, None)
    return results, recovery


@given(st.lists(st.sampled_from([None, None, None, *GROUPS]), max_size=80), st.sampled_from([None, 1, 3]))
def test_losses_change_no_value(losses: list[str | None], every: int | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HfWarning)
        results, recovery = run(Numbers([*losses]), every, 8)
    assert results == run(Numbers([]), None, 8)[0]
    assert recovery.steps == {"train": 8}
    # A run without copies goes back to its start, except where no state has changed.
    assert all(0 <= recovered.repeated_steps <= recovered.step for recovered in recovery.recoveries)


@pytest.mark.parametrize(
    ("call", "group", "repeated"), [(1, "judge", 0), (3, "engine", 2), (2, "critic", 2), (4, "judge", 2)]
)
def test_earlier_steps_are_repeated_only_where_a_state_has_changed(call: int, group: str, repeated: int) -> None:
    losses = [None] * (2 * len(CALLS) + call) + [group]
    with pytest.warns(HfWarning, match="HF840"):
        _, recovery = run(Numbers(losses[::-1]), None, 4)
    [recovered] = recovery.recoveries
    assert (recovered.step, recovered.repeated_steps) == (2, repeated)


def test_a_process_lost_during_a_copy_is_replaced_by_the_next_step() -> None:
    losses: list[str | None] = [None] * (1 + len(CALLS)) + ["actor"]
    backend = Numbers(losses[::-1])
    with pytest.warns(HfWarning, match="HF840"):
        results, recovery = run(backend, 1, 3)
    assert backend.lost_copies == 1
    assert results == run(Numbers([]), None, 3)[0]
    assert [(recovered.step, recovered.repeated_steps) for recovered in recovery.recoveries] == [(1, 1)]


def test_an_error_of_a_body_is_no_loss_even_if_a_process_is_gone() -> None:
    backend: Any = Numbers([])
    recovery = Recovery(backend, hf.Retries(), {"train": 0})
    backend.gone.add("actor")  # its peer, which met this one in another collective

    def raises() -> None:
        raise RoleError("HF806", "'critic.update' on rank 1 in step 0: ValueError: bad numbers")

    attempt: Callable[[], None] = raises
    with pytest.raises(RoleError, match="bad numbers"):
        recovery.run("train", attempt)
    assert not recovery.recoveries
