"""Facts that a role states before there is a worker; whatever goes wrong is left to the check."""

from __future__ import annotations

from typing import Any

import pytest

import hfdsl as hf
from hfdsl.protocols import role_facts
from hfdsl.protocols.layouts import Parameter, Replicas, Slices
from hfdsl.protocols.role_facts import FACTS, Learning, Obstacle, Resharding, RoleFact

POOL = hf.ResourcePool([2], use_gpu=False)
LEARNING = Learning(1e-6, "bfloat16")
OBSTACLE = Obstacle("HF715", "tp = 2 slices the adapter", help="merge it")
PARAMETER = Parameter("weight", (7, 7))
RESHARDING = Resharding("policy", (PARAMETER,), Slices(0), Replicas(), in_place=True, staging=0)
SETTINGS = {"theta": 5e5, "ends": [2]}

CASES: list[tuple[RoleFact[Any], object, object, object]] = [
    (role_facts.adapter_settings, SETTINGS, SETTINGS, {}),
    (role_facts.cached_tokens, {"generate": 4096, "score": 0}, {"generate": 4096}, {}),
    (role_facts.call_obstacles, {"log_probs": "no head", "update": None}, {"log_probs": "no head"}, {}),
    (role_facts.computes, "bfloat16", "bfloat16", None),
    (role_facts.concurrent_calls, {"generate": 4, "score": 0}, {"generate": 4}, {}),
    (role_facts.copied_settings, SETTINGS, SETTINGS, {}),
    (role_facts.drops, {"dropout": 0.1, "attention": 0.0, "other": 1}, {"dropout": 0.1}, {}),
    (role_facts.equal_scores, "no head", "no head", None),
    (role_facts.gpu_bytes, {"": {"weights": 14, "cache": -1}}, {"": {"weights": 14}}, {}),
    (role_facts.in_flight_obstacle, "engine='captured'", "engine='captured'", None),
    (role_facts.kept_bytes, {"weights": 16, "none": 0, "half": 0.5}, {"weights": 16, "none": 0}, {}),
    (role_facts.learning, LEARNING, LEARNING, None),
    (role_facts.learning, {"rate": 1e-6}, None, None),
    (role_facts.misses_end, 0, 0, None),
    (role_facts.misses_end, -1, None, None),
    (role_facts.obstacles, [OBSTACLE, "another"], (OBSTACLE,), ()),
    (role_facts.parameter_count, 49, 49, None),
    (role_facts.parameter_count, 0, None, None),
    (role_facts.policy_temperature, 1, 1.0, None),
    (role_facts.policy_temperature, "0.7", None, None),
    (role_facts.repeats_responses, "top_k = 1", "top_k = 1", None),
    (role_facts.reshards, {"generate": RESHARDING, "score": 1}, {"generate": RESHARDING}, {}),
    (role_facts.result_sizes, {"generate": {"R": 512, "P": 0}, "score": 1}, {"generate": {"R": 512}, "score": {}}, {}),
    (role_facts.samples_with, "vllm", "vllm", None),
    (role_facts.samples_with, 3, None, None),
    (role_facts.sliced, {"heads": 14, "layers": 0}, {"heads": 14}, {}),
    (role_facts.state_bytes, {"policy": 0, "value": "14"}, {"policy": 0}, {}),
    (role_facts.state_parameters, {"policy": [PARAMETER], "value": 1}, {"policy": (PARAMETER,)}, {}),
    (role_facts.truncates, "top_p = 0.9", "top_p = 0.9", None),
    (role_facts.vocabulary, 32000, 32000, None),
    (role_facts.vocabulary, True, None, None),
]
"""By fact: the result of the static method, the fact, and the fact of a role that states none."""


@pytest.mark.parametrize(("fact", "returned", "expected", "unstated"), CASES)
def test_a_fact_is_the_result_of_a_static_method(
    fact: RoleFact[Any], returned: object, expected: object, unstated: object
) -> None:
    def method(*args: object) -> object:
        assert args == ((hf.Mesh(dp=2), 14) if fact.takes_mesh else (14,))
        return returned

    stating = type("Stating", (hf.Worker,), {fact.name: staticmethod(method)})
    silent = type("Silent", (hf.Worker,), {})
    assert fact.of(hf.place(stating, 14, pool=POOL)) == expected
    assert fact.of(hf.place(silent, 14, pool=POOL)) == unstated
    assert fact.of(None) == unstated


def test_a_fact_is_imported_under_its_name() -> None:
    facts = {name: value for name, value in vars(role_facts).items() if isinstance(value, RoleFact)}
    assert [fact.name for fact in facts.values()] == list(facts)
    assert tuple(facts.values()) == FACTS
    assert {fact.name for fact, *_ in CASES} == set(facts)


class Model(hf.Worker):
    @staticmethod
    def sliced(heads: int, *, layers: Any = 1) -> dict[str, Any]:
        return {"heads": heads, "layers": layers, "product": heads * layers}


class Larger(Model):
    """Says what its base says."""


@pytest.mark.parametrize("role", [Model, Larger])
def test_sizes_are_asked_with_what_the_constructor_takes(role: type) -> None:
    sizes = {"heads": 14, "layers": 2, "product": 28}
    assert role_facts.sliced.of(hf.place(role, 14, layers=2, pool=POOL)) == sizes
    assert role_facts.sliced.of(hf.place(role, heads=14, layers=2, pool=POOL)) == sizes


@pytest.mark.parametrize("layers", [0, -2, True, 2.0, "2"])
def test_attributes_that_are_no_sizes_are_omitted(layers: Any) -> None:
    sizes = role_facts.sliced.of(hf.place(Model, 1, layers=layers, pool=POOL))
    assert "layers" not in sizes
    assert sizes["heads"] == 1
    assert all(type(size) is int and size > 0 for size in sizes.values())


@pytest.mark.parametrize("args", [(), (1, 2), ("fourteen", 2)])
def test_arguments_that_do_not_fit_say_nothing(args: tuple[Any, ...]) -> None:
    assert role_facts.sliced.of(hf.place(Model, *args, pool=POOL)) == {}
