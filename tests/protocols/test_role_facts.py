"""Facts that a role states before there is a worker; whatever goes wrong is left to the check."""

from __future__ import annotations

from typing import Any

import pytest

import hfdsl as hf
from hfdsl.protocols.role_facts import sliced_sizes


class Model(hf.Worker):
    @staticmethod
    def sliced(heads: int, *, layers: Any = 1) -> dict[str, Any]:
        return {"heads": heads, "layers": layers, "product": heads * layers}


class Larger(Model):
    """Says what its base says."""


@pytest.mark.parametrize("role", [Model, Larger])
def test_sizes_are_asked_with_what_the_constructor_takes(role: type) -> None:
    sizes = {"heads": 14, "layers": 2, "product": 28}
    assert sliced_sizes(role, (14,), {"layers": 2}) == sizes
    assert sliced_sizes(role, (), {"heads": 14, "layers": 2}) == sizes


@pytest.mark.parametrize("layers", [0, -2, True, 2.0, "2"])
def test_attributes_that_are_no_sizes_are_omitted(layers: Any) -> None:
    sizes = sliced_sizes(Model, (1,), {"layers": layers})
    assert "layers" not in sizes
    assert sizes["heads"] == 1
    assert all(type(size) is int and size > 0 for size in sizes.values())


@pytest.mark.parametrize("args", [(), (1, 2), ("fourteen", 2)])
def test_arguments_that_do_not_fit_say_nothing(args: tuple[Any, ...]) -> None:
    assert sliced_sizes(Model, args, {}) == {}


def test_a_role_that_does_not_say_or_says_something_else() -> None:
    class Silent(hf.Worker): ...

    class Odd(hf.Worker):
        @staticmethod
        def sliced() -> Any:
            return 14

    assert sliced_sizes(Silent, (14,), {}) == {}
    assert sliced_sizes(Odd, (), {}) == {}
