"""What a check is asked for and cannot do: an argument of another kind is refused by its name, before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from hypothesis import find
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.check.report import CheckError
from hfdsl.errors import HfError
from hfdsl.runtime.decisions import Decision
from hfdsl.runtime.queues.links import QueueLinks
from hfdsl.runtime.schedule import QueueSpec
from hfdsl.testing import (
    BrokenQueueError,
    broken_laws,
    check_decisions,
    check_laws,
    check_placements,
    check_prompts,
    check_rows,
    check_stream,
    check_worker,
    fake,
    fake_batch,
    faked,
    lawful,
    run_suite,
)
from hfdsl.testing.strategies import (
    batches,
    bindings,
    clusters,
    dims,
    graphs,
    meshes,
    placements,
    pools,
    records,
    schedules,
    tensors,
)


class B(hf.Dim): ...


class R(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


class Ragged(hf.Batch):
    tokens: hf.i64[B, hf.Ragged[R]]


class Mean(hf.Batch):
    mean: hf.Metric[float, Literal["mean"]]


class Role(hf.Worker):
    def __init__(self, path: str) -> None: ...

    @hf.register(hf.Dispatch.DP_PROTO)
    def twice(self, rows: Rows, by: float) -> Rows:
        return Rows(x=rows.x.tensor * by)

    @hf.register(hf.Dispatch.DP_PROTO)
    def silent(self, rows: Rows) -> None: ...

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    def each(self, rows: Rows) -> Rows:
        return rows


@hf.function(rows=hf.GroupedBy("group"))
def centered(rows: Rows, group: int) -> Rows:
    groups = rows.x.tensor.view(-1, group)
    return Rows(x=(groups - groups.mean(1, keepdim=True)).flatten())


@hf.function
def scaled(rows: Rows, scale: float) -> Rows:
    return Rows(x=rows.x.tensor * scale)


@hf.function
def mean(rows: Rows) -> Mean:
    return Mean(mean=float(rows.x.tensor.mean()))


@hf.dataflow
def program(rows: Rows, role: Role) -> Rows:
    return role.twice(rows, 2.0)


@hf.dataflow
def lists(rows: Rows, role: Role) -> hf.PerRank[Rows]:
    return role.each(rows)


def placed(ranks: int, name: str = "role") -> hf.Deployment:
    return hf.Deployment(**{name: hf.place(Role, "a/model", pool=hf.ResourcePool([ranks], use_gpu=False))})


PAIR = hf.protocols.get_predefined_dispatch_fn("DP_PROTO")
FOUR = Rows(x=torch.arange(4.0))
TWO: Any = {"one": placed(1), "two": placed(2)}
DP = [hf.Mesh(dp=2)]


def drawn(strategy: Any) -> Any:
    return find(strategy, lambda example: True)


def refusal(check: Callable[..., Any], *args: Any, **options: Any) -> str:
    with pytest.raises(HfError) as error:
        check(*args, **options)
    return str(error.value)


LAWS: list[tuple[dict[str, Any], str]] = [
    (
        {"meshes": hf.Mesh(dp=2)},
        "HF921: check_laws: meshes= takes meshes in a list, as in meshes=[hf.Mesh(dp=2)], got hf.M",
    ),
    ({"meshes": [2]}, "HF921: check_laws: meshes= takes meshes, each an hf.Mesh, got 2"),
    ({"meshes": 2}, "HF921: check_laws: meshes= takes meshes in a list, as in meshes=[hf.Mesh(dp=2)], got 2"),
    ({"meshes": []}, "HF922: check_laws would compare nothing: meshes= is empty"),
    ({"containers": []}, "HF922: check_laws would compare nothing: containers= is empty"),
    ({"containers": "lists"}, "HF921: check_laws: no container is called 'lists'; did you mean 'list'?"),
    (
        {"containers": [list]},
        "HF921: check_laws: containers= takes the name of a container or several in a list, got the class",
    ),
    ({"only": []}, "HF922: check_laws would compare nothing: only= is empty"),
    ({"only": 3}, "HF921: check_laws: only= takes the name of a law or several in a list, got 3"),
    (
        {"only": "L9"},
        "HF922: check_laws would compare nothing: no law of only='L9' applies to the pair dispatch_fn, collect_fn",
    ),
    ({"max_examples": 0}, "HF921: check_laws: max_examples= takes a whole number of at least 1, got 0"),
    (
        {"like": 3},
        "HF921: check_laws: like= takes an hf.Protocol, the name of one, or a pair of functions in a dict, got 3",
    ),
]


@pytest.mark.parametrize(("options", "text"), LAWS, ids=lambda case: "")
def test_laws(options: dict[str, Any], text: str) -> None:
    assert refusal(check_laws, PAIR, **options).startswith(text)
    assert refusal(lawful, PAIR, **options).startswith(text[:5])  # where the class is decorated


def test_no_protocol() -> None:
    text = "HF921: check_laws: protocol takes an hf.Protocol, the name of one, or a pair of functions in a dict, got 42"
    assert refusal(check_laws, 42) == text


def test_a_class_of_laws_takes_what_can_be_read_once() -> None:
    @lawful("DP_PROTO", meshes=(mesh for mesh in DP), containers=(name for name in ["list"]))
    class Laws:
        pass

    laws: Any = Laws()
    for name in ("test_l1_coverage", "test_l3_round_trip"):
        getattr(laws, name)()


ROWS: list[tuple[Any, dict[str, Any], str]] = [
    (len, {}, "HF921: check_rows: function takes one under @hf.function, got <built-in function len>"),
    (mean, {}, "HF922: check_rows would compare nothing: the result of 'mean' has no rows"),
    (centered, {}, "HF203: 'centered' is grouped by 'group': check_rows(..., given={'group': 4})"),
    (
        centered,
        {"given": {"group": 0}},
        "HF921: check_rows: 'group' in given= takes a whole number of at least 1, got 0",
    ),
    (centered, {"given": {"grop": 4}}, "HF202: 'centered' has no parameter 'grop'; did you mean 'group'?"),
    (centered, {"given": 4}, "HF921: check_rows: given= takes values by name, as in given={'rows': ...}, got 4"),
    (
        scaled,
        {},
        "HF203: 'scale' takes a value of type float, which is not drawn: check_rows(..., given={'scale': ...})",
    ),
    (scaled, {"max_examples": 0}, "HF921: check_rows: max_examples= takes a whole number of at least 1, got 0"),
    (scaled, {"multiple": 0.5}, "HF921: check_rows: multiple= takes a whole number of at least 1, got 0.5"),
    (
        scaled,
        {"tolerance": float("nan")},
        "HF921: check_rows: tolerance= takes a number of at least 0, got float('nan')",
    ),
]


@pytest.mark.parametrize(("function", "options", "text"), ROWS, ids=lambda case: "")
def test_rows(function: Any, options: dict[str, Any], text: str) -> None:
    assert refusal(check_rows, function, **options) == text


BY: dict[str, Any] = {"given": {"by": 2.0}, "init": ("a/model",)}
WORKERS: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    (
        (dict, "twice", FOUR),
        {},
        "HF921: check_worker: the role takes a class derived from hf.Worker, got the class dict",
    ),
    ((Role, "twise", FOUR), {}, "HF202: role 'Role' has no method 'twise'; did you mean 'twice'?"),
    ((Role, 3, FOUR), {}, "HF921: check_worker: method takes the name of a method of the role, got 3"),
    ((Role, "silent", FOUR), {}, "HF922: check_worker would compare nothing: Role.silent gives nothing"),
    (
        (Role, "each", FOUR),
        {},
        "HF922: check_worker would compare nothing: Role.each gives a list, one value per rank, and no",
    ),
    (
        (Role, "twice", FOUR),
        {},
        "HF203: 'by' of Role.twice takes float, which is not a record: check_worker(..., given={'by': ",
    ),
    ((Role, "twice", FOUR), {"given": {"bye": 2}}, "HF202: 'Role.twice' has no parameter 'bye'; did you mean 'by'?"),
    ((Role, "twice"), BY, "HF203: 'Role.twice' is missing its input 'rows' (it takes rows: Rows)"),
    ((Role, "twice", FOUR, FOUR), BY, "HF202: 'Role.twice' takes 1 batch (rows: Rows), got 2"),
    (
        (Role, "twice", FOUR),
        {"meshes": DP[0]},
        "HF921: check_worker: meshes= takes meshes in a list, as in meshes=[hf.Mes",
    ),
    ((Role, "twice", FOUR), {"steps": 0}, "HF921: check_worker: steps= takes a whole number of at least 1, got 0"),
    ((Role, "twice", FOUR), {"tolerance": -1}, "HF921: check_worker: tolerance= takes a number of at least 0, got -1"),
    (
        (Role, "twice", FOUR),
        {"init": "x"},
        "HF921: check_worker: init= takes the arguments of the constructor in a tuple,",
    ),
    (
        (Role, "twice", FOUR),
        BY | {"meshes": [hf.Mesh()]},
        "HF922: check_worker would compare nothing: Role.twice ran on mes",
    ),
    (
        (Role, "twice", FOUR),
        BY | {"meshes": [hf.Mesh(dp=3)]},
        "HF922: check_worker would compare nothing: Role.twice ran on meshes of one rank alone; of 1 larger that the c",
    ),
]


@pytest.mark.parametrize(("args", "options", "text"), WORKERS, ids=lambda case: "")
def test_workers(args: tuple[Any, ...], options: dict[str, Any], text: str) -> None:
    assert refusal(check_worker, *args, **options).startswith(text)


PLACES: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((len, TWO, FOUR), {}, "HF921: check_placements: dataflow takes a function under @hf.dataflow, got <built-in"),
    (
        (program, placed(1), FOUR),
        {},
        "HF921: check_placements: deployments takes them in a list or by name, as in [deployment]",
    ),
    (
        (program, [1], FOUR),
        {},
        "HF921: check_placements: deployments takes them in a list or by name, each an hf.Deployment, ",
    ),
    ((program, {}, FOUR), {}, "HF922: check_placements would compare nothing: it has no deployment"),
    ((program, TWO), {}, "HF922: check_placements would compare nothing: it has no batch"),
    ((program, TWO, fake_batch(Ragged, {B: 2, R: 1})), {}, "HF206: a step of 'program' takes Rows, got Ragged"),
    ((program, TWO, (FOUR, FOUR)), {}, "HF206: a step of 'program' takes Rows, got Rows, Rows"),
    (
        (program, [placed(2)], FOUR),
        {"on": "local"},
        "HF922: check_placements would compare nothing: it is one run; give more",
    ),
    (
        (program, TWO, FOUR),
        {"on": ["lokal"]},
        "HF921: check_placements: no backend is called 'lokal'; did you mean 'local'?",
    ),
    ((program, TWO, FOUR), {"dims": 4}, "HF921: check_placements: dims takes sizes by dim, as in {B: 8}, got 4"),
    (
        (program, TWO, FOUR),
        {"tolerance": "x"},
        "HF921: check_placements: tolerance= takes a number of at least 0, got 'x'",
    ),
    (
        (program, TWO, FOUR),
        {"tolerance": {"role.twise": 1e-6}},
        "HF202: 'program' has no call 'role.twise'; did you mean 'role.twice'?",
    ),
    (
        (lists, TWO, FOUR),
        {"on": "local"},
        "HF922: check_placements would compare nothing: all values are lists, and no two placements have as many ranks",
    ),
]


@pytest.mark.parametrize(("args", "options", "text"), PLACES, ids=lambda case: "")
def test_placements(args: tuple[Any, ...], options: dict[str, Any], text: str) -> None:
    assert refusal(check_placements, *args, **{"on": ["eager", "local"], **options}).startswith(text)


def test_a_deployment_that_does_not_fit_is_found_before_the_first_run() -> None:
    with pytest.raises(CheckError, match="HF507") as error:
        check_placements(program, {"one": placed(1), "other": placed(1, "rolle")}, FOUR, on=["eager", "local"])
    assert not hasattr(error.value, "__notes__")  # "on local, ..." is said of a run


FAKE: Any = fake
FAKED: Any = faked
FAKE_BATCH: Any = fake_batch
SUITE: Any = run_suite
FAKES: list[tuple[Callable[..., Any], str]] = [
    (lambda: FAKE(dict), "HF921: fake: the role takes a class derived from hf.Worker, got the class dict"),
    (lambda: FAKE(Role, dims={"R": 3}), "HF921: fake: dims takes sizes by dim, as in {B: 8}, got 'R'"),
    (lambda: FAKE(Role, dims={R: -1}), "HF921: fake: the size of R takes a whole number of at least 0, got -1"),
    (
        lambda: FAKE(Role, seconds={"twice": -1}),
        "HF921: fake: seconds= of 'twice' takes a number of at least 0, or a fun",
    ),
    (lambda: FAKE(Role, columns={"y": None}), "HF201: fake(Role) makes no column 'y'; there are: x"),
    (
        lambda: FAKE(Role, columns={"x": 3}),
        "HF921: fake(Role): columns= of 'x' takes a function of the column's shape, or ",
    ),
    (lambda: FAKE(Role)("p").twice(FOUR), "HF203: fake(Role).twice is called without 'by'"),
    (lambda: FAKE(Role)("p").twice(1, 2.0), "HF206: 'rows' of fake(Role).twice takes Rows, got int"),
    (lambda: FAKE(Role)("p").twice(FOUR, 1, 2), "HF202: fake(Role).twice takes 2 arguments (rows, by), got 3"),
    (lambda: FAKE(Role)("p").twice(FOUR, bye=1), "HF202: fake(Role).twice has no parameter 'bye'; did you mean 'by'?"),
    (FAKE(Role), "HF516: fake(Role) cannot be built: missing a required argument: 'path'"),
    (lambda: FAKE(Role)("p", pat=1), "HF516: fake(Role) cannot be built: got an unexpected keyword argument 'pat'"),
    (lambda: FAKED(placed(1), columns={"y": None}), "HF201: faked makes no column 'y'; there are: x"),
    (lambda: FAKED(TWO), "HF921: faked: deployment takes an hf.Deployment, got a dict"),
    (lambda: FAKE_BATCH(dict, {}), "HF921: fake_batch: record takes a class derived from hf.Batch, got the class dict"),
    (
        lambda: FAKE_BATCH(Rows, {B: 2}, columns={"y": None}),
        "HF201: fake_batch(Rows, dims) makes no column 'y'; there are: x",
    ),
    (
        lambda: SUITE("local", deployments=["one"]),
        "HF921: run_suite: no deployment is called 'one'; there are: one pool, ",
    ),
    (lambda: SUITE("local", []), "HF922: run_suite would compare nothing: it has no program"),
    (
        lambda: SUITE("local", [3]),
        "HF921: run_suite: programs takes programs in a list, each a SuiteProgram or a StreamProgram, got 3",
    ),
    (
        lambda: SUITE("local", 3),
        "HF921: run_suite: programs takes programs in a list, each a SuiteProgram or a StreamProgram, got 3",
    ),
    (lambda: SUITE("locl"), "HF518: no backend 'locl'; there are 'local' and 'ray', and lowerings of your own"),
    (lambda: drawn(batches(dict)), "HF921: batches: record takes a class derived from hf.Batch, got the class dict"),
    (lambda: drawn(batches(Rows, columns={"y": st.none()})), "HF201: batches: 'Rows' has no column 'y'; there are: x"),
    (lambda: drawn(tensors("float32")), "HF921: tensors: no dtype is called 'float32'; did you mean 'f32'?"),
    (lambda: drawn(meshes(axes=("ddp",))), "HF921: meshes: no axis is called 'ddp'; did you mean 'dp'?"),
    (lambda: drawn(tensors(3)), "HF921: tensors: dtype takes a dtype of hfdsl or its name, as in 'f32', got 3"),  # type: ignore[arg-type]
    (lambda: drawn(tensors("f32", 3)), "HF921: tensors: shape takes the lengths of the dims in a tuple, as in (2"),  # type: ignore[arg-type]
    (lambda: drawn(tensors("f32", (-1,))), "HF921: tensors: a length in shape takes a whole number of at least 0"),
    (lambda: drawn(schedules(late="drops")), "HF921: schedules: no discipline is called 'drops'; did you mean 'drop'?"),  # type: ignore[arg-type]
    (lambda: drawn(schedules(slowest=0)), "HF921: schedules: slowest= takes a whole number of at least 1, got 0"),
    (lambda: drawn(records(max_columns=0)), "HF921: records: max_columns= takes a whole number of at least 1, got 0"),
    (lambda: drawn(graphs(max_nodes=0)), "HF921: graphs: max_nodes= takes a whole number of at least 1, got 0"),
    (lambda: drawn(dims(dict)), "HF921: dims: records takes classes derived from hf.Batch, got the class dict"),  # type: ignore[arg-type]
    (lambda: drawn(clusters(3)), "HF921: clusters: held takes pools, each an hf.ResourcePool, got 3"),  # type: ignore[arg-type]
    (lambda: placements(3), "HF921: placements: mesh takes an hf.Mesh, got 3"),  # type: ignore[arg-type]
    (lambda: drawn(pools(0)), "HF921: pools: ranks takes a whole number of at least 1, got 0"),
    (lambda: drawn(bindings(3)), "HF921: bindings: dataflow takes a function under @hf.dataflow, got 3"),  # type: ignore[arg-type]
    (lambda: drawn(bindings(program, 3)), "HF921: bindings: deployment takes an hf.Deployment, got 3"),  # type: ignore[arg-type]
    (lambda: drawn(bindings(program, sizes=3)), "HF921: bindings: sizes= takes sizes by dim, as in {B: 8}, got 3"),  # type: ignore[arg-type]
    (lambda: drawn(dims(Rows, sizes={"B": 3})), "HF921: dims: sizes= takes sizes by dim, as in {B: 8}, got 'B'"),
    (lambda: drawn(dims(Rows, b=-1)), "HF921: dims: b= takes a whole number of at least 0, got -1"),
    (lambda: drawn(meshes(axes=3)), "HF921: meshes: axes= takes the name of an axis or several in a list, got 3"),  # type: ignore[arg-type]
    (lambda: drawn(meshes(max_world=0)), "HF921: meshes: max_world= takes a whole number of at least 1, got 0"),
]


@pytest.mark.parametrize(("make", "text"), FAKES, ids=lambda case: "")
def test_fakes_backends_and_strategies(make: Callable[..., Any], text: str) -> None:
    assert refusal(make).startswith(text)


def test_rows_and_ragged_rows_of_no_length_are_made() -> None:
    assert [len(row) for row in fake_batch(Ragged, {B: 2, R: 0}).tokens.rows] == [0, 0]
    assert len(fake_batch(Ragged, {B: 0, R: 3})) == 0


@pytest.mark.parametrize("seed", [True, "1", 1.5, [1]])
@pytest.mark.parametrize("make", [fake, faked])
def test_seeds_that_may_be_omitted(make: Any, seed: Any) -> None:
    target = Role if make is fake else placed(1)
    make(target, seed=None)
    assert refusal(make, target, seed=seed).startswith(f"HF921: {make.__name__}: seed= takes a whole number, got ")


@pytest.mark.parametrize("seed", [None, True, "1", 1.5, [1]])
@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("check_laws", lambda seed: check_laws("DP_PROTO", seed=seed)),
        ("lawful", lambda seed: lawful("DP_PROTO", seed=seed)),
        ("check_rows", lambda seed: check_rows(scaled, given={"scale": 2.0}, seed=seed)),
        ("check_stream", lambda seed: check_stream(lambda: None, [FOUR], seed=seed)),  # type: ignore[arg-type, return-value]
        ("fake_batch", lambda seed: fake_batch(Rows, {B: 4}, seed=seed)),
    ],
)
def test_seeds(name: str, check: Callable[[Any], None], seed: Any) -> None:
    assert refusal(check, seed).startswith(f"HF921: {name}: seed= takes a whole number, got ")


SPEC = QueueSpec("scored", lag=0)
DISPATCHES = [Decision("dispatch", "scored", 0, (group,), (group,)) for group in (0, 0)]


@pytest.mark.parametrize("check", [broken_laws, check_decisions])
def test_logs(check: Callable[..., Any]) -> None:
    name = check.__name__
    assert refusal(check, "scored", []).startswith(f"HF921: {name}: spec takes the QueueSpec of a queue")
    for decisions in ("queues.jsonl", 3, [3]):
        assert refusal(check, SPEC, decisions).startswith(f"HF921: {name}: decisions takes decisions in a list")


def test_logs_of_prompts() -> None:
    assert refusal(check_prompts, None, [SPEC], []).startswith("HF921: check_prompts: links takes the QueueLinks of a")
    assert refusal(check_prompts, QueueLinks(), SPEC, []).startswith("HF921: check_prompts: specs takes the QueueSpec")
    assert refusal(check_prompts, QueueLinks(), [SPEC], ["x"]).startswith("HF921: check_prompts: decisions takes")


def test_a_log_that_can_be_read_once_is_checked_from_its_first_decision() -> None:
    with pytest.raises(BrokenQueueError, match="group 0 was dispatched twice"):
        check_decisions(SPEC, (decision for decision in DISPATCHES))
