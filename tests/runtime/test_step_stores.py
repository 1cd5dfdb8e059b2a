"""Each step in progress finds what its own calls have left, and nothing of another step."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hfdsl.runtime.rank.step_stores import StepStores
from hfdsl.runtime.rank.store import StoredValue
from tests.nightly import examples

IN_FLIGHT = {"queued": 3, "other": 2, "single": 0}


def held(stores: StepStores) -> set[int]:
    return {int(value.columns["x"]) for _, _, value in stores.current.own_values()}


@given(st.lists(st.tuples(st.sampled_from([*IN_FLIGHT]), st.integers(-2, 1)), max_size=examples(120)))
def test_a_step_finds_what_its_own_calls_have_left(calls: list[tuple[str, int]]) -> None:
    stores, latest = StepStores("actor"), dict.fromkeys(IN_FLIGHT, 0)
    left: dict[tuple[str, int], set[int]] = {}
    last: Any = None
    for number, (plan, back) in enumerate(calls):
        # A call is of a step in flight, or of the next one; without queues there is only the last step.
        step = max(0, latest[plan] + (back if IN_FLIGHT[plan] else max(back, 0)))
        if latest[plan] - step >= max(IN_FLIGHT[plan], 1):
            continue
        latest[plan] = max(latest[plan], step)
        if not IN_FLIGHT[plan] and last != (plan, step):
            left[plan, step] = set()  # one store for all such steps
        began = stores.begin(plan, step, IN_FLIGHT[plan])
        assert began == (not left.get((plan, step)))
        assert stores.is_in(plan, step)
        assert held(stores) == left.setdefault((plan, step), set())
        stores.current.put(number, 0, StoredValue.of("a call", {"x": number}))
        left[plan, step].add(number)
        last = plan, step


def test_a_held_step_of_a_plan_without_queues_keeps_its_values_until_the_next_one_begins() -> None:
    stores = StepStores("driver")
    stores.begin("single", 4, 1)  # as a stream begins it
    stores.current.put(7, 0, StoredValue.of("the caller", {"x": 7}))
    for number in (0, 1):
        stores.begin("another", number, 0)
        assert held(stores) == set()
    assert not stores.begin("single", 4, 0)
    assert held(stores) == {7}
    assert stores.begin("single", 5, 0)
    assert held(stores) == set()
    assert stores.begin("single", 4, 0)  # which was dropped
