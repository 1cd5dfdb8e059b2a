"""Random programs on random deployments, and what they mean in plain Python: rows as tuples, no tensors, no ranks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any, Literal

import torch
from hypothesis import strategies as st

import hfdsl as hf
from tests.plan.provenance import ValueRows, rows_after, rows_of_batch

WIDTH = 2
GARBAGE = -999


class B(hf.Dim): ...


class R(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.i64[B, R]
    name: hf.Obj[str, B]
    y: hf.i32[B]
    echo: hf.i32[B] | None = None  # y once more, in batches that have it


class Total(hf.Batch):
    total: hf.Metric[int, Literal["sum"]]
    largest: hf.Metric[int, Literal["max"]]


# -- bodies: whole numbers, row by row; a rank that must not be collected gives garbage


def echoed(rows: Rows, y: torch.Tensor) -> hf.i32[B] | None:
    return None if rows.echo is None else hf.i32(y.int())


def mapped(rows: Rows, factor: int, tag: str, collected: bool = True) -> Rows:
    x, y, names = rows.x.tensor * factor + 1, rows.y.tensor + factor, [f"{name}{tag}" for name in rows.name.objects]
    if not collected:
        x, y, names = torch.full_like(x, GARBAGE), torch.full_like(y, GARBAGE), ["garbage" for _ in names]
    return Rows(x=x, name=names, y=y.int(), echo=echoed(rows, y))


def flipped(rows: Rows) -> Rows:
    pairs = rows.x.tensor.view(-1, 2, rows.x.tensor.shape[1]).flip(1).flatten(0, 1)
    return Rows(x=pairs, name=rows.name, y=rows.y, echo=rows.echo)


def round_robin(group: Any, *args: Any, **kwargs: Any) -> Any:
    """Row ``i`` goes to rank ``i`` modulo the number of ranks."""

    def every_nth(value: Any) -> list[Any]:
        n = group.world_size
        return [type(value).__hf_concat__([value[i : i + 1] for i in range(r, len(value), n)]) for r in range(n)]

    return tuple(every_nth(a) for a in args), {name: every_nth(a) for name, a in kwargs.items()}


def gathered(group: Any, outputs: Any) -> Any:
    turns = [(output, i) for i in range(len(outputs[0])) for output in outputs]
    return Rows.__hf_concat__([output[i : i + 1] for output, i in turns])


GRID = hf.Protocol("GRID", split=("tp", "dp"), collect={"tp": "join", "dp": "join", "pp": "last"})


class Role(hf.Worker):
    def __init__(self, factor: int) -> None:
        self.factor = factor

    @property
    def last(self) -> bool:
        return self.coordinates.pp == self.mesh.pp - 1

    @hf.register(hf.Dispatch.THREE_D_PROTO)
    def three_d(self, rows: Rows) -> Rows:
        return mapped(rows, self.factor, "t", self.last and self.coordinates.tp == 0)

    @hf.register(hf.Dispatch.THREE_D_PROTO, pad="repeat_last")
    def padded_last(self, rows: Rows) -> Rows:
        return mapped(rows, self.factor, "l", self.last and self.coordinates.tp == 0)

    @hf.register(hf.Dispatch.DP_PROTO, pad="cycle")
    def padded_cycle(self, rows: Rows) -> Rows:
        return mapped(rows, self.factor, "c")

    @hf.register(hf.Dispatch.DP_PROTO)
    def flat(self, rows: Rows) -> Rows:
        return mapped(rows, self.factor, "d")

    @hf.register(hf.Dispatch.THREE_D_ALL_MICRO_DP)
    def micro(self, rows: Rows) -> Rows:
        at, mesh = self.coordinates, self.mesh
        first, last = mesh.gen_tp_rank(at) == 0, mesh.gen_pp_rank(at) == mesh.gen_pp_size - 1
        return mapped(rows, self.factor, "m", first and last)

    @hf.register(GRID)
    def grid(self, rows: Rows) -> Rows:
        return mapped(rows, self.factor, "g", self.last)

    @hf.register(dispatch_mode={"dispatch_fn": round_robin, "collect_fn": gathered})
    def custom(self, rows: Rows) -> Rows:
        return mapped(rows, self.factor, "u")

    @hf.register(hf.Dispatch.ALL_TO_ALL, hf.Execute.RANK_ZERO)
    def zero(self, rows: Rows) -> Rows:
        return mapped(rows, self.factor, "z", self.rank == 0)

    @hf.register(hf.Dispatch.DP_PROTO, rows=hf.Grouped(2))
    def pairs(self, rows: Rows) -> Rows:
        return flipped(rows)

    @hf.register(hf.Dispatch.DP_PROTO, balance="y")
    def even(self, rows: Rows) -> Rows:
        return mapped(rows, self.factor, "e")

    @hf.register(hf.Dispatch.THREE_D_PROTO, balance="x", pad="repeat_last")
    def even_padded(self, rows: Rows) -> Rows:
        return mapped(rows, self.factor, "v", self.last and self.coordinates.tp == 0)

    @hf.register(hf.Dispatch.THREE_D_ALL_MICRO_DP, rows=hf.Grouped(2), balance="x")
    def even_pairs(self, rows: Rows) -> Rows:
        return flipped(rows)

    @hf.register(hf.Dispatch.DP_PROTO, balance="right.y")
    def even_both(self, left: Rows, right: Rows, times: int = 1) -> Rows:
        return Rows(x=left.x.tensor + right.x.tensor * times, name=right.name, y=left.y, echo=left.echo)

    @hf.register(hf.Dispatch.THREE_D_PROTO, balance="rows.y", pad="cycle")
    def numbered(self, rows: Rows) -> Rows:
        names = [f"{name}{row}" for name, row in zip(rows.name.objects, hf.current_call().rows, strict=True)]
        return Rows(x=rows.x, name=names, y=rows.y, echo=rows.echo)

    @hf.register(hf.Dispatch.THREE_D_PROTO)
    def both(self, left: Rows, right: Rows, times: int = 1) -> Rows:
        return Rows(x=left.x.tensor + right.x.tensor * times, name=right.name, y=left.y, echo=left.echo)

    @hf.register(hf.Dispatch.THREE_D_PROTO)
    def column(self, x: hf.i64[B, R], name: hf.Obj[str, B], echo: hf.i32[B] | None) -> Rows:
        y = x.tensor[:, 0].int()
        return Rows(x=x.tensor, name=[f"{n}{r}" for n, r in zip(name.objects, y.tolist(), strict=True)], y=y,
                    echo=None if echo is None else hf.i32(y + echo.tensor * 0))  # fmt: skip  # one row, one name

    @hf.register(hf.Dispatch.THREE_D_PROTO, balance="x")
    def total(self, rows: Rows) -> Total:
        values = rows.x.tensor[:, 0].tolist()
        garbage = not (self.last and self.coordinates.tp == 0)
        return Total(total=GARBAGE if garbage else sum(values), largest=10**6 if garbage else max(values))

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    def everywhere(self, rows: Rows) -> Rows:
        return mapped(rows, self.rank, f"r{self.rank}")

    @hf.register(hf.Dispatch.ALL_TO_ALL)
    def given(self, rows: Rows, times: int) -> Rows:
        return mapped(rows, times, f"a{self.rank}")

    @hf.register(hf.Dispatch.THREE_D_PP_ONLY)
    def stages(self, rows: Rows) -> Rows:
        at = self.coordinates
        return mapped(rows, at.pp, f"s{at.pp}", at.dp == 0 and at.tp == 0)


@hf.function
def plus(rows: Rows, add: int) -> Rows:
    return Rows(x=rows.x.tensor + add, name=rows.name, y=rows.y, echo=rows.echo)


@hf.function(rows=hf.Grouped(2))
def swap(rows: Rows) -> Rows:
    return flipped(rows)


@hf.function(rows=hf.Whole)
def centre(rows: Rows) -> Rows:
    return Rows(x=rows.x.tensor - rows.x.tensor.sum(0), name=rows.name, y=rows.y, echo=rows.echo)


@hf.function(rows=hf.Whole)
def cross(left: Rows, right: Rows) -> Rows:
    """Other rows side by side, on purpose."""
    return Rows(x=left.x.tensor + right.x.tensor * 3, name=right.name, y=left.y, echo=left.echo)


@hf.function(rows=hf.Whole)
def keepers(rows: Rows, group: int) -> hf.bool_[B]:
    return hf.bool_(torch.tensor(p_keepers(rows_of(rows), group)))


@hf.function
def double(x: hf.i64[B, R]) -> hf.i64[B, R]:
    return hf.i64(x.tensor * 2)


@hf.function
def longest(name: hf.Obj[str, B]) -> hf.Obj[str, B]:
    return hf.Obj([n + n for n in name.objects])


@hf.function
def same(y: hf.i32[B] | None) -> hf.i32[B] | None:
    return y


@hf.function
def entry(values: hf.PerRank[Rows], index: int) -> Rows:
    return values[index]


@hf.function
def stage(values: hf.PerStage[Rows], index: int) -> Rows:
    return values[index]


# -- what they mean: a row is (x, name, y)

Row = tuple[tuple[int, ...], str, int]


def p_mapped(rows: list[Row], factor: int, tag: str) -> list[Row]:
    return [(tuple(v * factor + 1 for v in x), name + tag, y + factor) for x, name, y in rows]


def p_flipped(rows: list[Row]) -> list[Row]:
    return [(rows[i ^ 1][0], name, y) for i, (_, name, y) in enumerate(rows)]


def p_keepers(rows: list[Row], group: int) -> list[bool]:
    """The first group, and those of an even sum."""
    sums = [sum(x[0] for x, _, _ in rows[i : i + group]) for i in range(0, len(rows), group)]
    return [i == 0 or total % 2 == 0 for i, total in enumerate(sums) for _ in range(group)]


SIMPLE = {
    "micro": "m",
    "custom": "u",
    "grid": "g",
    "zero": "z",
    "padded_cycle": "c",
    "padded_last": "l",
    "flat": "d",
    "even": "e",
    "even_padded": "v",
    "three_d": "t",
}

OTHERS = ("pairs", "even_pairs", "numbered", "total")


# -- random programs


@dataclass(frozen=True)
class Place:
    mesh: hf.Mesh
    pool: hf.ResourcePool
    colocate: bool

    def chunks(self, method: str) -> int:
        """How many parts a method's rows must make; padded ones, and whole ones, take any."""
        mesh = self.mesh
        return {
            "three_d": mesh.dp, "both": mesh.dp, "column": mesh.dp, "total": mesh.dp, "flat": mesh.world_size,
            "micro": mesh.dp * mesh.micro_dp_size, "grid": mesh.dp * mesh.tp, "custom": mesh.world_size,
            "pairs": 2 * mesh.world_size, "even": mesh.world_size, "even_both": mesh.world_size,
            "even_pairs": 2 * mesh.dp * mesh.micro_dp_size,
        }.get(method, 1)  # fmt: skip  # a table


@dataclass
class Program:
    """Instructions: each makes one value of rows, from the numbers of earlier ones."""

    places: tuple[Place, ...]
    rows: int
    everything: bool  # whether all values are returned, or two columns of the last one
    steps: list[tuple[Any, ...]] = field(default_factory=list)

    def dataflow(self) -> hf.Dataflow[..., Any]:  # noqa: C901  # the same
        def body(batch: Any, roles: tuple[Any, ...]) -> Any:  # noqa: C901, PLR0912  # one case an instruction
            values, extra = [batch], []
            for step in self.steps:
                match step:
                    case "repeat", v, times:
                        values.append(hf.repeat(values[v], times))
                    case "part", v, count, index:
                        values.append(hf.minibatches(values[v], count)[index])
                    case "pack", v, w:
                        values.append(Rows(x=values[v].x, name=values[w].name, y=values[v].y, echo=values[v].echo))
                    case "plus", v, add:
                        values.append(plus(values[v], add))
                    case "swap", v:
                        values.append(swap(values[v]))
                    case "centre", v:
                        values.append(centre(values[v]))
                    case "cross", v, w:
                        values.append(cross(values[v], values[w]))
                    case "sieve", v, group, count, r:
                        keep = keepers(values[v], group)
                        filtered = hf.filter(values[v], keep, group=group)
                        unfiltered = hf.filter(
                            Rows(x=values[v].x, name=values[v].name, y=values[v].y, echo=values[v].echo),
                            keep,
                            group=group,
                        )
                        filtered = plus(Rows(x=filtered.x, name=unfiltered.name, y=filtered.y, echo=unfiltered.echo), 1)
                        filtered = filtered if r is None else roles[r].padded_cycle(filtered)
                        values.append(hf.fill(swap(filtered) if group == 2 else filtered, count))
                    case "first", v, count:
                        values.append(hf.take(values[v], count))
                    case "loose", v:
                        doubled = double(double(values[v].x))
                        name = longest(values[v].name)
                        values.append(Rows(x=doubled, name=name, y=values[v].y, echo=same(values[v].echo)))
                    case ("both" | "even_both") as method, r, v, w:
                        values.append(getattr(roles[r], method)(values[v], right=values[w], times=3))
                    case "column", r, v, w:
                        values.append(roles[r].column(values[v].x, values[w].name, values[v].echo))
                    case "everywhere", r, v, index:
                        values.append(entry(roles[r].everywhere(values[v]), index))
                    case "given", r, v, index:
                        ranks = self.places[r].mesh.world_size
                        lists = roles[r].given(roles[r].everywhere(values[v]), hf.PerRank(range(ranks)))
                        extra.append(lists)
                        values.append(entry(lists, index))
                    case "stages", r, v, index:
                        values.append(stage(roles[r].stages(values[v]), index))
                    case "total", r, v:
                        extra.append(roles[r].total(values[v]))
                    case method, r, v:
                        values.append(getattr(roles[r], method)(values[v]))
            return (*((values[1:], extra) if self.everything else ()), values[-1].x, values[-1].name)

        # A dataflow names its roles one by one.
        names = [f"role{i}" for i in range(len(self.places))]

        def program(batch: Rows, **roles: Role) -> Any:
            return body(batch, tuple(roles[name] for name in names))

        return hf.dataflow(with_parameters(program, names))

    def deployment(self) -> hf.Deployment:
        return hf.Deployment(
            **{
                f"role{i}": hf.place(Role, i + 2, pool=p.pool, mesh=p.mesh, colocate=p.colocate)
                for i, p in enumerate(self.places)
            }
        )

    def meaning(self, batch: list[Row]) -> tuple[list[list[Row]], list[Any]]:  # noqa: C901, PLR0912  # one case an instruction
        """All values, and the lists and metrics, by the rules of the language alone."""
        values: list[list[Row]] = [batch]
        extra: list[Any] = []
        for step in self.steps:
            match step:
                case "repeat", v, times:
                    values.append([row for row in values[v] for _ in range(times)])
                case "part", v, count, index:
                    size = len(values[v]) // count
                    values.append(values[v][index * size : (index + 1) * size])
                case "pack", v, w:
                    values.append([(x, name, y) for (x, _, y), (_, name, _) in zip(values[v], values[w], strict=True)])
                case "plus", v, add:
                    values.append([(tuple(i + add for i in x), name, y) for x, name, y in values[v]])
                case ("swap", v) | ("pairs" | "even_pairs", _, v):
                    values.append(p_flipped(values[v]))
                case "centre", v:
                    sums = [sum(column) for column in zip(*(x for x, _, _ in values[v]), strict=True)]
                    values.append([(tuple(i - s for i, s in zip(x, sums, strict=True)), n, y) for x, n, y in values[v]])
                case "sieve", v, group, count, r:
                    keep = p_keepers(values[v], group)
                    filtered = [
                        (tuple(i + 1 for i in x), n, y) for (x, n, y), k in zip(values[v], keep, strict=True) if k
                    ]
                    filtered = filtered if r is None else p_mapped(filtered, r + 2, "c")
                    filtered = p_flipped(filtered) if group == 2 else filtered
                    values.append([filtered[i % len(filtered)] for i in range(count)])
                case "first", v, count:
                    values.append(values[v][:count])
                case "loose", v:
                    values.append([(tuple(i * 4 for i in x), name * 2, y) for x, name, y in values[v]])
                case "numbered", _, v:
                    values.append([(x, f"{name}{row}", y) for row, (x, name, y) in enumerate(values[v])])
                case ("cross", v, w) | ("both" | "even_both", _, v, w):
                    pairs = zip(values[v], values[w], strict=True)
                    values.append([(tuple(i + 3 * j for i, j in zip(a, c, strict=True)), n, y)
                                   for (a, _, y), (c, n, _) in pairs])  # fmt: skip  # one row
                case "column", _, v, w:
                    pairs = zip(values[v], values[w], strict=True)
                    values.append([(x, f"{name}{x[0]}", x[0]) for (x, _, _), (_, name, _) in pairs])
                case "everywhere", _, v, index:
                    values.append(p_mapped(values[v], index, f"r{index}"))
                case "given", r, v, index:
                    ranks = range(self.places[r].mesh.world_size)
                    lists = [p_mapped(p_mapped(values[v], i, f"r{i}"), i, f"a{i}") for i in ranks]
                    extra.append(lists)
                    values.append(lists[index])
                case "stages", _, v, index:
                    values.append(p_mapped(values[v], index, f"s{index}"))
                case "total", _, v:
                    firsts = [x[0] for x, _, _ in values[v]]
                    extra.append({"total": sum(firsts), "largest": max(firsts)})
                case method, r, v:
                    values.append(p_mapped(values[v], r + 2, SIMPLE[method]))
        return values, extra


def with_parameters(function: Any, roles: list[str]) -> Any:
    """``function`` as one that names its role parameters."""
    source = f"def program(batch, {', '.join(roles)}): return function(batch, {', '.join(f'{n}={n}' for n in roles)})"
    names: dict[str, Any] = {"function": function}
    exec(source, names)  # noqa: S102  # a signature of a chosen length
    program = names["program"]
    program.__annotations__ = {"batch": Rows, **dict.fromkeys(roles, Role)}
    return program


# -- random deployments


SHAPES = [(1, 2, 1), (2, 2, 1), (1, 2, 2), (2, 1, 2), (2, 2, 2), (1, 3, 1), (1, 4, 1), (1, 1, 4), (2, 1, 1), (1, 1, 1)]


@st.composite
def meshes(draw: st.DrawFn) -> hf.Mesh:
    pp, dp, tp = draw(st.sampled_from(SHAPES))
    gen_tp = draw(st.sampled_from([n for n in (1, 2, 4) if tp % n == 0]))
    gen_pp = draw(st.sampled_from([n for n in (1, 2) if pp % n == 0]))
    folds = draw(st.booleans())
    order = draw(st.sampled_from(list(permutations(("pp", "dp", "tp")))))
    mesh = hf.Mesh(pp=pp, dp=dp, tp=tp, order=order)
    return replace(mesh, gen_pp=gen_pp, gen_tp=gen_tp) if folds else mesh


@st.composite
def places(draw: st.DrawFn) -> tuple[Place, ...]:
    """One to three roles: on a pool of their own, on a shared one, on a part of a larger one, on two merged ones."""
    chosen: list[Place] = []
    for number in range(draw(st.integers(1, 3))):
        mesh, name = draw(meshes()), f"pool{number}"
        size = mesh.world_size
        same = [place.pool for place in chosen if place.pool.world_size == size]
        how = draw(st.sampled_from(["own", "nodes", "part", "merged", *(["shared"] * 3 if same else [])]))
        if how == "shared":
            pool = draw(st.sampled_from(same))
        elif how == "part":
            pool = hf.ResourcePool([size, 2], name=name).split([1, size, 1])[1]
        elif how == "merged" and size > 1:
            pool = hf.ResourcePool([1], name=name).merge(hf.ResourcePool([size - 1], name=f"{name}b"))
        else:
            pool = hf.ResourcePool([size - 1, 1] if how == "nodes" and size > 1 else [size], name=name)
        chosen.append(Place(mesh, pool, draw(st.integers(0, 3)) > 0))
    return tuple(chosen)


@st.composite
def programs(draw: st.DrawFn, length: int = 8, fixed: bool = True) -> Program:
    """A sequence of instructions that work out on their deployment; the latest values are read most.

    ``fixed``: some make a number of rows that does not change with those of the input.
    """
    program = Program(draw(places()), draw(st.sampled_from([12, 8, 24, 4, 6, 3, 2, 1])), draw(st.booleans()))
    values = [rows_of_batch(program.rows)]
    for number in range(1, 1 + draw(st.integers(2, length))):
        v = max(0, len(values) - 1 - draw(st.integers(0, 2)))
        kinds = options(draw, program, v, values)
        kinds = kinds if fixed else kinds[:-1]
        step = draw(st.sampled_from([group for group in kinds if group]).flatmap(st.sampled_from))
        program.steps.append(step)
        if step[0] != "total":
            values.append(rows_after(step, number, values))
    return program


def options(draw: st.DrawFn, program: Program, v: int, values: list[ValueRows]) -> list[list[tuple[Any, ...]]]:
    """The instructions that work out on value ``v``, by kind."""
    n, pairs = len(values[v]), len(values[v]) % 2 == 0 and values[v].has_pairs()
    as_many = [w for w, rows in enumerate(values) if len(rows) == n]
    alike = [w for w in as_many if values[w].meets(values[v])]
    others = [w for w in alike if w != v]
    beside = st.sampled_from([*others, *others, v])
    functions = [
        ("plus", v, draw(st.integers(-3, 3))),
        ("centre", v),
        ("loose", v),
        *([("swap", v)] if pairs else []),
    ]
    repeats = [("repeat", v, times) for times in (2, 3) if n * times <= 36]
    parts = [("part", v, count, index) for count in (2, 3) for index in range(count) if n % count == 0]
    again = [(s[0], v, *s[2:]) for s in program.steps if s[0] in ("repeat", "part") and s[1] in others]
    count, role = draw(st.integers(1, 12)), draw(st.sampled_from([None, *range(len(program.places))]))
    groups = [group for group in (1, 2, 3) if n % group == 0 and (group != 2 or pairs)]
    chosen = [("sieve", v, group, count, role) for group in groups] + [("first", v, min(count, n))]
    simple: list[tuple[Any, ...]] = []
    two: list[tuple[Any, ...]] = [("pack", v, draw(beside)), ("cross", v, draw(st.sampled_from(as_many)))]
    lists: list[tuple[Any, ...]] = []
    for r, place in enumerate(program.places):
        methods = [m for m in (*SIMPLE, *OTHERS) if pairs or m not in ("pairs", "even_pairs")]
        simple += [(m, r, v) for m in methods if n % place.chunks(m) == 0]
        if n % place.chunks("both") == 0:
            two += [(m, r, v, draw(beside)) for m in ("both", "column")]
        if n % place.chunks("even_both") == 0:
            two.append(("even_both", r, v, draw(beside)))
        rank, stage = draw(st.integers(0, place.mesh.world_size - 1)), draw(st.integers(0, place.mesh.pp - 1))
        lists += [("everywhere", r, v, rank), ("given", r, v, rank), ("stages", r, v, stage)]
    return [simple, functions, [*repeats, *parts, *parts, *again, *again, *again], simple, two, lists, chosen]


def batch_of(rows: list[Row], echo: bool = False) -> Rows:
    y = torch.tensor([y for _, _, y in rows], dtype=torch.int32)
    return Rows(
        x=torch.tensor([x for x, _, _ in rows]).view(-1, WIDTH),
        name=[name for _, name, _ in rows],
        y=y,
        echo=hf.i32(y) if echo else None,
    )


def rows_of(batch: Rows) -> list[Row]:
    assert batch.echo is None or torch.equal(batch.echo.tensor, batch.y.tensor)
    columns = (batch.x.tensor.tolist(), batch.name.objects, batch.y.tensor.tolist())
    return [(tuple(x), name, y) for x, name, y in zip(*columns, strict=True)]


def some_rows(count: int, seed: int = 0) -> list[Row]:
    return [((7 * i + seed, i - 3), f"n{i}", i * i + seed) for i in range(count)]
