"""The programs of the conformance suite: together they split, move, keep and join rows in every way.

Numbers are small and whole, so that any order of additions gives the same bits.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

import hfdsl as hf
from hfdsl import Dispatch, f32, i64, register
from hfdsl.rl.batches import B

GARBAGE = -999.0
"""The output of a rank that must not be collected."""


class K(hf.Dim):
    """Entries of a row."""


class SuiteRows(hf.Batch):
    """A column of every kind."""

    x: f32[B, K]
    name: hf.Obj[str, B]
    tokens: i64[B, hf.Ragged[K]]
    hint: f32[B] | None = None


class Scored(SuiteRows):
    """Rows with a score."""

    score: f32[B]


class SuiteScores(hf.Batch):
    """The score alone."""

    score: f32[B]


class Total(hf.Batch):
    """Numbers over all rows."""

    total: hf.Metric[float, Literal["sum"]]
    largest: hf.Metric[float, Literal["max"]]
    mean: hf.Metric[float, Literal["mean"]]


def rows(count: int, hint: bool = True) -> SuiteRows:
    """``count`` rows that all differ, the lengths of their tokens too."""
    x = torch.arange(count * 3, dtype=torch.float32).view(count, 3)
    tokens = [torch.arange(1 + i % 3) + i for i in range(count)]
    names = [f"row {i}" for i in range(count)]
    return SuiteRows(x=x, name=names, tokens=i64(tokens), hint=f32(x[:, 0]) if hint else None)


def changed(batch: SuiteRows, by: float, tag: str, collected: bool = True) -> SuiteRows:
    """Every column another one, row by row; garbage from a rank that is not collected."""
    if not collected:
        return SuiteRows(x=torch.full_like(batch.x.tensor, GARBAGE), name=["garbage"] * len(batch), tokens=batch.tokens,
                    hint=batch.hint)  # fmt: skip  # one row per record
    tokens, hint = [row + int(by) for row in batch.tokens.rows], batch.hint
    return SuiteRows(
        x=batch.x.tensor * 2 + by,
        name=[f"{name}{tag}" for name in batch.name.objects],
        tokens=i64(tokens),
        hint=None if hint is None else f32(hint.tensor + by),
    )


def round_robin(group: Any, batch: SuiteRows) -> Any:
    """A dispatch function: one row after another goes to the next rank."""
    count = group.world_size
    parts = [[batch[i : i + 1] for i in range(rank, len(batch), count)] for rank in range(count)]
    return ([SuiteRows.__hf_concat__(part) for part in parts],), {}


def gathered(group: Any, outputs: list[SuiteRows]) -> SuiteRows:
    """The collect function that restores their order."""
    turns = range(max(map(len, outputs)))
    return SuiteRows.__hf_concat__([part[i : i + 1] for i in turns for part in outputs if i < len(part)])


GRID = hf.Protocol("GRID", split=("tp", "dp"), collect={"tp": "join", "dp": "join", "pp": "last"})


class Role(hf.Worker):
    """A method for each way of splitting and collecting."""

    def __init__(self, by: int) -> None:
        self.by = float(by)

    @property
    def gives(self) -> bool:
        """Whether this rank has the output of a pipelined, tensor-parallel model."""
        return self.coordinates.pp == self.mesh.pp - 1 and self.coordinates.tp == 0

    @register(Dispatch.DP_PROTO)
    def flat(self, batch: SuiteRows) -> SuiteRows:
        """Rows over all ranks."""
        return changed(batch, self.by, "d")

    @register(Dispatch.THREE_D_PROTO)
    def model(self, batch: SuiteRows) -> SuiteRows:
        """Rows over dp, collected from the last stage."""
        return changed(batch, self.by, "m", self.gives)

    @register(Dispatch.THREE_D_ALL_MICRO_DP)
    def generated(self, batch: SuiteRows) -> SuiteRows:
        """Rows over generation sub-groups."""
        at, mesh = self.coordinates, self.mesh
        first, last = mesh.gen_tp_rank(at) == 0, mesh.gen_pp_rank(at) == mesh.gen_pp_size - 1
        return changed(batch, self.by, "g", first and last)

    @register(GRID)
    def grid(self, batch: SuiteRows) -> SuiteRows:
        """Rows over tp and then dp."""
        return changed(batch, self.by, "r", self.coordinates.pp == self.mesh.pp - 1)

    @register({"dispatch_fn": round_robin, "collect_fn": gathered})
    def interleaved(self, batch: SuiteRows) -> SuiteRows:
        """Rows by a pair of functions."""
        return changed(batch, self.by, "u")

    @register(Dispatch.THREE_D_PROTO, pad="repeat_last")
    def padded(self, batch: SuiteRows) -> SuiteRows:
        """Any number of rows."""
        return changed(batch, self.by, "p", self.gives)

    @register(Dispatch.DP_PROTO, pad="cycle")
    def cycled(self, batch: SuiteRows) -> SuiteRows:
        """Any number of rows."""
        return changed(batch, self.by, "c")

    @register(Dispatch.DP_PROTO, rows=hf.Grouped(2))
    def pairs(self, batch: SuiteRows) -> SuiteRows:
        """The rows of every pair, the second first."""
        order = [i ^ 1 for i in range(len(batch))]
        return SuiteRows.__hf_concat__([batch[i : i + 1] for i in order])

    @register(Dispatch.THREE_D_PROTO, balance="tokens")
    def balanced(self, batch: SuiteRows) -> SuiteRows:
        """Rows balanced by their tokens."""
        numbers = [f"{name} {row}" for name, row in zip(batch.name.objects, hf.current_call().rows, strict=True)]
        return SuiteRows(x=batch.x, name=numbers, tokens=batch.tokens, hint=batch.hint)

    @register(Dispatch.THREE_D_PROTO)
    def drawn(self, batch: SuiteRows) -> SuiteScores:
        """A random number a row."""
        return SuiteScores(score=hf.current_call().uniforms(1)[:, 0])

    @register(Dispatch.THREE_D_PROTO)
    def summed(self, batch: SuiteRows) -> SuiteScores:
        """The sum of all rows, which ranks of dp tell each other, at every row."""
        total = self.axis("dp").all_reduce(batch.x.tensor.sum())
        return SuiteScores(score=total.expand(len(batch)).clone())

    @register(Dispatch.THREE_D_PROTO)
    def total(self, batch: SuiteRows) -> Total:
        """Numbers for every reduction."""
        values = batch.x.tensor if self.gives else torch.full_like(batch.x.tensor, GARBAGE)
        return Total(total=float(values.sum()), largest=float(values.max()), mean=float(self.by))

    @register(Dispatch.DP_PROTO)
    def even(self, batch: SuiteRows) -> hf.bool_[B]:
        """Whether rows are even, as a loose column."""
        return hf.bool_(batch.x.tensor[:, 0] % 2 == 0)

    @register(Dispatch.DP_PROTO)
    def few(self, x: f32[B, K], hint: f32[B] | None) -> hf.bool_[B]:
        """Whether rows are negative, which none is; from loose columns."""
        return hf.bool_(x.tensor[:, 0] < 0)

    @register(Dispatch.ONE_TO_ALL)
    def places(self, batch: SuiteRows) -> list[int]:
        """The coordinates of each rank, and the rows that it receives."""
        at = self.coordinates
        return [self.rank, at.pp, at.dp, at.tp, len(batch)]

    @register(Dispatch.ALL_TO_ALL)
    def echoed(self, places: list[int]) -> list[int]:
        """A rank's own entry of a list."""
        return [self.rank, *places]

    @register(Dispatch.THREE_D_PP_ONLY)
    def stages(self, batch: SuiteRows) -> int:
        """A value per stage."""
        return self.coordinates.pp if self.coordinates.dp == 0 and self.coordinates.tp == 0 else int(GARBAGE)

    @register(Dispatch.ALL_TO_ALL, hf.Execute.RANK_ZERO)
    def first(self, batch: SuiteRows) -> SuiteRows:
        """Runs on rank 0 alone."""
        return changed(batch, self.by, "z", self.rank == 0)


class Trainer(hf.Worker):
    """Counts its updates, and gives away the count."""

    def __init__(self) -> None:
        self.count = torch.zeros(1)

    @register(Dispatch.DP_PROTO)
    @hf.writes("count")
    def update(self, batch: SuiteRows) -> SuiteScores:
        """One more."""
        self.count = self.count + 1
        return SuiteScores(score=self.count.expand(len(batch)).clone())

    @register(Dispatch.ALL_TO_ALL, hf.Execute.RANK_ZERO)
    @hf.exports("count")
    def weights(self) -> dict[str, Any]:
        """The count."""
        return {"count": self.count.clone()}

    def state(self) -> dict[str, Any]:
        """The count."""
        return {"count": self.count}

    def load_state(self, state: dict[str, Any]) -> None:
        """Load the count."""
        self.count = state["count"]


class Engine(hf.Worker):
    """Holds a copy of the count."""

    def __init__(self) -> None:
        self.count = torch.full((1,), GARBAGE)

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("count")
    def load(self, weights: dict[str, Any]) -> None:
        """Take it over."""
        self.count = weights["count"]

    @register(Dispatch.DP_PROTO)
    @hf.reads("count")
    def answer(self, batch: SuiteRows) -> SuiteScores:
        """The count, at every row."""
        return SuiteScores(score=self.count.expand(len(batch)).clone())


class Faulty(hf.Worker):
    """Goes wrong on its last rank."""

    @property
    def last(self) -> bool:
        """Whether this is the rank that fails."""
        return self.rank == self.world_size - 1

    @register(Dispatch.DP_PROTO)
    def raises(self, batch: SuiteRows) -> SuiteRows:
        """Fails while its peers wait."""
        if self.last:
            raise ValueError("bad rows")
        self.axis("dp").barrier()
        return batch

    @register(Dispatch.DP_PROTO)
    def shortens(self, batch: SuiteRows) -> SuiteRows:
        """Loses a row."""
        return batch[1:] if self.last else batch

    @register(Dispatch.DP_PROTO)
    def writes(self, batch: SuiteRows) -> SuiteRows:
        """Writes into its argument."""
        batch.x.tensor.add_(1)
        return batch


@hf.function
def added(batch: SuiteRows, by: float) -> SuiteRows:
    """A function of each row."""
    return changed(batch, by, "f")


@hf.function(rows=hf.Grouped(2))
def centered(scores: SuiteScores) -> SuiteScores:
    """A function of groups of two rows."""
    pairs = scores.score.tensor.view(-1, 2)
    return SuiteScores(score=(pairs - pairs.sum(1, keepdim=True)).flatten())


@hf.function(rows=hf.Whole)
def ranked(batch: SuiteRows) -> SuiteScores:
    """A function of all rows."""
    return SuiteScores(score=batch.x.tensor[:, 0].argsort(descending=True).float())


@hf.dataflow
def splits(batch: SuiteRows, a: Role, b: Role) -> SuiteRows:
    """Every protocol that splits and joins, from one mesh to the other and back."""
    return b.grid(a.generated(b.model(a.flat(batch))))


@hf.dataflow
def absent(batch: SuiteRows, a: Role, b: Role) -> SuiteRows:
    """Columns that are not there."""
    return b.model(a.flat(batch))


@hf.dataflow
def functions(batch: SuiteRows, a: Role, b: Role) -> tuple[SuiteRows, SuiteScores, SuiteRows]:
    """Functions where rows lie, and a protocol that is a pair of functions."""
    shifted = added(a.model(batch), 3.0)
    return b.interleaved(shifted), ranked(shifted), b.first(shifted)


@hf.dataflow
def padding(batch: SuiteRows, a: Role, b: Role) -> tuple[SuiteRows, SuiteRows]:
    """Rows that do not split evenly."""
    return b.cycled(a.padded(batch)), a.padded(batch)


@hf.dataflow
def groups(batch: SuiteRows, a: Role, b: Role) -> tuple[SuiteRows, SuiteScores]:
    """Repeated rows, mini-batches, groups and merges."""
    repeated = a.flat(hf.repeat(batch, 4))
    scored = hf.merge(Scored, repeated, centered(b.drawn(repeated)))
    first, second = hf.minibatches(scored, 2)
    return b.pairs(a.pairs(second)), SuiteScores(score=first.score)


@hf.dataflow
def filters(batch: SuiteRows, a: Role, b: Role) -> tuple[SuiteRows, SuiteRows, SuiteRows]:
    """Rows whose number only the run determines, and operations that fix it."""
    filtered = hf.filter(a.flat(batch), a.even(batch))
    return b.padded(filtered), hf.take(filtered, 2), b.cycled(hf.fill(filtered, 5))


@hf.dataflow
def nothing(batch: SuiteRows, a: Role, b: Role) -> tuple[SuiteRows, SuiteRows]:
    """No rows are left."""
    flat = a.flat(batch)
    none = hf.filter(flat, a.few(flat.x, flat.hint))
    return none, b.padded(none)


@hf.dataflow
def balance(batch: SuiteRows, a: Role, b: Role) -> tuple[SuiteRows, SuiteRows]:
    """Rows balanced by weight come back in the caller's order."""
    balanced = a.balanced(batch)
    return b.flat(balanced), added(balanced, 1.0)


@hf.dataflow
def streams(batch: SuiteRows, a: Role, b: Role) -> tuple[SuiteScores, SuiteScores]:
    """Random numbers of rows."""
    return a.drawn(batch), b.drawn(batch)


@hf.dataflow
def collectives(batch: SuiteRows, a: Role, b: Role) -> tuple[SuiteScores, Total, Total]:
    """Collectives between ranks, and metrics."""
    return a.summed(batch), a.total(batch), b.total(batch)


@hf.dataflow
def lists(
    batch: SuiteRows, a: Role, b: Role
) -> tuple[hf.PerRank[list[int]], hf.PerRank[list[int]], hf.PerStage[int], hf.PerRank[list[int]]]:
    """A value per rank or per stage, and each rank's entry of such a list."""
    return a.places(batch), b.places(batch), a.stages(batch), b.echoed(b.places(batch))


@hf.dataflow
def states(batch: SuiteRows, trainer: Trainer, engine: Engine, a: Role) -> tuple[SuiteScores, SuiteScores, SuiteScores]:
    """State sees its calls in program order, and an engine has new weights after a sync."""
    first = trainer.update(batch)
    hf.sync(trainer, engine)
    answers = engine.answer(batch)
    second = trainer.update(a.flat(batch))
    return first, answers, second


@hf.dataflow
def raising(batch: SuiteRows, faulty: Faulty) -> SuiteRows:
    """A body raises while its peers wait."""
    return faulty.raises(batch)


@hf.dataflow
def shortening(batch: SuiteRows, faulty: Faulty) -> SuiteRows:
    """A body loses a row."""
    return faulty.shortens(batch)


@hf.dataflow
def writing(batch: SuiteRows, faulty: Faulty) -> SuiteRows:
    """A body writes into its argument."""
    return faulty.writes(batch)
