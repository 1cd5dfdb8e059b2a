"""What generation slices keep between two uses: it follows weights that change, and costs no calls per weight."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hfdsl.protocols.collectives import SoleRank
from hfdsl.rl import workers as w
from hfdsl.rl.models.forward import Policy
from hfdsl.rl.models.generation_slices import GenerationSlices
from hfdsl.rl.models.held_weights import HeldWeights
from hfdsl.rl.models.policies import policy
from tests.rl.engines.test_ranks import SECONDS, ThreadGroup
from tests.rl.test_state_bytes import SIZES

T = TypeVar("T")

BUCKET = 2_000
"""Bytes: some weights are alone in their bucket, others are not."""


class Lossy(ThreadGroup):
    """A rank that waits behind every collective, and loses those of these numbers."""

    lost: Sequence[int] = ()
    begun = 0

    def begin_gathers_into(self, gathered: Sequence[Any], values: Sequence[Any]) -> Callable[[], None]:
        arrived = super().begin_gathers_into(gathered, values)
        self.meeting.wait(SECONDS)
        self.begun += 1
        return self.lose if self.begun in self.lost else arrived

    def lose(self) -> None:
        raise RuntimeError("a peer is lost")


class Ranks:
    """Two ranks of ``tp`` that sample alone, as threads."""

    def __init__(self, layers: int = 2, bucket: int = BUCKET) -> None:
        values = {**SIZES, "model_type": "llama", "num_hidden_layers": layers, "num_key_value_heads": 4}
        model = w.ModelConfig(config={**values, "vocab_size": 40})
        barrier, passed = threading.Barrier(2), [None, None]
        self.groups = [Lossy(rank, passed, barrier) for rank in range(2)]
        self.policies = [policy(model, 1.0, group) for group in self.groups]
        self.slices = [
            GenerationSlices(learns, SoleRank(), group, 2, bucket)
            for learns, group in zip(self.policies, self.groups, strict=True)
        ]

    def each(self, body: Callable[[int], T]) -> list[T]:
        """What a body returns on each rank."""
        with ThreadPoolExecutor(2) as pool:
            return [future.result(SECONDS) for future in [pool.submit(body, rank) for rank in range(2)]]

    def change(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Give every parameter another tensor."""
        for learns in self.policies:
            for parameter in learns.parameters():
                parameter.data = change(parameter.data)

    def joined(self) -> list[dict[str, torch.Tensor]]:
        """Copies of what each rank samples with."""

        def sampled(rank: int) -> dict[str, torch.Tensor]:
            with self.slices[rank].gathered() as samples:
                return {name: value.detach().clone() for name, value in samples.named_parameters()}

        return self.each(sampled)

    def expected(self) -> dict[str, torch.Tensor]:
        """The same from the slices of both ranks, weight by weight."""
        both = [dict(learns.named_parameters()) for learns in self.policies]
        return {name: whole(name, own.detach(), both[1][name].detach()) for name, own in both[0].items()}


def whole(name: str, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    if name.endswith(("norm.weight", "layernorm.weight")):
        return first
    return torch.cat([first, second], 1 if name.endswith(("o_proj.weight", "down_proj.weight")) else 0)


def same(joined: Sequence[dict[str, torch.Tensor]], expected: dict[str, torch.Tensor]) -> bool:
    return all(
        weights.keys() == expected.keys()
        and all(
            value.dtype == weights[name].dtype and torch.equal(value, weights[name]) for name, value in expected.items()
        )
        for weights in joined
    )


def own_memory(learns: Policy) -> bool:
    """Whether each parameter is contiguous in memory that nothing else is in."""
    return all(
        parameter.is_contiguous() and parameter.untyped_storage().nbytes() == parameter.nbytes
        for parameter in learns.parameters()
    )


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "values": lambda value: value.neg_(),
    "storage": lambda value: value.mul(3.0),
    "strides": lambda value: value.mul(3.0).t().contiguous().t(),
    "dtype": lambda value: value.double().mul(3.0),
    "shape": lambda value: value.repeat_interleave(2, 0),
}


@pytest.mark.parametrize("changed", CHANGES)
def test_the_second_use_has_the_weights_as_they_are_then(changed: str) -> None:
    ranks = Ranks()
    assert same(ranks.joined(), ranks.expected())
    ranks.change(CHANGES[changed])
    expected = ranks.expected()
    assert same(ranks.joined(), expected)
    assert same([ranks.expected()], expected)  # the slices that learn are as they were
    assert all(own_memory(learns) for learns in ranks.policies)


@pytest.mark.parametrize("lost", [1, 2, 5])
def test_after_a_lost_collective_the_policy_is_as_before_and_the_next_use_is_right(lost: int) -> None:
    ranks = Ranks()
    ranks.joined()
    expected = ranks.expected()
    for group in ranks.groups:
        group.lost = [group.begun + lost]

    def fails(rank: int) -> None:
        with pytest.raises(RuntimeError, match="a peer is lost"), ranks.slices[rank].gathered():
            raise AssertionError

    ranks.each(fails)
    for learns, slices in zip(ranks.policies, ranks.slices, strict=True):
        assert own_memory(learns)
        assert all(parameter.is_meta for parameter in slices.policy.parameters())
    assert same([ranks.expected()], expected)
    assert same(ranks.joined(), expected)


def test_an_error_while_sampling_leaves_the_policy_as_it_was() -> None:
    ranks = Ranks()
    expected = ranks.expected()

    def fails(rank: int) -> None:
        with suppress(ValueError), ranks.slices[rank].gathered():
            raise ValueError

    ranks.each(fails)
    assert same([ranks.expected()], expected)
    assert same(ranks.joined(), expected)


class Calls(TorchDispatchMode):
    """Counts calls of torch's operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of torch
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


class Nowhere(SoleRank):
    """The first of two ranks, whose collectives do nothing."""

    size = 2

    def begin_gathers_into(self, gathered: Sequence[Any], values: Sequence[Any]) -> Callable[[], None]:
        return lambda: None


def calls_of_second_use(layers: int) -> int:
    model = w.ModelConfig(config={**SIZES, "model_type": "llama", "num_hidden_layers": layers, "vocab_size": 40})
    slices = GenerationSlices(policy(model, 1.0, Nowhere()), SoleRank(), Nowhere(), 2, bucket_bytes=2**25)
    with slices.gathered():
        pass
    context, calls = slices.gathered(), Calls()
    with calls:
        context.__enter__()
    context.__exit__(None, None, None)
    return calls.count


def test_gathering_again_takes_a_call_more_for_each_weight_whose_columns_are_sliced_and_none_for_others() -> None:
    columns = 2  # of a layer: o_proj and down_proj
    assert calls_of_second_use(4) - calls_of_second_use(1) == 3 * columns


def test_between_uses_nothing_of_the_generation_slices_is_kept() -> None:
    ranks = Ranks()
    given: list[nn.Parameter] = []

    def sampled(rank: int) -> None:
        with ranks.slices[rank].gathered() as samples:
            given.extend(samples.parameters())

    ranks.each(sampled)
    learns = {parameter.data_ptr() for each in ranks.policies for parameter in each.parameters()}
    assert all(each.untyped_storage().nbytes() == 0 or each.data_ptr() in learns for each in given)


def test_held_weights_are_those_that_the_policy_has_when_they_are_asked_for() -> None:
    ranks = Ranks()
    held = [HeldWeights(learns) for learns in ranks.policies]
    for change in CHANGES.values():
        ranks.change(change)
        for rank, learns in enumerate(ranks.policies):
            pieces = held[rank].pieces()
            assert pieces.keys() == dict(learns.named_parameters()).keys()
            for name, parameter in learns.named_parameters():
                piece = pieces[name]
                assert piece.tensor.data_ptr() == parameter.data_ptr()
                assert (piece.tensor.dtype, piece.tensor.shape) == (parameter.dtype, parameter.shape)
                sliced = [0] * parameter.dim()
                if "norm" not in name:
                    dim = int("o_proj" in name or "down_proj" in name)
                    sliced[dim] = rank * parameter.shape[dim]
                assert piece.offset == tuple(sliced)
