"""A trainer and an engine that hold parts of the same weights, in any layouts, and say what they have."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

import hfdsl as hf
from hfdsl.protocols.layouts import (
    ByName,
    Generation,
    Layout,
    Only,
    Parameter,
    Replicas,
    Shards,
    Slices,
    Stages,
    StandardLayout,
)
from hfdsl.runtime.weights.held_parts import ComputedPart
from hfdsl.runtime.weights.local_weights import local_boxes
from hfdsl.runtime.weights.messages import PartViews

PARAMETERS = [
    Parameter("embedding", (12, 4), "float32"),
    Parameter("qkv", (16, 4), "float32"),
    Parameter("down", (4, 8), "bfloat16"),
    Parameter("norm", (4,), "float32"),
]
TENSOR = ByName({"embedding": Slices(0), "qkv": Slices(0, blocks=(8, 4, 4)), "down": Slices(1)})
SHARDED = TENSOR.then(Shards("dp"))
SHARED_HEADS = ByName({"qkv": Slices(0, blocks=(8, 4, 4), units=(8, 1, 1), shared=True)})
"""Each rank has some of eight query heads; all have the key head and the value head, the last one in the same box."""


def whole(parameter: Parameter, step: int) -> torch.Tensor:
    """The values of a parameter after some updates: every element another number."""
    count = parameter.bytes // parameter.item_bytes
    values = torch.arange(count) % 251 + len(parameter.name) + 7 * step
    return values.view(parameter.shape).to(getattr(torch, parameter.dtype))


def local(parameter: Parameter, boxes: Any, step: int) -> torch.Tensor:
    """The local tensor of some boxes, element by element of the layout's definition."""
    shape, placed = local_boxes(boxes)
    tensor = torch.full(shape, -1.0, dtype=getattr(torch, parameter.dtype))
    for box, place in placed.items():
        tensor[tuple(slice(*each) for each in place)] = whole(parameter, step)[tuple(slice(*each) for each in box)]
    return tensor


class Side(hf.Worker):
    def __init__(self, layout: Layout, step: int = 0) -> None:
        self.layout = layout
        self.table = self.parts(step)

    @staticmethod
    def state_parameters(layout: Layout, step: int = 0) -> dict[str, list[Parameter]]:
        return {"policy": PARAMETERS}

    def parts(self, step: int) -> dict[str, torch.Tensor]:
        boxes = {parameter: self.layout.boxes(parameter, self.mesh, self.rank) for parameter in PARAMETERS}
        return {each.name: local(each, held, step) for each, held in boxes.items() if held}

    def state(self) -> dict[str, torch.Tensor]:
        return self.table

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self.table = state


def declared(mesh: hf.Mesh, layout: Layout, step: int = 0) -> Layout:
    return layout


class Trainer(Side):
    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.exports("policy", layout=declared)
    def weights(self) -> dict[str, Any]:
        return self.table

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.writes("policy")
    def update(self) -> None:
        step = hf.current_call().step + 1
        for name, part in self.parts(step).items():
            self.table[name].copy_(part)


class Wrong(Trainer):
    """Rank 1 has a row too few of a weight."""

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.exports("policy", layout=declared)
    def weights(self) -> dict[str, Any]:
        return self.table | {"qkv": self.table["qkv"][: 7 if self.rank == 1 else 8]}


class Buffered(Trainer):
    """Exports two tensors more than it states."""

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.exports("policy", layout=declared)
    def weights(self) -> dict[str, Any]:
        return self.table | {"mean": torch.ones(4), "count": torch.ones(())}


class Quantized(Trainer):
    """Rank 1 has integers of a weight."""

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.exports("policy", layout=declared)
    def weights(self) -> dict[str, Any]:
        return self.table | ({"down": self.table["down"].to(torch.int8)} if self.rank == 1 else {})


class Unknown(Trainer):
    """Its layout is not known, so what rank 0 returns goes to all; ``without`` is a parameter that it leaves out."""

    without = ""

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.exports("policy", layout=lambda mesh, layout: None)
    def weights(self) -> dict[str, Any]:
        return {name: part for name, part in self.table.items() if name != self.without}


class Lacking(Unknown):
    without = "norm"


def spoiled(weight: torch.Tensor, how: str) -> torch.Tensor:
    """A weight that has no values to send."""
    return weight.to("meta") if how == "meta" else weight.to_sparse()


class Unsendable(Trainer):
    """Rank 1 cannot send a weight in the second step: ``how`` says why."""

    def __init__(self, layout: Layout, step: int = 0, how: str = "") -> None:
        super().__init__(layout, step)
        self.how = how

    @staticmethod
    def state_parameters(layout: Layout, step: int = 0, how: str = "") -> dict[str, list[Parameter]]:
        return {"policy": PARAMETERS}

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.exports("policy", layout=lambda mesh, layout, step, how: layout)
    def weights(self) -> dict[str, Any]:
        if self.rank != 1 or hf.current_call().step != 1:
            return self.table
        if self.how == "computed":
            return self.table | {"down": self.failing()}
        return self.table | {"qkv": spoiled(self.table["qkv"], self.how)}

    def failing(self) -> ComputedPart:
        def tiles(first: int, last: int) -> Iterator[tuple[int, torch.Tensor]]:
            raise OSError("no memory for a row")
            yield 0, torch.empty(0)

        [box] = self.layout.boxes(PARAMETERS[2], self.mesh, self.rank)
        return ComputedPart(box, torch.bfloat16, torch.device("cpu"), tiles)


class Unstated(hf.Worker):
    """States nothing; what rank 0 returns goes to all."""

    def __init__(self, how: str) -> None:
        self.how = how

    @hf.register(hf.Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> dict[str, Any]:
        return {"qkv": spoiled(torch.ones(16, 4), self.how)}


class Killed(Trainer):
    """The process of its first rank is killed in the middle of the second exchange."""

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.exports("policy", layout=declared)
    def weights(self) -> dict[str, Any]:
        if hf.current_call().step == 1 and self.rank == 0:
            pack, messages = PartViews.pack, list[Any]()

            def killed(views: PartViews, message: Any, held: Any) -> None:
                messages.append(message)
                if len(messages) == 4:
                    os.kill(os.getpid(), signal.SIGKILL)
                pack(views, message, held)

            PartViews.pack = killed  # type: ignore[method-assign, assignment]  # mypy has its self twice
        return self.table


class Engine(Side):
    def __init__(self, layout: Layout, fails: int = -1) -> None:
        super().__init__(layout, step=-1)
        self.fails = fails

    @staticmethod
    def state_parameters(layout: Layout, fails: int = -1) -> dict[str, list[Parameter]]:
        return {"policy": PARAMETERS}

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.loads("policy", layout=lambda mesh, layout, fails=-1: layout)
    def load(self, weights: dict[str, Any]) -> None:
        if hf.current_call().step == self.fails and self.rank == self.world_size - 1:
            raise OSError("no memory")
        self.table = weights

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.reads("policy")
    def same(self) -> bool:
        """Whether every rank has what its layout says of the weights before this step's update."""
        return self.holds_its_parts()

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    def kept(self) -> bool:
        """As ``same``, after the update, which its copy does not have yet."""
        return self.holds_its_parts()

    def holds_its_parts(self) -> bool:
        expected = self.parts(hf.current_call().step)
        equal = (torch.equal(self.table[name], part) for name, part in expected.items())
        return self.table.keys() == expected.keys() and all(equal)


class Halved(Engine):
    """An engine that keeps all weights in bfloat16."""

    @staticmethod
    def state_parameters(layout: Layout, fails: int = -1) -> dict[str, list[Parameter]]:
        return {"policy": [replace(parameter, dtype="bfloat16") for parameter in PARAMETERS]}

    def holds_its_parts(self) -> bool:
        expected = {name: part.bfloat16() for name, part in self.parts(hf.current_call().step).items()}
        return all(
            self.table[name].dtype == part.dtype and torch.equal(self.table[name], part)
            for name, part in expected.items()
        )


class InPlace(Engine):
    """An engine that says where it keeps its weights."""

    def __init__(self, layout: Layout, fails: int = -1) -> None:
        super().__init__(layout, fails)
        self.loads = 0

    @contextmanager
    def receiving(self, state: str) -> Iterator[Mapping[str, torch.Tensor]]:
        if hf.current_call().step == self.fails:
            raise OSError("no memory")
        yield self.table
        self.loads += 1

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.reads("policy")
    def same(self) -> bool:
        return self.loads == hf.current_call().step + 1 and self.holds_its_parts()


class Integers(InPlace):
    """It computes with integers of a weight."""

    @staticmethod
    def state_parameters(layout: Layout, fails: int = -1) -> dict[str, list[Parameter]]:
        return {"policy": PARAMETERS}

    def __init__(self, layout: Layout, fails: int = -1) -> None:
        super().__init__(layout, fails)
        self.table["down"] = self.table["down"].to(torch.int8)


class Loads(InPlace):
    """One that does more than that when it loads, so it loads by its method."""

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.loads("policy", layout=lambda mesh, layout, fails=-1: layout)
    def load(self, weights: dict[str, Any]) -> None:
        self.table, self.loads = weights, self.loads + 1


@hf.dataflow
def synced(actor: Trainer, engine: Engine) -> hf.PerRank[bool]:
    hf.sync(actor, engine)
    same = engine.same()
    actor.update()
    return same


@hf.dataflow
def learned(actor: Trainer, engine: Engine) -> hf.PerRank[bool]:
    hf.sync(actor, engine)
    actor.update()
    return engine.kept()


LAYOUTS: dict[str, StandardLayout] = {
    "replicas": Replicas(),
    "tensor": TENSOR,
    "shared heads": SHARED_HEADS,
    "sharded": SHARDED,
    "generation": Generation(TENSOR),
    "stages": Stages(2),  # the embedding, and all others
    "experts": ByName({"qkv": Only(axis="tp", at=(0,)), "down": Only(axis="tp", at=(1,))}),
}


class Holding(InPlace):
    """An engine that says what it holds; ``fails`` is the step in which its first rank spoils it, ``how`` says how."""

    how = ""

    def held_weights(self, state: str) -> dict[str, torch.Tensor]:
        return self.table

    @contextmanager
    def receiving(self, state: str) -> Iterator[Mapping[str, torch.Tensor]]:
        spoils = hf.current_call().step == self.fails and self.rank == 0
        yield (
            {name: part.clone() for name, part in self.table.items()}
            if spoils and self.how == "elsewhere"
            else self.table
        )
        self.loads += 1
        if spoils and self.how == "written":
            self.table["qkv"][0, 0] += 1
        elif spoils and self.how == "moved":
            self.table = self.table | {"qkv": self.table["qkv"].flip(0)}
        elif spoils and self.how == "dropped":
            del self.table["qkv"]


class Written(Holding):
    """Spoils what it has received."""

    how = "written"


class Moved(Holding):
    """Keeps what it has received in another order."""

    how = "moved"


class Dropped(Holding):
    """Keeps only some of what it has received."""

    how = "dropped"


class Elsewhere(Holding):
    """Receives into memory that it does not use."""

    how = "elsewhere"
