"""The local backend: ranks take turns, collectives meet, and what goes wrong says who, where and when."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import HfError, ResourceError, RoleError, SizeError, WiringError
from hfdsl.graph.spans import definition_span
from hfdsl.runtime.running import Running
from hfdsl.runtime.turns import Turns
from hfdsl.types.numbers import brief


class B(hf.Dim): ...


class R(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.i64[B, R]


class Named(Rows):
    name: hf.Obj[str, B]


class Sums(hf.Batch):
    value: hf.i64[B]


class Metrics(hf.Batch):
    total: hf.Metric[int, Literal["sum"]]


def rows(count: int, r: int = 1) -> Rows:
    return Rows(x=torch.arange(count * r).view(count, r))


def run(body: Callable[..., Any], role: type[hf.Worker], mesh: hf.Mesh, *args: Any, **options: Any) -> Running:
    deployment = hf.Deployment(role=hf.place(role, *args, pool=hf.ResourcePool([mesh.world_size]), mesh=mesh))
    body.__annotations__ = {"batch": Rows, "role": role}
    return hf.dataflow(body).compile(deployment).launch(**options)


# -- turns


def test_turns_run_in_rank_order_and_one_at_a_time() -> None:
    seen: list[str] = []
    turns = Turns()
    here: set[int] = set()

    def body(rank: int) -> Callable[[], int]:
        def run() -> int:
            seen.append(f"{rank} starts")
            here.add(rank)
            turns.wait(rank, lambda: len(here) == 3)
            seen.append(f"{rank} ends")
            return rank * rank

        return run

    assert turns.run([body(rank) for rank in range(3)]) == [0, 1, 4]
    assert seen == ["0 starts", "1 starts", "2 starts", "2 ends", "0 ends", "1 ends"]
    here.clear()
    assert turns.run([body(rank) for rank in range(3)]) == [0, 1, 4], "turns can be taken again"


def test_a_rank_keeps_its_thread_until_nobody_needs_it() -> None:
    turns = Turns()
    first, again = (turns.run([threading.current_thread] * 2) for _ in range(2))
    assert first == again
    assert [thread.name for thread in first] == ["rank 0", "rank 1"]
    del turns
    for thread in first:
        thread.join(timeout=60)
        assert not thread.is_alive()


def test_a_rank_that_waits_for_nobody_is_reported() -> None:
    turns = Turns()

    def waits() -> None:
        turns.wait(0, lambda: False)

    with pytest.raises(HfError, match=r"HF807: rank 0 waits for its peers in a collective, but every remaining rank"):
        turns.run([waits, lambda: None])
    assert turns.run([lambda: 1, lambda: 2]) == [1, 2]


def test_the_error_of_a_rank_comes_before_those_who_wait_for_it() -> None:
    turns = Turns()

    def waits() -> None:
        turns.wait(0, lambda: False)

    def fails() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        turns.run([waits, fails])


@pytest.mark.parametrize("ranks", [1, 3])
def test_an_interrupt_ends_the_bodies(ranks: int) -> None:
    """Else they would run on, and abort the interpreter at its exit if they are in a C++ library then."""
    turns, caller = Turns(), threading.get_ident()
    began, ended = list[int](), list[int]()

    def works(rank: int) -> None:
        try:
            began.append(rank)
            time.sleep(0.1)  # in which the caller begins to wait
            signal.pthread_kill(caller, signal.SIGINT)
            for _ in range(3000):
                time.sleep(0.01)
        finally:
            ended.append(rank)

    with pytest.raises(KeyboardInterrupt):
        turns.run([partial(works, rank) for rank in range(ranks)])
    assert began == ended == [0], "ranks that had not begun do not begin"
    assert turns.run([lambda: 1] * ranks) == [1] * ranks, "the threads take turns again"
    threads = turns.run([threading.current_thread] * ranks)
    turns.close()
    assert not any(thread.is_alive() for thread in threads)


# -- collectives


class Talks(hf.Worker):
    @hf.register(hf.Dispatch.ONE_TO_ALL)
    def gather(self, batch: Rows) -> str:
        return f"{self.axis('tp').all_gather(self.rank)} {self.axis('dp').all_gather(self.rank)}"

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    def reduce(self, batch: Rows) -> str:
        world = self.axis("world")
        world.barrier()
        parts = [world.all_reduce(self.rank, op) for op in ("sum", "mean", "max", "min")]
        return f"{parts} {world.broadcast(self.rank, source=2)} {world.size} {world.rank}"

    @hf.register(hf.Dispatch.THREE_D_PROTO)
    def total(self, batch: Rows) -> Sums:
        total = self.axis("dp").all_reduce(batch.x.tensor.sum())
        gathered = self.axis("dp").all_gather(total)
        total += 1  # the others' copies are their own
        assert all(int(value) == int(gathered[0]) for value in gathered)
        return Sums(value=batch.x.tensor[:, 0] + gathered[0])

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    def alone(self, batch: Rows) -> None:
        if self.rank == 1:
            self.axis("world").barrier()

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    def breaks(self, batch: Rows) -> None:
        if self.rank == 1:
            raise ValueError("no more memory")
        self.axis("world").barrier()

    @hf.register(hf.Dispatch.ALL_TO_ALL, hf.Execute.RANK_ZERO)
    def zero_waits(self, batch: Rows) -> None:
        self.axis("world").barrier()

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    def nowhere(self, batch: Rows) -> None:
        self.axis("ep")


def test_axes_are_those_of_the_mesh() -> None:
    mesh = hf.Mesh(dp=2, tp=2, order=("tp", "dp", "pp"))
    with run(lambda batch, role: role.gather(batch), Talks, mesh) as running:
        assert running.step(rows(1)) == ["[0, 2] [0, 1]", "[1, 3] [0, 1]", "[0, 2] [2, 3]", "[1, 3] [2, 3]"]
    with run(lambda batch, role: role.reduce(batch), Talks, hf.Mesh(dp=4)) as running:
        assert running.step(rows(1)) == [f"[6, 1.5, 3, 0] 2 4 {rank}" for rank in range(4)]


@pytest.mark.parametrize("mesh", [hf.Mesh(), hf.Mesh(dp=4), hf.Mesh(dp=2, tp=2), hf.Mesh(pp=2, dp=2)])
def test_a_sum_over_ranks_is_the_sum_over_rows(mesh: hf.Mesh) -> None:
    with run(lambda batch, role: role.total(batch), Talks, mesh) as running:
        for _ in range(2):
            assert running.step(rows(4)).value.tensor.tolist() == [6, 7, 8, 9]


@pytest.mark.parametrize(
    ("method", "code", "parts"),
    [
        ("alone", "HF807", ["'role.alone' in step 0: rank 1 waits for its peers", "ended: 0", "test_local.py:"]),
        ("breaks", "HF806", ["'role.breaks' raised on rank 1 in step 0: ValueError: no more memory"]),
        ("zero_waits", "HF806", ["'role.zero_waits' runs on rank 0 alone (Execute.RANK_ZERO)"]),
        ("nowhere", "HF806", ["raised on rank 0 in step 0", "has no axis 'ep'; there are pp, dp, tp and world"]),
    ],
)
def test_failures_among_ranks(method: str, code: str, parts: list[str]) -> None:
    with run(lambda batch, role: getattr(role, method)(batch), Talks, hf.Mesh(dp=2)) as running:
        with pytest.raises(HfError) as error:
            running.step(rows(2))
        assert error.value.code == code
        for part in parts:
            assert part in str(error.value)


# -- errors of bodies


class Fails(hf.Worker):
    def __init__(self, at: str = "") -> None:
        if at == "init":
            raise OSError("no checkpoint")
        self.count = 0

    @hf.register(hf.Dispatch.DP_PROTO)
    def third(self, batch: Rows) -> Rows:
        self.count += 1
        if self.count == 3 and self.rank == 1:
            raise ArithmeticError("loss is nan")
        return batch

    @hf.register(hf.Dispatch.DP_PROTO)
    def mistyped(self, batch: Rows) -> Rows:
        return Rows(x=batch.x.tensor.float())

    @hf.register(hf.Dispatch.DP_PROTO)
    def wrong(self, batch: Rows, how: str = "") -> Rows:
        if how == "none":
            return None  # type: ignore[return-value]  # a mistake on purpose
        if how == "other":
            return Sums(value=batch.x.tensor[:, 0])  # type: ignore[return-value]  # a mistake on purpose
        return batch[1:]

    @hf.register(hf.Dispatch.DP_PROTO)
    def column(self, batch: Rows, how: str = "") -> hf.i64[B, R]:
        if how == "tensor":
            return batch.x.tensor  # type: ignore[return-value]  # a mistake on purpose
        return hf.i64(batch.x.tensor.float() if how == "dtype" else batch.x.tensor[:, 0])

    @hf.register(hf.Dispatch.THREE_D_PROTO)
    def one_rank(self, batch: Rows) -> Rows:
        return batch if self.coordinates.tp == 0 else None  # type: ignore[return-value]  # nobody looks at it

    @hf.register(dispatch_mode={"dispatch_fn": lambda g, a: (([a] * g.world_size,), {}), "collect_fn": lambda g, o: o})
    def listed(self, batch: Rows) -> Rows:
        return batch

    @hf.register(dispatch_mode={"dispatch_fn": lambda g, a: (([a],), {}), "collect_fn": lambda g, o: o[0]})
    def short(self, batch: Rows) -> Rows:
        return batch


def test_a_role_error_says_role_method_rank_step_and_the_workers_lines() -> None:
    with run(lambda batch, role: role.third(batch), Fails, hf.Mesh(dp=2)) as running:
        assert running.steps == 0
        for step in range(2):
            running.step(rows(4))
            assert running.steps == step + 1
        with pytest.raises(RoleError) as error:
            running.step(rows(4))
        text = str(error.value)
        assert text.startswith("HF806: 'role.third' raised on rank 1 in step 2: ArithmeticError: loss is nan\n\n")
        assert 'raise ArithmeticError("loss is nan")' in text
        assert "in third" in text
        assert running.steps == 2, "a step that failed never happened"
        with pytest.raises(
            HfError, match=r"HF808: the run of '.*' has been broken since step 2 of .* launch the plan again"
        ):
            running.step(rows(4))


def test_the_trace_of_hfdsls_own_error_ends_at_the_users_line() -> None:
    with run(lambda batch, role: role.mistyped(batch), Fails, hf.Mesh(dp=2)) as running:
        with pytest.raises(RoleError, match=r"HF806: 'role.mistyped' raised on rank 0 in step 0: \w+: HF2") as error:
            running.step(rows(4))
        frames = [line for line in str(error.value).splitlines() if line.startswith("  File ")]
        assert [frame.rpartition(", in ")[2] for frame in frames] == ["mistyped"]


def test_a_constructor_that_raises_is_reported_before_the_first_step() -> None:
    with pytest.raises(RoleError, match=r"HF806: 'role.__init__ \(Fails\)' raised on rank 0: OSError: no checkpoint"):
        run(lambda batch, role: role.third(batch), Fails, hf.Mesh(dp=2), "init")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda b, r: r.wrong(b, "none"), "'role.wrong' declares Rows and returned NoneType on rank 0"),
        (lambda b, r: r.wrong(b, how="other"), "'role.wrong' declares Rows and returned Sums on rank 0"),
        (lambda b, r: r.wrong(b), "'role.wrong' returned 1 row of Rows on rank 0, where its 2 input rows make 2"),
        (
            lambda b, r: r.column(b, "tensor"),
            "'role.column' declares i64[B, R] and returned Tensor on rank 0; wrap the tensor: hf.i64(tensor)",
        ),
        (
            lambda b, r: r.column(b, "dtype"),
            "'role.column' declares i64[B, R] and returned torch.float32 of shape (2, 1)",
        ),
        (lambda b, r: r.column(b), "'role.column' declares i64[B, R] and returned torch.int64 of shape (2,) on rank 0"),
        (lambda b, r: r.listed(b), "'role.listed' declares Rows and returned list from its collect function"),
    ],
)
def test_a_result_is_held_against_its_signature(call: Callable[[Any, Any], Any], text: str) -> None:
    def body(batch: Any, role: Any) -> Any:
        return call(batch, role)

    with run(body, Fails, hf.Mesh(dp=2)) as running:
        with pytest.raises(WiringError) as error:
            running.step(rows(4))
        assert str(error.value).startswith(f"HF805: {text}")


class Scorer(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def score(self, batch: Rows) -> Sums:
        return Sums(value=batch.x.tensor.sum(1))


class Registered(Scorer):
    @hf.register(hf.Dispatch.DP_PROTO)
    def score(self, batch: Rows) -> Sums:
        return batch  # type: ignore[return-value]


class Inherited(Scorer):
    def score(self, batch: Rows) -> Sums:
        batch.x.tensor.add_(1)
        return super().score(batch)


class Derived(Inherited): ...


@pytest.mark.parametrize(
    ("placed", "code", "line"),
    [(Registered, "HF805", Registered), (Inherited, "HF703", Inherited), (Derived, "HF703", Inherited)],
)
def test_an_error_names_the_place_of_the_override_that_ran(placed: type[Scorer], code: str, line: type[Scorer]) -> None:
    @hf.dataflow
    def scores(batch: Rows, role: Scorer) -> Sums:
        return role.score(batch)

    deployment = hf.Deployment(role=hf.place(placed, pool=hf.ResourcePool([1])))
    with scores.compile(deployment).launch() as running, pytest.raises(WiringError, match=code) as error:
        running.step(rows(2))
    assert str(error.value).endswith(f"({definition_span(line.score)})")


def test_results_of_ranks_that_are_not_collected_are_never_looked_at() -> None:
    with run(lambda batch, role: role.one_rank(batch), Fails, hf.Mesh(dp=2, tp=2)) as running:
        assert running.step(rows(4)).x.tensor[:, 0].tolist() == [0, 1, 2, 3]


def test_a_dispatch_function_gives_one_value_a_rank() -> None:
    match = r"HF407: .* 'role.short' returned 1 entry for argument 'batch', where a list with an entry for each of 2"
    with (
        run(lambda batch, role: role.short(batch), Fails, hf.Mesh(dp=2)) as running,
        pytest.raises(WiringError, match=match),
    ):
        running.step(rows(4))


# -- seeds

SEEDS = (0, 7, 2**63 - 1, np.int64(7), np.uint8(7))
NO_SEEDS = (1.5, -1, True, "3", None, 2**63, 10**5000, float("nan"), np.float64(1.0), np.bool_(True), np.int64(-1))


class Drawing(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def drawn(self, batch: Rows) -> Sums:
        return Sums(value=(hf.current_call().uniforms(1)[:, 0] * 1000).long())


@hf.dataflow
def draws(batch: Rows, role: Drawing) -> Sums:
    return role.drawn(batch)


drawing = hf.Deployment(role=hf.place(Drawing, pool=hf.ResourcePool([1])))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_is_a_whole_number_of_any_kind(seed: Any) -> None:
    plan, experiment = draws.compile(drawing), hf.Experiment(draws, drawing, seed=seed)
    with plan.launch(seed=seed) as running, plan.launch(seed=int(seed)) as same:
        assert torch.equal(running.step(rows(3)).value.tensor, same.step(rows(3)).value.tensor)
    assert (experiment.seed, type(experiment.seed)) == (int(seed), int)


@pytest.mark.parametrize("seed", NO_SEEDS, ids=brief)
@pytest.mark.parametrize("take", [draws.compile(drawing).launch, partial(hf.Experiment, draws, drawing)])
def test_another_value_is_no_seed(seed: Any, take: Callable[..., Any]) -> None:
    number = r"HF932: .*seed=.* is a whole number of at (least 0|most 2\*\*63 - 1), got"
    with pytest.raises(ResourceError, match=number):
        take(seed=seed)


# -- inputs


@hf.dataflow
def pair(left: Rows, right: Rows, role: Fails) -> tuple[Rows, Rows]:
    return role.third(left), right


PAIR = hf.Deployment(role=hf.place(Fails, pool=hf.ResourcePool([2])))


@pytest.mark.parametrize(
    ("args", "kwargs", "family", "text"),
    [
        ((rows(2),), {}, WiringError, "HF203: 'pair' is missing its input 'right' (it takes left: Rows, rig"),
        ((rows(2),) * 3, {}, WiringError, "HF202: 'pair' takes 2 batches (left: Rows, right: Rows), got 3"),
        ((rows(2),), {"rigth": rows(2)}, WiringError, "HF202: 'pair' has no input 'rigth'; did you mean 'right'?"),
        ((rows(2), torch.zeros(2)), {}, WiringError, "HF206: input 'right' of 'pair' takes Rows, got Tensor"),
        ((rows(3), rows(3)), {}, SizeError, "HF319: not decided before launch, and refused with B = 3, R = 1 (HF310"),
        (
            (rows(2), rows(4)),
            {},
            SizeError,
            "HF302: input 'right': column 'x' has 4 where B = 2 (input 'left' has B = 2)",
        ),
        ((rows(2), rows(2, 3)), {}, SizeError, "HF302: input 'right': column 'x' has 3 where R = 1"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_and_break_nothing(
    args: tuple[Any, ...], kwargs: dict[str, Any], family: type[HfError], text: str
) -> None:
    with pair.compile(PAIR).launch() as running:
        with pytest.raises(family) as error:
            running.step(*args, **kwargs)
        assert str(error.value).startswith(text)
        left, right = running.step(right=rows(2), left=Named(x=rows(2).x, name=["a", "b"]))
        assert (type(left), type(right), running.steps) == (Rows, Rows, 1)


def test_a_size_that_the_plan_was_compiled_for_is_kept() -> None:
    with pair.compile(PAIR, dims={B: 4}).launch() as running:
        with pytest.raises(SizeError, match=r"HF302: .* has 2 where B = 4 \(the plan was compiled for B = 4\)"):
            running.step(rows(2), rows(2))
        running.step(rows(4), rows(4))


def test_a_closed_run_is_over() -> None:
    with pair.compile(PAIR).launch() as running:
        running.step(rows(2), rows(2))
        assert set(running.timings) == {"role.third"}
        assert [(span.name, span.process[1]) for span in running.timeline.calls] == [
            ("role.third", 0),
            ("role.third", 1),
        ]
    running.close()
    with pytest.raises(HfError, match="HF808: the run of 'pair' is closed; launch the plan again"):
        running.step(rows(2), rows(2))


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ResourceError, match="HF518: no backend 'slurm'; there are 'local' and 'ray'"):
        pair.compile(PAIR).launch(backend="slurm")  # type: ignore[arg-type]  # a mistake on purpose


def test_an_evaluation_runs_beside_the_training_on_the_same_workers() -> None:
    @hf.dataflow
    def evaluate(batch: Rows, role: Fails) -> Rows:
        return role.third(batch)

    with pair.compile(PAIR).launch() as running:
        beside = running.also(evaluate.compile(PAIR))
        running.step(rows(2), rows(2))
        beside.step(rows(2))
        assert (running.steps, beside.steps) == (1, 1)
        with pytest.raises(RoleError, match=r"'role.third' raised on rank 1 in step 1"):
            running.step(rows(2), rows(2))  # the third call of that worker
        with pytest.raises(HfError, match="HF808"):
            beside.step(rows(2))
        says = "HF206: running.also takes a compiled plan, got "
        with pytest.raises(WiringError) as raised:
            running.also(evaluate)  # type: ignore[arg-type]
        assert str(raised.value) == f"{says}the dataflow 'evaluate': compile it, evaluate.compile(deployment, dims)"
        with pytest.raises(WiringError, match=f"{says}a str"):
            running.also("evaluate")  # type: ignore[arg-type]
        with pytest.raises(ResourceError, match="HF519"):
            running.also(pair.compile(hf.Deployment(role=hf.place(Fails, pool=hf.ResourcePool([2])))))


# -- random streams


class Draws(hf.Worker):
    def __init__(self) -> None:
        self.weights = torch.rand(3)

    @hf.register(hf.Dispatch.THREE_D_PROTO, pad="repeat_last")
    def by_row(self, batch: Rows) -> Sums:
        draws = [hf.current_call().uniforms(2).sum(1) for _ in range(2)]
        assert not torch.isin(*draws).any(), "each draw of a body is new"
        return Sums(value=((draws[0] + 10 * draws[1]) * 1e6).long())

    @hf.register(hf.Dispatch.THREE_D_PROTO)
    def from_globals(self, batch: Rows) -> Sums:
        first = torch.rand(len(batch)) + random.random() + float(np.random.rand())  # noqa: NPY002  # the global stream
        self.axis("dp").barrier()  # another rank draws meanwhile
        second = torch.rand(len(batch))
        return Sums(value=((first + 10 * second) * 1e6).long())

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    def own(self, batch: Rows) -> str:
        return f"{torch.rand(1, generator=hf.current_call().generator()).item():.6f} {self.weights.tolist()}"


MESHES = [hf.Mesh(), hf.Mesh(dp=4), hf.Mesh(dp=2, tp=2), hf.Mesh(pp=2, dp=2, order=("dp", "tp", "pp")), hf.Mesh(dp=3)]


def drawn(method: str, mesh: hf.Mesh, count: int = 4, **options: Any) -> list[list[int]]:
    with run(lambda batch, role: getattr(role, method)(batch), Draws, mesh, **options) as running:
        return [running.step(rows(count)).value.tensor.tolist() for _ in range(2)]


@settings(max_examples=10)
@given(st.sampled_from(MESHES), st.integers(1, 9), st.integers(0, 2))
def test_the_numbers_of_a_row_are_the_same_on_any_mesh(mesh: hf.Mesh, count: int, seed: int) -> None:
    on_one = drawn("by_row", hf.Mesh(), count, seed=seed)
    assert drawn("by_row", mesh, count, seed=seed) == on_one
    assert len({*on_one[0], *on_one[1]}) == 2 * count, "every row and step has numbers of its own"
    assert drawn("by_row", mesh, count, seed=seed + 1) != on_one


def test_global_streams_are_the_ranks_own_and_the_callers_go_on_as_before() -> None:
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002  # the global stream
    torch.manual_seed(3)
    expected = random.random(), float(np.random.rand()), torch.rand(2).tolist()  # noqa: NPY002  # the global stream
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002  # the global stream
    torch.manual_seed(3)
    first = drawn("from_globals", hf.Mesh(dp=2))
    assert (random.random(), float(np.random.rand()), torch.rand(2).tolist()) == expected  # noqa: NPY002  # the global stream
    assert drawn("from_globals", hf.Mesh(dp=2)) == first
    assert len({*first[0], *first[1]}) == 8


def test_replicas_start_out_equal_and_draw_apart() -> None:
    with run(lambda batch, role: role.own(batch), Draws, hf.Mesh(dp=3)) as running:
        texts = [text.split(" ", 1) for text in running.step(rows(1))]
    assert len({number for number, _ in texts}) == 3
    assert len({weights for _, weights in texts}) == 1
