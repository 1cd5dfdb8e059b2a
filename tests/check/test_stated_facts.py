# mypy: disable-error-code="empty-body"
"""Static methods by which roles state facts, for the arguments that their constructors take."""

from __future__ import annotations

from typing import Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.check.prelude import B, Prompts


class Scores(hf.Batch):
    reward: hf.f32[B]


class Engine(hf.Worker):
    def __init__(self, width: int, depth: int = 2) -> None: ...

    @register(Dispatch.DP_PROTO)
    def score(self, prompts: Prompts) -> Scores: ...


@hf.dataflow
def program(prompts: Prompts, engine: Engine) -> Scores:
    return engine.score(prompts)


def report(role: type, *args: Any, **kwargs: Any) -> hf.Report:
    pool = hf.ResourcePool([2], name="pool")
    return program.check(hf.Deployment(engine=hf.place(role, *args, pool=pool, **kwargs)), {B: 64})


class Stating(Engine):
    @staticmethod
    def concurrent_calls(width: int, depth: int = 2) -> dict[str, int]:
        return {"score": width}

    @staticmethod
    def gpu_bytes(mesh: hf.Mesh, width: int, depth: int = 2) -> dict[str, dict[str, int]]:
        return {"": {"weights": width * depth}}

    @staticmethod
    def vocabulary(*args: int, **kwargs: int) -> int:
        return 100


class Deeper(Stating):
    """It takes what the facts of its base do not."""

    def __init__(self, width: int, depth: int = 2, *, height: int) -> None: ...


class NarrowFacts(Deeper):
    """Its own fact takes what the constructor of its base does not."""

    @staticmethod
    def parameter_count(width: int) -> int:
        return width


class WithoutMesh(Engine):
    @staticmethod
    def gpu_bytes(width: int, depth: int = 2) -> dict[str, dict[str, int]]:
        return {}

    @staticmethod
    def vocabulary() -> int:
        return 100


class NoFacts(Engine):
    """Methods of a role that only have such names."""

    def vocabulary(self) -> int: ...

    @classmethod
    def learning(cls) -> None: ...

    @property
    def sliced(self) -> int: ...


@pytest.mark.parametrize(
    ("role", "args", "kwargs"),
    [(Stating, (1,), {}), (Stating, (1, 2), {}), (Stating, (), {"depth": 2, "width": 1}), (NoFacts, (1,), {})],
)
def test_facts_that_take_what_the_constructor_takes_are_right(
    role: type, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    assert report(role, *args, **kwargs).codes == ()


def test_facts_that_cannot_be_called_are_found_each() -> None:
    """With the mesh missing, an argument stands in its place; the last one has none."""
    found = report(WithoutMesh, 1, 2)
    assert found.codes == ("HF543", "HF543")
    assert "'gpu_bytes' is never called, since it takes (width, depth) and not (mesh, width, depth)" in str(found)
    assert "'vocabulary' is never called, since it takes () and not (width, depth)" in str(found)


def test_a_subclass_with_a_constructor_of_its_own_may_do_without_the_facts_of_its_base() -> None:
    assert report(Deeper, 1, height=3).codes == ()
    assert report(NarrowFacts, 1, height=3).codes == ("HF543",)


def test_a_constructor_that_does_not_take_the_arguments_is_reported_alone() -> None:
    assert report(Stating, 1, 2, 3).codes == ("HF516",)
