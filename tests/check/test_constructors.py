"""Constructors: arguments against annotations, where they can be decided; loaders of experiments likewise."""

from __future__ import annotations

import functools
import runpy
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NewType, Protocol, TypedDict, TypeVar

import pytest

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.check.repair.edits import apply

if TYPE_CHECKING:
    pass

T = TypeVar("T")
Name = NewType("Name", str)


class B(hf.Dim): ...


class Rows(hf.Batch):
    values: hf.f32[B]


class More(Rows):
    others: hf.f32[B]


class Scores(hf.Batch):
    reward: hf.f32[B]


class Sized(Protocol):
    def size(self) -> int: ...


class Table(TypedDict):
    a: int


@dataclass(frozen=True)
class Config:
    width: int = 1


@dataclass
class Linked:
    """A config that may hold itself, with a field that is set later."""

    width: int = 2
    share: Annotated[float, hf.Within(at_most=1)] = 1.0
    other: Linked | None = None
    later: str = field(init=False)


@dataclass(frozen=True)
class Optimizer:
    rate: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.95)
    schedule: str = None  # type: ignore[assignment]  # a sloppy default is not a mistake of its user


@dataclass
class Training:
    optimizer: Optimizer
    config: Config | None = None
    further: InitVar[int] = 3
    limit: ClassVar[int] = 4


class Role(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, rows: Rows) -> Scores: ...  # type: ignore[empty-body]


@hf.dataflow
def program(rows: Rows, role: Role) -> Scores:
    return role.score(rows)


def codes(annotation: Any, *args: Any, **kwargs: Any) -> tuple[str, ...]:
    def built(self: Any, value: Any = None, *more: Any, **named: Any) -> None: ...

    built.__annotations__ = {"value": annotation, "more": annotation, "named": annotation, "return": None}
    placed = type("Placed", (Role,), {"__init__": built, "__module__": __name__})
    deployment = hf.Deployment(role=hf.place(placed, *args, pool=hf.ResourcePool([2]), **kwargs))
    return program.check(deployment, {B: 8}).codes


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (float, 1), (int, True), ("int", 3), ("int | None", None), (int, None), (Any, object()), (Sized, 3), (T, 3),
        ("Decimal", 3), ("no such name", 3), (Table, {"a": 1}), (list[Any], [1, "a"]), (Sequence[float], (1, 2.5)),
        (Mapping[str, int], {"a": 1}), (Literal["a", "b"], "b"), (type[Config], Config), (Callable[[int], int], len),
        (Name, "x"), (Config, Config()), ("Config", Config(2)), (str | Path, Path()), (tuple[int, ...], ()),
        (InitVar[int], 3), (object, Config), (Iterable[int], range(3)), (None, None),
        (dict[str, list[int]], {"a": [1]}),
    ],
)  # fmt: skip  # a table
def test_arguments_that_fit_or_are_undecided_are_silent(annotation: Any, value: Any) -> None:
    assert codes(annotation, value) == ()
    assert codes(annotation, value, value, another=value) == () or value is None


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "3"), ("int", "3"), (float, "1e-6"), (Config, {"width": 2}), ("Config | None", {"width": 2}), (int, 1.5),
        (Config, Config), (list[int], [1, "2"]), (dict[str, int], {"a": "b"}), (Literal["a"], "c"),
        (type[Config], Role),
        (Callable[[], int], 3), (tuple[int, int], (1, 2, 3)), (str, Path()), (Name, 3), (str, 3), (bool, "yes"),
    ],
)  # fmt: skip  # as above
def test_a_value_of_another_type_is_reported_once(annotation: Any, value: Any) -> None:
    assert codes(annotation, value) == ("HF540",)
    assert codes(annotation, value=value) == ("HF540",)
    assert codes(annotation, None, named=value) == ("HF540",)


def test_a_dict_in_the_place_of_a_dataclass_is_shown_as_it_is_written() -> None:
    def advice(value: Any) -> tuple[str, ...]:
        class Placed(Role):
            def __init__(self, config: Config) -> None: ...

        deployment = hf.Deployment(role=hf.place(Placed, value, pool=hf.ResourcePool([2])))
        [finding] = program.check(deployment, {B: 8})
        return finding.help + finding.notes

    assert advice({"width": 2}) == ("write Config(width=2)",)
    assert advice({"widht": 2}) == ("Config has no field 'widht'; did you mean 'width'?",)
    assert advice({"width": "wide"}) == ("build it: Config(...)",)
    assert advice(Config) == ("write Config()",)


@dataclass(frozen=True)
class Built:
    """What follows the class in a call of ``hf.place``, and what a fix makes of it; None where there is no fix."""

    written: str
    fixed: str | None


@pytest.mark.parametrize(
    "built",
    [
        Built("{'width': 2}, 3", "Config(width=2), 3"),
        Built("{'width': WIDTH + 1}, 3", "Config(width=WIDTH + 1), 3"),
        Built("dict(width=2), layers=3", "Config(width=2), layers=3"),
        Built("config=dict(), layers=3", "config=Config(), layers=3"),
        Built("Config, 3", "Config(), 3"),
        Built("Config(), '3'", "Config(), 3"),
        Built("Config(), layers=' 3'", "Config(), layers=3"),
        Built("Config(width='2'), 3", "Config(width=2), 3"),
        Built("TABLE, 3", None),
        Built("{**TABLE}, 3", None),
        Built("Config(), NUMBER", None),
        Built("{'wide': 2}, 3", None),
        Built("Config(), 'three'", None),
    ],
    ids=lambda built: built.written,
)
def test_an_argument_is_written_as_it_is_declared(built: Built, tmp_path: Path) -> None:
    program_text = PROGRAM.replace("ARGUMENTS", built.written)
    file = tmp_path / "built.py"
    file.write_text(program_text, "utf-8")
    [finding] = check_of(file)
    assert finding.code == "HF540"
    fixes = [apply(program_text, fix.edits) for fix in finding.fixes]
    assert fixes == ([] if built.fixed is None else [PROGRAM.replace("ARGUMENTS", built.fixed)])
    for text in fixes:
        file = tmp_path / "mended.py"
        file.write_text(text, "utf-8")
        assert check_of(file) == []


PROGRAM = """
from dataclasses import dataclass
import hfdsl as hf
from tests.check.test_constructors import B, Config, Role, Rows, Scores

TABLE, NUMBER, WIDTH = {"width": 2}, "3", 1


class Built(Role):
    def __init__(self, config: Config, layers: int) -> None: ...


@hf.dataflow
def program(rows: Rows, role: Built) -> Scores:
    return role.score(rows)


deployment = hf.Deployment(role=hf.place(Built, ARGUMENTS, pool=hf.ResourcePool([2])))
"""


def check_of(file: Path) -> list[hf.Finding]:
    """The findings but for that of the module, which no worker can import."""
    module = runpy.run_path(str(file))
    report: hf.Report = module["program"].check(module["deployment"], {module["B"]: 8})
    return [finding for finding in report if finding.code != "HF801"]


@pytest.mark.parametrize(
    "value",
    [
        Training(Optimizer()), Training(Optimizer(1, (1, 0.5), "cosine"), Config(2)), Training(Optimizer(), None, 5),
        [Optimizer(rate=0.1)],
    ],
)  # fmt: skip  # as above
def test_configs_with_fields_of_their_types_are_silent(value: Any) -> None:
    assert codes(list[Optimizer] if isinstance(value, list) else Training, value) == ()
    assert program_with(value) == ()


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Training({"rate": 1e-5}), "optimizer"),  # type: ignore[arg-type]  # on purpose, as all of these
        (Training(Optimizer(rate="1e-5")), "optimizer.rate"),  # type: ignore[arg-type]
        (Training(Optimizer(), Config(width=1.5)), "config.width"),  # type: ignore[arg-type]
        (Training(Optimizer(betas=(0.9, 0.95, 0.99))), "optimizer.betas"),  # type: ignore[arg-type]
    ],
)
def test_a_field_of_another_type_is_reported_by_its_path(value: Any, path: str) -> None:
    class Placed(Role):
        def __init__(self, training: Training) -> None: ...

    deployment = hf.Deployment(role=hf.place(Placed, value, pool=hf.ResourcePool([2])))
    [finding] = program.check(deployment, {B: 8})
    assert finding.code == "HF540"
    assert f"argument 'training.{path}' of Placed is annotated" in finding.message
    assert program_with(value) == ("HF206",)


class Chained(Role):
    def __init__(self, linked: Linked) -> None: ...

    @register(Dispatch.DP_PROTO)
    @hf.requires("B % width == 0")
    def score(self, rows: Rows) -> Scores: ...  # type: ignore[empty-body]


@hf.dataflow
def chained(rows: Rows, role: Chained) -> Scores:
    return role.score(rows)


def test_a_config_may_hold_itself_and_have_fields_that_are_set_later() -> None:
    def of_config(**fields: Any) -> tuple[str, ...]:
        linked = Linked(**fields)
        linked.other = linked
        deployment = hf.Deployment(role=hf.place(Chained, linked, pool=hf.ResourcePool([2])))
        return chained.check(deployment, {B: 8}).codes

    assert of_config() == ()
    assert of_config(width=3) == ("HF322",)
    assert of_config(width="2") == ("HF540",)
    assert of_config(share=2.0) == ("HF940",)


def test_numbers_of_numpy_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    deployment = hf.Deployment(role=hf.place(Chained, Linked(width=numpy.int64(3)), pool=hf.ResourcePool([2])))
    assert chained.check(deployment, {B: 8}).codes == ("HF322",)
    assert chained.check(deployment, {B: 12}).codes == ()


def program_with(value: Any) -> tuple[str, ...]:
    """The codes of a dataflow that passes a value to a function."""

    @hf.function
    def taking(rows: Rows, config: Training | list[Optimizer]) -> Scores: ...  # type: ignore[empty-body]

    @hf.dataflow
    def passing(rows: Rows) -> Scores:
        return taking(rows, value)

    return passing.check().codes


def loaded(loader: Any) -> tuple[str, ...]:
    deployment = hf.Deployment(role=hf.place(Role, pool=hf.ResourcePool([2])))
    experiment = hf.Experiment(program, deployment, {B: 8}, loader)
    codes = experiment.check().codes
    if codes:
        with pytest.raises(hf.CheckError, match="HF542"):
            experiment.compile()
    else:
        experiment.compile()
    return codes


def gives(kind: Any) -> Any:
    def loader(start: int = 0) -> Any: ...

    loader.__annotations__["return"] = kind
    return loader


class Loader:
    def __call__(self) -> Iterator[Rows]: ...  # type: ignore[empty-body]


async def later() -> AsyncIterator[Rows]:
    yield Rows(values=[])  # type: ignore[arg-type]  # never asked for


class Batches:
    def __iter__(self) -> Iterator[Scores]: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    "loader",
    [
        *map(gives, [Iterator[Rows], list[More], Iterable[tuple[Rows]], list[Any], Iterator[hf.Batch], Any]),
        *map(gives, [dict[str, Rows], tuple[Rows, More], tuple[Rows, ...], list[Rows | Scores], "Unknown", int]),
        list,
        lambda *_: [],
        Loader(),
        functools.partial(lambda start: [start], 3),
        print,
    ],
)  # fmt: skip  # a table
def test_a_loader_that_fits_or_says_nothing_is_silent(loader: Any) -> None:
    assert loaded(loader) == ()


@pytest.mark.parametrize(
    "loader",
    [
        *map(gives, [Iterator[Scores], list[tuple[Rows, Scores]], Rows, tuple[Rows, Scores], list[tuple[Scores]]]),
        *map(gives, [Iterator[dict[str, Any]], list[list[Rows]], Iterator[tuple[dict[str, Rows]]], Iterator[str]]),
        lambda start: [start],
        later,
        Batches,
    ],
)
def test_a_loader_of_other_records_is_reported(loader: Any) -> None:
    assert loaded(loader) == ("HF542",)
