"""The context of a rule: the program under check, and what is asked of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, TypeAlias

from hfdsl.check.demands import Demand, KnownSizes
from hfdsl.check.findings import Finding, Fix
from hfdsl.check.gather import gather, scope_of_call
from hfdsl.check.program import Program
from hfdsl.check.requirements import Scope
from hfdsl.deploy.cluster import Cluster
from hfdsl.graph.program import Node
from hfdsl.graph.signatures import Signature
from hfdsl.graph.spans import NOWHERE, Span
from hfdsl.types.dims import Answer, Dim, Size, constant

EVERYTHING = "<dims>"
"""The key of the value given for ``dims`` where that is not a mapping."""


@dataclass(frozen=True)
class Context:
    """A program with its demands, and the question: the sizes of which dims, which cluster, and whether to try repairs.

    ``sizes`` has one size for each dim that was given any; ``alternatives`` has all sizes of those with several.
    """

    program: Program
    demands: tuple[Demand, ...]
    sizes: Mapping[type[Dim], int]
    alternatives: Mapping[type[Dim], tuple[int, ...]] = field(default_factory=dict)
    invalid: Mapping[Any, Any] = field(default_factory=dict)  # values given as sizes that are not sizes
    call_site: Span = NOWHERE  # where the user's code gives the sizes
    cluster: Cluster | None = None
    offload: bool = True  # whether idle roles may be moved to host memory
    trials: Callable[[Finding], Tester | None] | None = field(default=None, compare=False)  # None: nothing is tried

    @classmethod
    def of(cls, program: Program, sizes: Mapping[type[Dim], int]) -> Context:
        """A program with sizes; its demands are gathered."""
        return cls(program, gather(program, sizes), sizes)

    def with_program(self, program: Program) -> Context:
        """The same question about another program."""
        return replace(self, program=program, demands=gather(program, self.sizes))

    def with_sizes(self, sizes: Mapping[type[Dim], int]) -> Context:
        """The same program with other sizes for some of the dims that have one."""
        return replace(self, sizes={**self.sizes, **sizes})

    @cached_property
    def known_sizes(self) -> KnownSizes:
        """The sizes as constants, to be put into others."""
        return {dim: constant(number) for dim, number in self.sizes.items()}

    def known(self, size: Size) -> Size:
        """``size`` with the known dims put in."""
        return size.substitute(self.known_sizes)

    def scope_at(self, node: Node, signature: Signature) -> Scope:
        """What the names in a requirement mean at a call, with these sizes."""
        scope = scope_of_call(self.program, node, signature, self.sizes)
        return replace(scope, sizes={name: self.known(size) for name, size in scope.sizes.items()})

    @cached_property
    def verdicts(self) -> tuple[tuple[Demand, Answer], ...]:
        """Every demand, in its simplest form with these sizes, and whether it holds."""
        resolved = (demand.resolved(self.known_sizes) for demand in self.demands)
        return tuple((demand, demand.verify(self.known_sizes)) for demand in resolved)

    @property
    def refuted(self) -> list[Demand]:
        """What the sizes break that other sizes may repair."""
        return [demand for demand, answer in self.verdicts if answer is Answer.REFUTED and demand.arithmetic]

    def tester(self, finding: Finding) -> Tester | None:
        """What tries changes that may remove a finding; None where none are to be tried."""
        return self.trials(finding) if self.trials is not None else None

    def named(self, dim: type[Dim]) -> str:
        """A dim, with its size where it has several."""
        return f"{dim} = {self.sizes[dim]}" if dim in self.alternatives else str(dim)

    def each_size(self) -> Iterator[Context]:
        """The program with each combination of its sizes."""
        for sizes in product(*self.alternatives.values()):
            yield self.with_sizes(dict(zip(self.alternatives, sizes, strict=True)))

    def with_this(self, dim: type[Dim]) -> list[Context]:
        """The combinations that have the size of ``dim`` which this one has; this one first."""
        others = (
            other for other in self.each_size() if other.sizes[dim] == self.sizes[dim] and other.sizes != self.sizes
        )
        return [self, *others]


# -- repairs, as rules see them


Transform: TypeAlias = Callable[[Context], Context | None]
"""From a program to a changed one; None where it cannot be changed so."""


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
