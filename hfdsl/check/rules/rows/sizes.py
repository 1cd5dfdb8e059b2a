"""Sizes: which sizes break a demand, which sizes would repair it, and which demands conflict?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from typing import TypeAlias

from hfdsl.check.context import EVERYTHING, Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import signature_of
from hfdsl.check.repair.search import conflict
from hfdsl.check.repair.sizes import constraints_on, in_words, resized, resized_together, suggested_sizes
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.rules.rows.dims import undetermined_row_dims
from hfdsl.check.sizes.demands import (
    AlignedRows,
    Bound,
    DemandKey,
    Divisible,
    Evaluation,
    Requirement,
    at_calls,
    filtered,
)
from hfdsl.check.sizes.requirements import names
from hfdsl.graph.program import FunctionCall, Node
from hfdsl.types.dims import Answer, Atom

Called = tuple[Node, Divisible]
"""A demand at one of its calls."""

Clash: TypeAlias = Callable[[Atom], tuple[Divisible | Bound, ...]]
"""The demands that no size of a dim meets together."""


def row_arithmetic(context: Context) -> Iterator[Finding]:
    """One finding for all splits that the same sizes break, with sizes that satisfy every demand of the program."""
    clash = cache(partial(_clash, context))
    for _, broken in _by_dims(_divisible(context, Answer.REFUTED)):
        yield _uneven(context, broken, clash)
    # HF301 reports these: the run would not know them either.
    open_row_dims = set(undetermined_row_dims(context) if context.program.deployment else ())
    unknown = _divisible(context, Answer.UNKNOWN)
    for atoms, undecided in _by_dims([(node, d) for node, d in unknown if d.of_rows and not filtered(d.size)]):
        if _invalid(context, [atom.__name__ for atom in atoms]) or not open_row_dims.isdisjoint(atoms):
            continue
        needs = ", ".join(dict.fromkeys(demand.need for _, demand in undecided))
        (first, demand), *others = undecided
        yield _impossible(context, atoms, clash) or Finding(
            "HF319",
            f"cannot decide before launch whether the rows work out: {needs}",
            Label(first.span, f"for {demand.why}"),
            tuple(Label(node.span, f"for {demand.why}") for node, demand in others),
            notes=(f"give the size: dims={{{', '.join(f'{atom.__name__}: ...' for atom in atoms)}}}",),
        )


def _divisible(context: Context, verdict: Answer) -> list[Called]:
    """The demands of that verdict, in the order of the program; a line that runs many times has each of them once."""
    demands = [d for d, answer in context.verdicts if answer is verdict and isinstance(d, Divisible)]
    calls: dict[object, Called] = {}
    for node, demand in at_calls(demands):
        calls.setdefault((demand.size, demand.divisor, demand.why, node.span), (node, demand))
    return list(calls.values())


def _by_dims(calls: list[Called]) -> Iterator[tuple[tuple[Atom, ...], list[Called]]]:
    groups: dict[tuple[Atom, ...], list[Called]] = {}
    for node, demand in calls:
        groups.setdefault(demand.size.atoms, []).append((node, demand))
    yield from groups.items()


def _uneven(context: Context, broken: list[Called], clash: Clash) -> Finding:
    (node, first), *others = broken
    rows = context.known(first.size).value
    sizes = ", ".join(f"{d} = {n}" for d, n in context.sizes.items() if d in first.size.atoms)
    row_count = f"{first.size} = {rows}" if first.size.atoms else f"{rows}"
    remainder = f"{rows} % {first.divisor} = {rows % first.divisor}" if rows is not None and first.divisor > 1 else ""
    message = first.message.replace("{rows}", remainder if first.code == "HF322" else row_count)
    related = [Label(node.span, f"for {demand.why}: {demand.need}") for node, demand in others]
    finding = Finding(
        first.code,
        f"{message}: {remainder}" if remainder and first.code != "HF322" else message,
        Label(node.span, first.need),
        (*first.labels, *related),
        notes=(f"with {sizes}",) if sizes and row_count != sizes else (),
    )
    from hfdsl.check.repair.fixes import repeated_input  # late: most programs need none
    from hfdsl.check.repair.ranks import other_ranks  # as above

    signature = signature_of(node)
    group = signature.group_size if signature is not None and first.code == "HF313" else 1
    repeats = repeated_input(context, first.size, group) if group > 1 else ()
    keys, ranks = {demand.key for _, demand in broken}, other_ranks(context, broken)
    return _resized(context, finding, first.size.atoms, keys, clash, repeats, ranks)


def _invalid(context: Context, names: Iterable[str]) -> bool:
    """Whether the size given for one of these dims is invalid: HF302 reports it, and nothing else need be."""
    invalid = {getattr(dim, "__name__", str(dim)) for dim in context.invalid}
    return EVERYTHING in invalid or not invalid.isdisjoint(names)


def requirements(context: Context) -> Iterator[Finding]:
    """``hf.requires`` of role methods and functions, with the rows of the call and the fields of the role's config."""
    unproved = [d for d, answer in context.verdicts if answer is not Answer.PROVED and isinstance(d, Requirement)]
    evaluations = {demand.key: demand.evaluated(context.known_sizes) for demand in unproved}
    clash = cache(partial(_clash, context))
    for node, demand in at_calls(unproved):
        evaluation = evaluations[demand.key]
        if evaluation is not None:  # else the rows that it names are not whole: that is reported where they are made
            yield from _evaluated(context, node, demand, evaluation, clash)


def _evaluated(
    context: Context, node: Node, demand: Requirement, evaluation: Evaluation, clash: Clash
) -> Iterator[Finding]:
    text = demand.text
    placement, where, declared = (
        context.program.placement(node),
        f"'{node.label}' requires {text}",
        demand.signature.span,
    )
    if evaluation.error is not None:
        error = evaluation.error
        placed = (Label(placement.span, "placed here"),) if placement and error.code == "HF323" else ()
        finding = Finding(error.code, f"{where}: {error.message}", Label(declared), placed)
        yield _renamed(context, finding, demand)
    elif evaluation.answer is Answer.REFUTED:
        sizes = demand.scope.sizes
        atoms = list(dict.fromkeys(atom for name in names(text) if name in sizes for atom in sizes[name].atoms))
        finding = Finding("HF322", f"{where}, but {evaluation.shown}", Label(node.span, "calls it"), demand.labels)
        yield _resized(context, finding, atoms, {demand.key}, clash)
    elif _invalid(context, names(text)):
        return
    elif placement or (context.program.deployment and isinstance(node.op, FunctionCall)):
        message = f"cannot decide before launch whether {text} holds for '{node.label}' ({evaluation.shown})"
        yield Finding("HF319", message, Label(node.span, "calls it"), (Label(declared, f"requires {text}"),))


def _resized(
    context: Context,
    finding: Finding,
    atoms: Sequence[Atom],
    broken: set[DemandKey],
    clash: Clash,
    others: Iterable[Suggestion] = (),
    ranks: Iterable[Suggestion] = (),
) -> Finding:
    """The finding with sizes that repair it, or ``others`` that do; without a size of one dim, with those of two.

    The numbers of ``ranks`` that repair it come last.
    """
    hopeless = not context.alternatives and all(clash(dim) for dim in atoms if dim in context.sizes)
    reported = (hopeless and _impossible(context, atoms, clash, least=2)) or finding
    if not context.search:
        return reported
    sizes = suggested_sizes(context, atoms, broken)
    helped = with_suggestions(context, reported, chain(resized(context, sizes), others))
    if not helped.help:
        note = f"with {in_words(context, sizes)} this holds" if sizes else ""
        helped = with_suggestions(context, reported, resized_together(context, atoms, broken), note, most=1)
    helped = with_suggestions(context, helped, ranks)
    conflict = None if sizes or hopeless else _impossible(context, atoms, clash, least=2)
    if conflict is None:
        return helped
    return replace(
        helped,
        code=conflict.code,
        message=conflict.message,
        primary=conflict.primary,
        related=conflict.related,
        notes=conflict.notes,
    )


def _renamed(context: Context, finding: Finding, demand: Requirement) -> Finding:
    if context.tester(finding) is None:
        return finding
    from hfdsl.check.repair.fixes import calls_of, required

    signature = demand.signature
    calls = list(calls_of(context.program, signature))
    scopes = [binding.scope_at(node, signature) for binding in context.combinations for node in calls]
    return replace(finding, fixes=tuple(required(signature, demand.text, scopes)))


def _clash(context: Context, dim: Atom) -> tuple[Divisible | Bound, ...]:
    """The demands that no size of this dim meets together, as few as possible; none if some size may."""
    if not isinstance(dim, type):
        return ()
    demands = constraints_on(context, dim)
    return tuple(demands[constraint] for constraint in conflict(dim, list(demands)))


def _impossible(context: Context, atoms: Iterable[Atom], clash: Clash, least: int = 1) -> Finding | None:
    """The finding that no size of one of these dims satisfies all that is demanded of it, where that is certain.

    With fewer than ``least`` demands in conflict there is none: the demand that fails is reported as itself.
    """
    for dim in atoms:
        demands = clash(dim)
        if len(demands) >= least:
            others = {atom for demand in demands for atom in demand.constraint.size.atoms if atom is not dim}
            sizes = ", ".join(f"{dim} = {size}" for dim, size in context.sizes.items() if dim in others)
            first, *later = demands
            return Finding(
                "HF318",
                f"no size of {dim} satisfies all of this: {', '.join(dict.fromkeys(d.need for d in demands))}",
                Label(first.node.span, f"for {first.why}"),
                tuple(Label(demand.node.span, f"for {demand.why}") for demand in later),
                notes=(f"with {sizes}",) if sizes else (),
            )
    return None


def rows_split_alike(context: Context) -> Iterator[Finding]:
    """Arguments of one call are split in the same way: a row of one must go with the same rows of the others."""
    unproved = (d for d, answer in context.verdicts if answer is not Answer.PROVED and isinstance(d, AlignedRows))
    for node, demand in at_calls(unproved):
        yield _unaligned(context, node, demand)


def _unaligned(context: Context, node: Node, demand: AlignedRows) -> Finding:
    port, first, size, rows = demand.port, demand.first_port, demand.size, demand.first_size
    if demand.verify(context.known_sizes) is Answer.UNKNOWN:
        undecided = dict.fromkeys((*context.known(size).atoms, *context.known(rows).atoms))
        return Finding(
            "HF319",
            f"cannot decide before launch whether '{node.label}' can split its arguments alike: port '{port}' "
            f"has {size} rows and port '{first}' has {rows}",
            Label(node.span, f"for a split over {demand.chunks} chunks"),
            notes=(f"give the sizes: dims={{{', '.join(f'{atom.__name__}: ...' for atom in undecided)}}}",),
        )
    why = "padding keeps no such pairs" if demand.paired else "which rows belong together is unknown"
    known = [context.known(size).value, context.known(rows).value]
    numbers = "" if None in known else f" ({known[0]} and {known[1]} with the sizes given)"
    return Finding(
        "HF420",
        f"'{node.label}' splits its arguments over {demand.chunks} chunks, but port '{port}' has {size} rows and "
        f"port '{first}' has {rows}{numbers}: {why}",
        Label(node.span),
        notes=("give both the same row dim, or place the role on one rank",),
    )
