"""Demands: the constraints that calls put on sizes. They are gathered once, and verified for any sizes.

``gather`` (``gather.py``) is a pure pass from a program to a tuple of demands. A demand knows its calls and its
reason. For given sizes it verifies itself (proved, refuted or unknown), and its constraint bounds the sizes of a dim,
among which repairs are suggested (``constraints.py``, ``repair/sizes.py``). Rules only report the demands that are not
proved.

A worked example with two ranks and four rows::

    class Critic(hf.Worker):
        @register(Dispatch.DP_PROTO)
        @hf.requires("B % micro_batch == 0")
        def update(self, rows: Rows) -> None: ...

    @hf.dataflow
    def program(rows: Rows, critic: Critic) -> None:        # B rows
        for part in hf.minibatches(rows, 2):
            critic.update(part)                             # runs twice, with B/2 rows

    deployment = hf.Deployment(critic=hf.place(Critic, micro_batch=1, pool=hf.ResourcePool([2])))

The loop unrolls into two calls of one kind (``Program.kinds``): the same method on as many rows. The demands of a
kind are derived from its first call and hold for all of them::

    demand                why                             calls               B = 4     B = 6     B not given
    2 divides B           2 mini-batches                  minibatches         4 % 2     6 % 2     unknown
    2 divides B/2         an even split over 2 chunks     update, update      2 % 2     3 % 2     unknown
    1 divides B/2         the requirement                 update, update      2 % 1     3 % 1     unknown

With B = 4 everything is proved: each rank gets one row of each mini-batch. With B = 6 the second is refuted, since
3 % 2 = 1. Both calls are on one line, so that there is one finding (HF310). As constraints on B the demands leave the
multiples of 4, and the nearest to 6 are 4 and 8: "set B to 4 or 8". Without a size the check says that it cannot decide
(HF319), and the size checks of the plan verify the same demands, among other rules that depend on sizes, when a batch
brings the size (``hfdsl.plan.size_checks``).

Why this is right. A kind is defined by everything that its demands are derived from, so one call speaks for the
others. No demand is derived from a size, so the demands of a program stay the same for all sizes that a search tries.
One form has to wait for sizes: the divisor of a requirement may itself be a dim, as in ``B % R == 0``. Such a
``Requirement`` is ``resolved`` into a ``Divisible`` for each size of R.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import lcm
from typing import Any, ClassVar, TypeAlias, TypeVar

from hfdsl.check.findings import Label
from hfdsl.check.program import pads
from hfdsl.check.sizes.arithmetic import CallScope, divisibility
from hfdsl.check.sizes.constraints import Constraint
from hfdsl.check.sizes.requirements import Scope, holds, names, verdict
from hfdsl.errors import DefinitionError
from hfdsl.graph.program import Node
from hfdsl.graph.signatures import Signature
from hfdsl.types.dims import Answer, Atom, KeptGroups, Size, at_most, constant

KnownSizes: TypeAlias = Mapping[Any, Size]
"""Dims that have a size, each with its number as a ``Size``."""

DemandKey: TypeAlias = tuple[int, str]
"""The key of a demand, stable under other sizes and another deployment of the program."""


@dataclass(frozen=True, slots=True)
class Demand(ABC):
    """A demand of the calls of one kind on a size: ``nodes`` are these calls, ``why`` names the reason in a label."""

    nodes: tuple[Node, ...]
    why: str

    arithmetic: ClassVar[bool] = True  # whether other sizes may repair it, and must not break it
    cost: ClassVar[int] = 1  # how long it takes to verify, where a division takes 1

    @property
    def node(self) -> Node:
        """The first of the calls."""
        return self.nodes[0]

    @property
    def key(self) -> DemandKey:
        """The first call and the reason."""
        return self.node.id, self.why

    @property
    @abstractmethod
    def reads(self) -> tuple[Size, ...]:
        """The sizes that decide whether it holds."""

    @property
    def dims(self) -> set[Atom]:
        """The dims in these sizes, with those that bound what a filter keeps."""
        return dims_of_sizes(self.reads)

    @abstractmethod
    def verify(self, sizes: KnownSizes) -> Answer:
        """Whether it holds with these sizes."""

    def resolved(self, sizes: KnownSizes) -> Demand:
        """The demand in its simplest form with these sizes."""
        return self


@dataclass(frozen=True, slots=True)
class Divisible(Demand):
    """``divisor`` must divide ``size``. For HF303 the size must be whole and at least 1, or 0 after a filter.

    ``message`` is the message of its finding, with ``{rows}`` for the size; ``labels`` are the places that impose it.
    """

    size: Size
    divisor: int
    code: str
    message: str
    labels: tuple[Label, ...] = ()
    of_rows: bool = True  # else of a dim that a call binds, whose size a launch need not know

    @property
    def constraint(self) -> Constraint:
        """The arithmetic alone."""
        return Constraint(self.size, self.divisor)

    @property
    def need(self) -> str:
        """The demand in words."""
        parts = lcm(*(factor.denominator for _, factor in self.size.terms))  # B/3 is whole where 3 divides B
        if self.divisor * parts == 1:
            return f"{self.size} must be whole and at least 1"
        return f"{self.divisor * parts} must divide {self.size * constant(parts)}"

    @property
    def reads(self) -> tuple[Size, ...]:
        """The size."""
        return (self.size,)

    def verify(self, sizes: KnownSizes) -> Answer:
        """Whether the divisor divides the size."""
        size = self.size.substitute(sizes)
        least = 0 if filtered(self.size) else 1  # a filter may keep no rows
        if self.code == "HF303" and size.value is not None and size.value < least:
            return Answer.REFUTED
        return size.divisible_by(self.divisor)


@dataclass(frozen=True, slots=True)
class Bound(Demand):
    """A size is bounded from one side: by a requirement, or because there is at least 1 of it.

    It guides the search for sizes; the rule behind it reports it.
    """

    constraint: Constraint
    text: str
    where: str = ""

    arithmetic: ClassVar[bool] = False

    @property
    def need(self) -> str:
        """The demand in words."""
        return f"{self.text} with {self.where}" if self.where else self.text

    @property
    def reads(self) -> tuple[Size, ...]:
        """The size."""
        return (self.constraint.size,)

    def verify(self, sizes: KnownSizes) -> Answer:
        """Whether the size is within the bound."""
        value = self.constraint.size.substitute(sizes).value
        if value is None:
            return Answer.UNKNOWN
        return Answer.PROVED if self.constraint.holds(value) else Answer.REFUTED


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Evaluate a requirement with the sizes of its names, and show the numbers."""

    answer: Answer
    shown: str = ""
    error: DefinitionError | None = None  # it has no meaning


@dataclass(frozen=True, slots=True)
class Requirement(Demand):
    """``hf.requires`` of a method or function, evaluated with numbers: it is not solved with the other demands.

    ``scope`` has the meaning of its names at these calls; ``labels`` are the places that impose it.
    """

    signature: Signature
    scope: CallScope
    labels: tuple[Label, ...]

    cost: ClassVar[int] = 8

    @property
    def text(self) -> str:
        """The requirement as declared."""
        return self.why

    @property
    def reads(self) -> tuple[Size, ...]:
        """The sizes that it names."""
        return tuple(self.scope.sizes[name] for name in names(self.text) if name in self.scope.sizes)

    def resolved(self, sizes: KnownSizes) -> Demand:
        """``B % R == 0`` is arithmetic once R has a size."""
        return divisible_by_requirement(self, sizes) or self

    def verify(self, sizes: KnownSizes) -> Answer:
        """Whether it holds."""
        scope = self._whole_scope(sizes)
        try:
            return Answer.UNKNOWN if scope is None else verdict(self.text, scope)
        except DefinitionError:
            return Answer.UNKNOWN

    def evaluated(self, sizes: KnownSizes) -> Evaluation | None:
        """Its value; None if a size in it is not whole, which another demand reports."""
        scope = self._whole_scope(sizes)
        try:
            return None if scope is None else Evaluation(*holds(self.text, scope))
        except DefinitionError as error:
            return Evaluation(Answer.UNKNOWN, error=error)

    def _whole_scope(self, sizes: KnownSizes) -> Scope | None:
        """The values of its names with these sizes; None if a size is not whole."""
        scope = _with_sizes(self.scope, self.text, sizes).numbers
        values = (scope.sizes[name].value for name in names(self.text) if name in scope.sizes)
        return scope if all(value is None or value.denominator == 1 for value in values) else None


@dataclass(frozen=True, slots=True)
class EqualRows(Demand):
    """Two arguments whose rows are bound to one dim have equally many; ``port`` is the second's."""

    port: str
    sizes: tuple[Size, Size]

    @property
    def reads(self) -> tuple[Size, ...]:
        """Both."""
        return self.sizes

    def verify(self, sizes: KnownSizes) -> Answer:
        """Whether both are the same number."""
        return rows_are_equal(*self.sizes, sizes)


@dataclass(frozen=True, slots=True)
class EnoughRows(Demand):
    """``take`` finds the ``count`` rows that it takes, even if a filter keeps all of its rows."""

    size: Size
    count: int

    @property
    def reads(self) -> tuple[Size, ...]:
        """The available rows."""
        return (self.size,)

    def verify(self, sizes: KnownSizes) -> Answer:
        """Whether enough rows can exist."""
        most = at_most(self.size).substitute(sizes).value
        if most is None:
            return Answer.UNKNOWN
        return Answer.REFUTED if most < self.count else Answer.PROVED


@dataclass(frozen=True, slots=True)
class AlignedRows(Demand):
    """Arguments of one call are split at the same rows: a row of one goes with the same rows of the others.

    ``port`` has ``size`` rows; ``first_port``, the first of the call, has ``first_size``.
    """

    port: str
    size: Size
    first_port: str
    first_size: Size
    chunks: int

    arithmetic: ClassVar[bool] = False  # other sizes than those that a finding names would have to repair it

    @property
    def paired(self) -> bool:
        """Whether a fixed number of rows of one goes with each row of the other."""
        return proportional(self.size, self.first_size)

    @property
    def reads(self) -> tuple[Size, ...]:
        """Both numbers of rows."""
        return self.size, self.first_size

    def verify(self, sizes: KnownSizes) -> Answer:
        """Whether both have the same number of rows, or rows that belong together; padding keeps no such pairs."""
        answer = rows_are_equal(self.size, self.first_size, sizes)
        if answer is Answer.PROVED or not self.paired:
            return answer
        return Answer.REFUTED if pads(self.node) else Answer.PROVED


def _with_sizes(scope: CallScope, text: str, known_sizes: KnownSizes) -> CallScope:
    """The expressions of names, with the known sizes of those in ``text``."""
    used = {name: scope.sizes[name].substitute(known_sizes) for name in names(text) if name in scope.sizes}
    sizes = {**scope.sizes, **used}
    return replace(scope, numbers=replace(scope.numbers, sizes=sizes))


def divisible_by_requirement(requirement: Requirement, sizes: KnownSizes) -> Divisible | None:
    """A requirement of the form ``size % number == 0``, which is a demand like any split; None for any other."""
    text = requirement.text
    solved = divisibility(text, _with_sizes(requirement.scope, text, sizes))
    if solved is None:
        return None
    size, divisor = solved
    return Divisible(
        requirement.nodes,
        f"the requirement {text}",
        size=size,
        divisor=divisor,
        code="HF322",
        message=f"'{requirement.node.label}' requires {text}, but {{rows}}",
        labels=requirement.labels,
    )


# -- relations of sizes


def proportional(size: Size, base: Size) -> bool:
    """Whether each row of one value has the same number of rows of the other, for all sizes.

    >>> from hfdsl.types.dims import Dim, atom_size
    >>> class B(Dim): ...
    >>> proportional(atom_size(B) * constant(2), atom_size(B)), proportional(constant(2), atom_size(B))
    (True, False)
    """
    ratio = size.terms[0][1] / base.terms[0][1] if size.terms and base.terms else 0
    return size == base * constant(ratio)


def filtered(size: Size) -> bool:
    """Whether only a run determines this size."""
    return any(isinstance(atom, KeptGroups) for atom in size.atoms)


def dims_of_sizes(sizes: Iterable[Size]) -> set[Atom]:
    """The dims in sizes, with those that bound what a filter keeps."""
    return {atom for size in sizes for atom in (*size.atoms, *at_most(size).atoms)}


def rows_are_equal(a: Size, b: Size, sizes: KnownSizes) -> Answer:
    """Whether two numbers of rows are the same; what a filter keeps equals no other number for certain."""
    a, b = a.substitute(sizes), b.substitute(sizes)
    answer = a.equals(b)
    return Answer.REFUTED if answer is Answer.UNKNOWN and (filtered(a) or filtered(b)) else answer


# -- all demands of a program


DemandT = TypeVar("DemandT", bound=Demand)


def at_calls(demands: Iterable[DemandT]) -> Iterator[tuple[Node, DemandT]]:
    """Each demand at each of its calls, in the order of the program."""
    pairs = [(node.id, place, node, demand) for place, demand in enumerate(demands) for node in demand.nodes]
    return ((node, demand) for *_, node, demand in sorted(pairs, key=lambda pair: pair[:2]))


def solvable(demands: Iterable[Demand]) -> Iterator[Divisible | Bound]:
    """The demands that are solved together: what must divide, and then what bounds a size."""
    demands = list(demands)
    divisible = [demand for demand in demands if isinstance(demand, Divisible)]
    yield from divisible
    yield from positive(divisible)
    yield from (demand for demand in demands if isinstance(demand, Bound))


def positive(demands: Iterable[Divisible]) -> Iterator[Bound]:
    """Demand that R - 4 rows are at least 1; a sum without negative terms needs no such demand."""
    for demand in demands:
        if demand.code == "HF303" and any(factor < 0 for _, factor in demand.size.terms):
            yield Bound(demand.nodes, demand.why, Constraint(demand.size, strict=True), f"{demand.size} >= 1")
