"""State: what methods declare of it, and who can hand it to whom."""

from __future__ import annotations

from typing import Any

import pytest

import hfdsl as hf
from hfdsl.errors import DefinitionError
from hfdsl.protocols.offloading import PARTS, not_offloadable, parts_of, parts_used
from hfdsl.protocols.state import Effect, effects_of, exports, loads, methods_with, no_sync, reads, sync_methods, writes


class Learner(hf.Worker):
    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @writes("policy")
    @reads("policy")
    def update(self) -> None: ...

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @exports("policy")
    def weights(self) -> None: ...

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @exports("optimizer")
    def moments(self) -> None: ...

    @exports("hidden")
    def unregistered(self) -> None: ...


class Generator(hf.Worker):
    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @reads("policy", staleness=1)
    def generate(self) -> None: ...

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @loads("policy")
    def take(self, weights: Any) -> None: ...

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @loads("hidden")
    def take_hidden(self, weights: Any) -> None: ...


def test_effects_are_kept_as_they_are_written() -> None:
    assert effects_of(Learner.update) == (Effect("writes", "policy"), Effect("reads", "policy"))
    assert effects_of(Generator.generate) == (Effect("reads", "policy", 1),)
    assert effects_of(test_effects_are_kept_as_they_are_written) == ()
    assert methods_with(Learner, "exports") == {"policy": "weights", "optimizer": "moments"}
    assert methods_with(Learner, "loads") == {}


@pytest.mark.parametrize("declare", [reads, writes, exports, loads])
@pytest.mark.parametrize("state", ["", 3, None])
def test_a_state_has_a_name(declare: Any, state: Any) -> None:
    with pytest.raises(
        DefinitionError, match=rf"HF120: {declare.__name__} takes the name of a state, .* got {state!r}$"
    ):
        declare(state)


@pytest.mark.parametrize("staleness", [-1, 0.5, True, "1"])
def test_staleness_is_a_number_of_steps(staleness: Any) -> None:
    with pytest.raises(DefinitionError, match=rf"HF120: reads\('policy'\): .* got {staleness!r}$"):
        reads("policy", staleness=staleness)


@pytest.mark.parametrize("loss", [None, 0.2, "clip"])
def test_what_corrects_can_be_called(loss: Any) -> None:
    with pytest.raises(
        DefinitionError, match=r"HF120: corrects\('policy'\) marks a class, a function or a method, got "
    ):
        hf.corrects("policy", lag=2)(loss)


def test_a_state_that_one_role_exports_and_another_loads_can_be_synced() -> None:
    assert sync_methods(Learner, Generator) == (("weights", "take"),)
    assert sync_methods(Generator, Learner) == ()


def test_why_nothing_can_be_synced_names_both_sides() -> None:
    message = "Learner exports 'policy', 'optimizer' and Learner loads nothing; declare a method"
    assert no_sync(Learner, Learner).replace("'optimizer', 'policy'", "'policy', 'optimizer'").startswith(message)
    assert no_sync(Generator, Generator).startswith("Generator exports nothing and Generator loads 'policy', 'hidden'")


def test_roles_that_train_have_two_parts() -> None:
    assert parts_of(Learner) == parts_used(Learner.update) == PARTS == ("weights", "optimizer")
    assert parts_of(Generator) == parts_used(Learner.weights) == parts_used(Generator.generate) == ("weights",)


class Whole(hf.Worker):
    def offload(self, part: str) -> None: ...

    def onload(self, part: str) -> None: ...


def test_why_a_role_cannot_be_offloaded() -> None:
    class Half(hf.Worker):
        def offload(self, part: str) -> None: ...

    class Deaf(Whole):
        def onload(self) -> None: ...  # type: ignore[override]  # wrong on purpose

    class Static(Whole):
        offload = None  # type: ignore[assignment]  # wrong on purpose

    class Opaque(Whole):
        onload = dict.get  # type: ignore[assignment]  # takes one argument or two

    assert not_offloadable(Whole) is None
    assert not_offloadable(Opaque) is None
    assert not_offloadable(Half) == "it has no method 'onload(self, part)'"
    assert not_offloadable(Static) == "it has no method 'offload(self, part)'"
    assert not_offloadable(Deaf) == "its method 'onload' does not take one argument, the part"


def test_of_states_with_similar_names_one_is_suggested() -> None:
    class Misspelled(hf.Worker):
        @hf.register(hf.Dispatch.ONE_TO_ALL)
        @loads("polciy")
        def load(self, weights: dict[str, float]) -> None: ...

    assert no_sync(Learner, Misspelled).endswith(" and Misspelled loads 'polciy'; did you mean 'policy'?")
