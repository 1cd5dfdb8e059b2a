"""The context of a rule: the program under check, with the sizes, the cluster and the budget of the check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias

from hfdsl.check.findings import Edit, Finding, Fix
from hfdsl.check.program import Program
from hfdsl.check.sizes.bindings import Component, components
from hfdsl.check.sizes.demands import Demand, KnownSizes
from hfdsl.check.sizes.gather import gather, read_together, scope_of_call
from hfdsl.check.sizes.requirements import Scope
from hfdsl.check.timing import StepTime
from hfdsl.deploy.cluster import Cluster
from hfdsl.graph.program import Node
from hfdsl.graph.signatures import Signature
from hfdsl.graph.spans import NOWHERE, Span
from hfdsl.types.dims import Answer, Atom, Dim, Size, constant

MAX_COST = 2048
"""The budget for all combinations of sizes together, so that a check of many sizes takes no more time."""

MIN_COMBINATIONS = 8
"""The combinations that are checked at least, in a program of any size."""

EVERYTHING = "<dims>"
"""The key of the value given for ``dims`` where that is not a mapping."""


@dataclass
class Budget:
    """The remaining budget for suggestions. It counts work, never time, so a report is the same on all machines."""

    evaluations: int = 80_000  # of a constraint, for one candidate size
    verifications: int = 6_000  # of a demand, with candidate sizes that meet all constraints
    visits: int = 6_000  # of demands and nodes, where a change is tried by checking everything again
    moves: int = 20_000  # of demands and nodes, where roles are placed otherwise to see whether that works
    exhausted: bool = False

    def spend(self, kind: Literal["evaluations", "verifications", "visits", "moves"], count: int) -> bool:
        """Spend from the budget; return whether it was enough."""
        remaining: int = getattr(self, kind) - count
        setattr(self, kind, remaining)
        self.exhausted |= remaining < 0
        return remaining >= 0


class NumberEdits(Protocol):
    """The edits by which the user's text has another number, where that text is no Python."""

    def size(self, dim: type[Dim], number: int) -> Edit | None:
        """Another size of a dim."""
        ...

    def axis(self, role: str, axis: str, number: int) -> Edit | None:
        """Another size of an axis of a role's mesh, also where other roles share it."""
        ...


class Timing(Protocol):
    """The seconds that calls take, which a later room simulates."""

    def step_time(self, context: Context) -> StepTime:
        """The time of a step of a placed program with queues that has no errors."""
        ...


@dataclass(frozen=True)
class Context:
    """A program with its demands, and the question asked of it: sizes, cluster, and whether to try repairs.

    ``sizes`` has one size for each dim that was given any; ``alternatives`` has all sizes of those with several.
    """

    program: Program
    demands: tuple[Demand, ...]
    sizes: Mapping[type[Dim], int]
    alternatives: Mapping[type[Dim], tuple[int, ...]] = field(default_factory=dict)
    invalid: Mapping[Any, Any] = field(default_factory=dict)  # values given as sizes that are not sizes
    call_site: Span = NOWHERE  # where the user's code gives the sizes
    numbers: NumberEdits | None = None  # None: sizes and meshes are those of Python code
    cluster: Cluster | None = None
    loader: Callable[[], Any] | None = None  # of an experiment: what gives its batches
    is_shuffled: bool = False  # whether the rows of an input are of different questions in random order
    offload: bool = True  # whether idle roles may be moved to host memory
    timing: Timing | None = None  # the seconds that calls take, if they are known
    trials: Callable[[Finding], Tester | None] | None = field(default=None, compare=False)  # None: nothing is tried
    search: bool = True  # whether sizes are searched for; a trial only needs to know which findings there are
    budget: Budget = field(default_factory=Budget, compare=False)
    first: Context | None = field(default=None, compare=False)  # of several combinations of sizes, the first one

    @classmethod
    def of(cls, program: Program, sizes: Mapping[type[Dim], int]) -> Context:
        """A program with sizes; its demands are gathered."""
        return cls(program, gather(program, sizes), sizes)

    def with_program(self, program: Program) -> Context:
        """This question about another program."""
        return replace(self, program=program, demands=gather(program, self.sizes), first=None)

    def with_sizes(self, sizes: Mapping[type[Dim], int]) -> Context:
        """This program with other sizes for some of the dims that have one."""
        return replace(self, sizes={**self.sizes, **sizes}, first=None)

    @cached_property
    def known_sizes(self) -> KnownSizes:
        """The sizes as constants, to be put into others."""
        return {dim: constant(number) for dim, number in self.sizes.items()}

    def known(self, size: Size) -> Size:
        """``size`` with the known dims put in."""
        return size.substitute(self.known_sizes)

    def scope_at(self, node: Node, signature: Signature) -> Scope:
        """The names of a requirement at a call, with these sizes."""
        scope = scope_of_call(self.program, node, signature, self.sizes)
        return replace(scope, sizes={name: self.known(size) for name, size in scope.sizes.items()})

    @cached_property
    def step_time(self) -> StepTime | None:
        """The time of a step; None without queues or ``timing``, or with several sizes."""
        if self.timing is None or self.alternatives or not self.program.split.queues:
            return None
        return self.timing.step_time(self)

    @cached_property
    def plain(self) -> Context:
        """This question without repairs: no search, and no trials."""
        return replace(self, trials=None, search=False) if self.search else self

    @cached_property
    def verdicts(self) -> tuple[tuple[Demand, Answer], ...]:
        """Every demand, in its simplest form with these sizes, and whether it holds; the same without repairs."""
        if self.search:
            return self.plain.verdicts
        if self.first is None:
            return tuple(map(self._verdict, self.demands))
        # What reads none of the sizes that differ is as it is with the first combination.
        changed = {dim for dim in self.alternatives if self.sizes[dim] != self.first.sizes[dim]}
        return tuple(
            verdict if dims.isdisjoint(changed) else self._verdict(demand)
            for demand, dims, verdict in zip(self.demands, self.first.dims_read, self.first.verdicts, strict=True)
        )

    def _verdict(self, demand: Demand) -> tuple[Demand, Answer]:
        resolved = demand.resolved(self.known_sizes)
        return resolved, resolved.verify(self.known_sizes)

    @cached_property
    def dims_read(self) -> tuple[set[Atom], ...]:
        """The dims that each demand reads."""
        return tuple(demand.dims for demand in self.demands)

    @property
    def refuted(self) -> list[Demand]:
        """The violated demands that other sizes may repair."""
        return [demand for demand, answer in self.verdicts if answer is Answer.REFUTED and demand.arithmetic]

    def tester(self, finding: Finding) -> Tester | None:
        """The tester of changes that may remove a finding; None if none are to be tried."""
        return self.trials(finding) if self.trials is not None else None

    def dim_in_words(self, dim: type[Dim]) -> str:
        """A dim, with its size if it has several."""
        return f"{dim} = {self.sizes[dim]}" if dim in self.alternatives else str(dim)

    @cached_property
    def components(self) -> tuple[Component, ...]:
        """The dims with several sizes, in groups that are read together (``check/bindings.py``)."""
        if not self.alternatives:
            return ()
        limit = max(MAX_COST // self.cost, MIN_COMBINATIONS)
        return components(self.alternatives, read_together(self.program, self.demands, self.sizes), limit)

    @property
    def cost(self) -> int:
        """The cost of all rules for one combination of sizes, in divisions."""
        return sum(demand.cost for demand in self.demands) + len(self.program.graph.nodes)

    @cached_property
    def combinations(self) -> tuple[Context, ...]:
        """The program with the first size of each dim, and with all combinations that may differ from that."""
        first = {dim: sizes[0] for dim, sizes in self.alternatives.items()}
        bindings = [{**first, **binding} for part in self.components for binding in part.bindings] or [first]
        unique = {tuple(binding.values()): binding for binding in bindings}
        start, *others = (self.with_sizes(binding) for binding in unique.values())
        return start, *(replace(combination, first=start.plain) for combination in others)

    def with_this(self, dim: type[Dim]) -> list[Context]:
        """The combinations that have the size of ``dim`` which this one has; this one first."""
        others = (
            combination
            for combination in self.combinations
            if combination.sizes[dim] == self.sizes[dim] and combination.sizes != self.sizes
        )
        return [self, *others]


# -- repairs, as rules see them


Transform: TypeAlias = Callable[[Context], Context | None]
"""From a program to a changed one; None if it cannot be changed so."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a program that may remove a finding: its words, the changed program, and the edits that make it.

    The changed program is compared with the program itself, or with what ``baseline`` makes of it.
    """

    words: str
    transform: Transform
    fix: Fix | None = None
    baseline: Transform | None = None


Tester: TypeAlias = Callable[[Change], bool]
"""Whether a change removes a finding and adds none: it is made and everything is checked again (``repair.trials``)."""
