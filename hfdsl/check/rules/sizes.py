"""Sizes: do the rows work out everywhere? What given sizes upset, the sizes that mend it, what none satisfies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from hfdsl.check.alike import argument_rows
from hfdsl.check.constraints import (
    Divides,
    Key,
    chunks_of,
    dims_of_call,
    divided,
    filtered,
    imposed,
    known_names,
    pads,
    proportional,
    rows_are_alike,
    undivided,
    unproved,
)
from hfdsl.check.findings import Finding, Label
from hfdsl.check.repair.search import conflict
from hfdsl.check.repair.sizes import demands_on, in_words, repairs, resized, resized_together
from hfdsl.check.repair.suggestions import with_suggestions
from hfdsl.check.requirements import names
from hfdsl.check.rules.dims import undetermined_row_dims
from hfdsl.check.subject import EVERYTHING, Subject
from hfdsl.errors import DefinitionError
from hfdsl.graph.program import FunctionCall
from hfdsl.graph.signatures import Signature
from hfdsl.types.dims import Answer, Atom


def row_arithmetic(subject: Subject) -> Iterator[Finding]:
    """One finding for all splits that the same sizes upset, with sizes that satisfy every constraint of the program."""
    demands = list({(d.size, d.divisor, d.why, d.node.span): d for d in unproved(subject)}.values())
    # HF301: the run would not know them either.
    open_row_dims = set(undetermined_row_dims(subject) if subject.deployment else ())
    answers = [(d, divided(subject, d)) for d in demands]
    for _, broken in _by_dims([d for d, answer in answers if answer is Answer.REFUTED]):
        yield _uneven(subject, broken)
    unknown = [d for d, answer in answers if answer is Answer.UNKNOWN and d.of_rows and not filtered(d.size)]
    for atoms, open_ in _by_dims(unknown):
        if _misgiven(subject, [atom.__name__ for atom in atoms]) or not open_row_dims.isdisjoint(atoms):
            continue
        needs = ", ".join(dict.fromkeys(d.need for d in open_))
        yield _impossible(subject, atoms) or Finding(
            "HF319",
            f"cannot decide before launch whether the rows work out: {needs}",
            Label(open_[0].node.span, f"for {open_[0].why}"),
            tuple(Label(d.node.span, f"for {d.why}") for d in open_[1:]),
            notes=(f"give the size: dims={{{', '.join(f'{atom.__name__}: ...' for atom in atoms)}}}",),
        )


def _by_dims(demands: list[Divides]) -> Iterator[tuple[tuple[Atom, ...], list[Divides]]]:
    groups: dict[tuple[Atom, ...], list[Divides]] = {}
    for demand in demands:
        groups.setdefault(demand.size.atoms, []).append(demand)
    yield from groups.items()


def _uneven(subject: Subject, broken: list[Divides]) -> Finding:
    first = broken[0]
    rows = subject.known(first.size).value
    given = ", ".join(f"{d} = {n}" for d, n in subject.dims.items() if d in first.size.atoms)
    shown = f"{first.size} = {rows}" if first.size.atoms else f"{rows}"
    rest = f"{rows} % {first.divisor} = {rows % first.divisor}" if rows is not None and first.divisor > 1 else ""
    message = first.complaint.replace("{rows}", rest if first.code == "HF322" else shown)
    related = [Label(d.node.span, f"for {d.why}: {d.need}") for d in broken[1:]]
    finding = Finding(
        first.code,
        f"{message}: {rest}" if rest and first.code != "HF322" else message,
        Label(first.node.span, first.need),
        (*first.others, *related),
        notes=(f"with {given}",) if given and shown != given else (),
    )
    return _resized(subject, finding, first.size.atoms, {(d.node.id, d.why) for d in broken})


def _misgiven(subject: Subject, names: Iterable[str]) -> bool:
    """Whether the size of one of these dims was given and is none: that is told, and that it lacks is no news."""
    odd = {getattr(dim, "__name__", str(dim)) for dim in subject.odd}
    return EVERYTHING in odd or not odd.isdisjoint(names)


def requirements(subject: Subject) -> Iterator[Finding]:
    """``hf.requires`` of role methods and functions, with the rows of the call and the fields of the role's config."""
    for node, signature, text, answer, shown in undivided(subject):
        placement, where = subject.placement(node), f"'{node.label}' requires {text}"
        if isinstance(answer, DefinitionError):
            placed = (Label(placement.span, "placed here"),) if placement and answer.code == "HF323" else ()
            finding = Finding(answer.code, f"{where}: {answer.message}", Label(signature.span), placed)
            yield _renamed(subject, finding, signature, text)
        elif answer is Answer.REFUTED:
            sizes = dims_of_call(subject, node, signature)
            atoms = list(dict.fromkeys(atom for name in names(text) if name in sizes for atom in sizes[name].atoms))
            declared = imposed(subject, node, signature, text)
            finding = Finding("HF322", f"{where}, but {shown}", Label(node.span, "calls it"), declared)
            yield _resized(subject, finding, atoms, {(node.id, text)})
        elif _misgiven(subject, names(text)):
            continue
        elif answer is Answer.UNKNOWN and (placement or (subject.deployment and isinstance(node.op, FunctionCall))):
            message = f"cannot decide before launch whether {text} holds for '{node.label}' ({shown})"
            yield Finding("HF319", message, Label(node.span, "calls it"), (Label(signature.span, f"requires {text}"),))


def _resized(subject: Subject, finding: Finding, atoms: Sequence[Atom], mine: set[Key]) -> Finding:
    """The finding with sizes that mend it; where no size of one dim does, with what they clash on, and two at once."""
    sizes = repairs(subject, atoms, mine)
    told = finding if sizes else _impossible(subject, atoms, least=2) or finding
    advice = f"with {in_words(subject, sizes)} this works out" if sizes else ""
    helped = with_suggestions(subject, told, resized(subject, sizes))
    return (
        helped
        if helped.help
        else with_suggestions(subject, told, resized_together(subject, atoms, mine), advice, most=1)
    )


def _renamed(subject: Subject, finding: Finding, signature: Signature, text: str) -> Finding:
    if subject.repairs(finding) is None:
        return finding
    from hfdsl.check.repair.fixes import calls_of, required

    known = [known_names(subject, node, signature) for node in calls_of(subject, signature)]
    return replace(finding, fixes=tuple(required(signature, text, known)))


def _impossible(subject: Subject, atoms: Iterable[Atom], least: int = 1) -> Finding | None:
    """The finding that no size of one of these dims meets all that is demanded of it, where that is certain.

    ``least``: a smaller set of demands is told as what it is, such as a requirement that fails with the sizes given.
    """
    for dim in atoms:
        if not isinstance(dim, type):
            continue
        rules = demands_on(subject, dim)
        clash = [rules[demand] for demand in conflict(dim, list(rules))]
        if len(clash) >= least:
            others = dict.fromkeys(atom for rule in clash for atom in rule.demand.size.atoms if atom is not dim)
            given = ", ".join(f"{other} = {size}" for other, size in subject.dims.items() if other in others)
            return Finding(
                "HF318",
                f"no size of {dim} satisfies all of this: {', '.join(dict.fromkeys(rule.need for rule in clash))}",
                Label(clash[0].node.span, f"for {clash[0].why}"),
                tuple(Label(rule.node.span, f"for {rule.why}") for rule in clash[1:]),
                notes=(f"with {given}",) if given else (),
            )
    return None


def rows_split_alike(subject: Subject) -> Iterator[Finding]:
    """Arguments of one call are cut alike: a row of one must go with the same rows of the others."""
    for node in subject.graph.nodes:
        chunks = chunks_of(subject, node)
        if chunks is None:
            continue
        given = argument_rows(subject, node)
        for port, size in given.items():
            first, rows = next(iter(given.items()))
            paired = proportional(size, rows)
            alike = rows_are_alike(subject, size, rows)
            if alike is Answer.PROVED or (paired and not pads(node)):
                continue
            if not paired and alike is Answer.UNKNOWN:
                open_ = dict.fromkeys((*subject.known(size).atoms, *subject.known(rows).atoms))
                yield Finding(
                    "HF319",
                    f"cannot decide before launch whether '{node.label}' can split its arguments alike: port '{port}' "
                    f"has {size} rows and port '{first}' has {rows}",
                    Label(node.span, f"for a split over {chunks} chunks"),
                    notes=(f"give the sizes: dims={{{', '.join(f'{atom.__name__}: ...' for atom in open_)}}}",),
                )
            else:
                why = "padding keeps no such pairs" if paired else "which rows belong together is unknown"
                own, whole = subject.known(size).value, subject.known(rows).value
                numbers = "" if own is None or whole is None else f" ({own} and {whole} with the sizes given)"
                yield Finding(
                    "HF420",
                    f"'{node.label}' splits its arguments over {chunks} chunks, but port '{port}' has {size} rows and "
                    f"port '{first}' has {rows}{numbers}: {why}",
                    Label(node.span),
                    notes=("give both the same row dim, or place the role on one rank",),
                )
