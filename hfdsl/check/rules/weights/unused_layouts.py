"""Layouts without effect: no role states the parameters, or those that they cut, or they are not known."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import product

from hfdsl.check.findings import Finding, Label
from hfdsl.deploy.weight_syncs import SyncSide, WeightSync
from hfdsl.errors import HfError
from hfdsl.protocols.layouts import (
    ByName,
    Composed,
    Experts,
    Generation,
    Layout,
    Only,
    Replicas,
    Stages,
    StandardLayout,
    Tied,
    generation_groups,
    number_in,
)
from hfdsl.protocols.mesh import Mesh, axis_size
from hfdsl.types.similar_names import nearest

MOST_NAMES = 3
"""How many parameters a message names."""

WILDCARDS, WORD = ("*", "?", "[", "]"), re.compile("[A-Za-z_]{4,}")

TOO_MANY = "the last ranks would hold too little: give the layout the number that the model has"
"""The effect of layers or experts that a model does not have."""


def unused_layouts(sync: WeightSync, layouts: Mapping[str, Layout]) -> Iterator[Finding]:
    """HF738: a layout of parameters that neither role states, so that nothing comes of it."""
    sides = sync.source, sync.target
    if any(hasattr(side.placement.role, "state_parameters") for side in sides):
        yield from _unstated(sync)
        return
    for side in sides:
        layout = layouts.get(side.effect.kind)
        if side.effect.layout is not None and layout is not None and layout != Replicas():
            yield Finding(
                "HF738",
                f"'{side.node.label}' declares a layout of '{sync.state}', but neither '{sync.source.role}' nor "
                f"'{sync.target.role}' states the parameters of '{sync.state}': the check proves nothing, and each "
                "loading rank gets what the method returns",
                Label(side.node.op.signature.span, f"declares a layout of '{sync.state}'"),  # type: ignore[union-attr]  # a call
                (Label(side.placement.span, f"'{side.role}' is placed here"),),
                notes=(stating(side),),
            )
            return


def _unstated(sync: WeightSync) -> Iterator[Finding]:
    """HF738: parameters that a base class states, and a role with another method of its own does not state again."""
    sides = sync.source, sync.target
    if not sync.declared:
        return
    if any(side.parameters for side in sides):
        yield from _of_another_constructor(sync)
        return
    for side in sides:
        method, role = side.overridden, side.placement.role
        if method is None:
            continue
        base = next(base for base in role.__mro__ if "state_parameters" in vars(base))
        again = f"state_parameters = staticmethod({base.__name__}.state_parameters)"
        yield Finding(
            "HF738",
            f"'{side.role}' has its own {method}, below {base.__name__}, which states the parameters of "
            f"'{sync.state}': they may be others, so the sync from '{sync.source.role}' to '{sync.target.role}' is not "
            "proved, and whole weights travel at once",
            Label(side.placement.span, f"{role.__name__} does not state its parameters"),
            notes=(f"if they are the same, state them again in {role.__name__}: {again}",),
        )
        return


def _of_another_constructor(sync: WeightSync) -> Iterator[Finding]:
    """HF738: a layout from the arguments of a base class's constructor, below which a class has another one."""
    for side in (sync.source, sync.target):
        if not side.has_other_arguments:
            continue
        role, method = side.placement.role.__name__, side.method
        yield Finding(
            "HF738",
            f"the layout of '{side.node.label}' takes the arguments of another constructor than that of {role}, so it "
            f"is not known: the sync from '{sync.source.role}' to '{sync.target.role}' is not proved, and whole "
            "weights travel at once",
            Label(side.placement.span, f"{role} takes other arguments"),
            (Label(side.node.op.signature.span, f"declares the layout of '{sync.state}'"),),  # type: ignore[union-attr]  # a call
            notes=(f"override '{method}' in {role}, and declare a layout that takes {role}'s arguments",),
        )
        return


def unmatched_parts(sync: WeightSync, *layouts: Layout) -> Iterator[Finding]:
    """HF738: a name, layers or experts of a layout that no parameter has, so that it cuts nothing, or unevenly."""
    sides = sync.source, sync.target
    for side, other_side, layout in zip(sides, reversed(sides), layouts, strict=True):
        names = [parameter.name for parameter in side.parameters or ()]
        others = {parameter.name for parameter in other_side.parameters}
        unmatched = _unmatched(layout, side.placement.mesh, names, f"'{side.role}'", others) if names else ()
        for problem, note in unmatched:
            yield Finding(
                "HF738",
                f"the layout of '{side.node.label}' {problem}",
                Label(side.node.op.signature.span, f"declares the layout of '{sync.state}'"),  # type: ignore[union-attr]  # a call
                (Label(side.placement.span, f"'{side.role}' is placed here"),),
                notes=(note,),
            )
            return


def _unmatched(
    layout: object, mesh: Mesh, names: Sequence[str], role: str, others: Collection[str]
) -> Iterator[tuple[str, str]]:
    """The parts of a layout for parameters that are not among these, each in words and with a note.

    ``others`` are the names that the other side states: what it alone has is reported, or tied.
    """
    parts: tuple[StandardLayout, ...] = ()
    match layout:
        case ByName():
            parts = (*layout.layouts.values(), layout.otherwise)
            yield from _unmatched_patterns(layout, names, role, others)
        case Stages() if axis_size(mesh, layout.axis) > 1:
            yield from _unmatched_layers(layout, names, role)
        case Experts() if Only(axis=layout.axis, at=()).parts(mesh) > 1:
            experts = _numbers(layout.number, names)
            if experts and max(experts) + 1 < layout.count:  # a model without experts may share the layout
                yield (
                    f"has {layout.count} experts, but {role} states {_count(names)}, of {max(experts) + 1} experts",
                    TOO_MANY,
                )
        case Composed():
            parts = layout.layouts
        case Tied():
            yield from _misspelled_ties(layout, names, role)
            names = [*names, *map(layout.stored_as, names)]
            parts = (layout.layout,)
        case Generation():
            parts, mesh = (layout.layout,), generation_groups(mesh)
    for part in parts:
        yield from _unmatched(part, mesh, names, role, others)


def _unmatched_patterns(
    layout: ByName, names: Sequence[str], role: str, others: Collection[str]
) -> Iterator[tuple[str, str]]:
    """A name that no parameter has; or patterns, such as ``*.k_proj.weight``, if all of them match none.

    Some of several patterns may be meant for other models.
    """
    absent = [
        pattern
        for pattern in layout.layouts
        if pattern not in others and not any(fnmatchcase(name, pattern) for name in names)
    ]
    exact = next((pattern for pattern in absent if not set(pattern) & set("*?[")), None)
    if exact is not None:
        near = nearest(exact, names)
        note = f"it states {near!r}" if near else _first_names(names)
        yield f"has a part for {exact!r}, but {role} states no parameter of that name", note
    elif absent and len(absent) == len(layout.layouts):
        patterns = ", ".join(map(repr, absent))
        yield (
            f"has parts for {patterns}, but none of the {_count(names)} of {role} has such a name",
            _first_names(names),
        )
    else:
        yield from _misspelled_patterns(layout, absent, names, role)
        yield from _shadowed_patterns(layout, names, role)


def _misspelled_patterns(
    layout: ByName, absent: Sequence[str], names: Sequence[str], role: str
) -> Iterator[tuple[str, str]]:
    """A pattern that matches no name, beside a name for which it has a letter too many or too few, or two swapped.

    A more general pattern, without that word, gives the name another layout, or none does. Another letter in the place
    of one is no mistake: ``k_proj`` and ``q_proj`` are two modules.
    """
    kinds = {re.sub(r"\d+", "0", name): name for name in reversed(names)} if absent else {}
    for pattern in absent:
        for (word, mended), name in product(_mended(pattern), kinds.values()):
            if fnmatchcase(name, mended):
                user = next(iter(_users(layout, [name])), None)
                part = layout.otherwise if user is None else layout.layouts[user]
                has_word = user is not None and any(fnmatchcase(other, word) for other in WORD.findall(user))
                is_general = user is None or (fnmatchcase(mended, user) and not has_word)
                if is_general and part != layout.layouts[pattern]:
                    problem = f"has a part for {pattern!r}, but {role} states no parameter of such a name"
                    chosen = "no pattern matches" if user is None else f"{user!r} matches"
                    yield f"{problem}; {chosen} {name!r}", f"{pattern!r} and {name!r} differ by a letter"
                    return


def _misspelled_ties(layout: Tied, names: Sequence[str], role: str) -> Iterator[tuple[str, str]]:
    """A tied name, or that of its stored parameter, which differs by a letter from one that a parameter has.

    Other names may be those of another side's parameters, or of what a rank returns.
    """
    for tied in dict.fromkeys((*layout.names, *layout.names.values())):
        mended = () if tied in names else _mended(tied)
        near = next((name for _, pattern in mended for name in names if fnmatchcase(name, pattern)), None)
        if near is not None:
            yield (
                f"ties {tied!r}, but {role} states no parameter of that name",
                f"{tied!r} and {near!r} differ by a letter",
            )
            return


def _mended(pattern: str) -> Iterator[tuple[str, str]]:
    """The patterns that have a word with one letter more or less, or with two that are swapped, and that word.

    Words of up to three letters count as right: ``w`` and ``wq`` are two names. Without a letter beside a wildcard, a
    pattern matches names that have nothing to do with it.
    """
    for match in WORD.finditer(pattern):
        before, word, after = pattern[: match.start()], match[0], pattern[match.end() :]
        first, last = before.endswith(WILDCARDS), len(word) - after.startswith(WILDCARDS)
        words = [f"{word[:i]}[A-Za-z_]{word[i:]}" for i in range(len(word) + 1)]
        words += [word[:i] + word[i + 1 :] for i in range(first, last)]
        words += [word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in range(len(word) - 1)]
        yield from ((mended, before + mended + after) for mended in words)


def _shadowed_patterns(layout: ByName, names: Sequence[str], role: str) -> Iterator[tuple[str, str]]:
    """A pattern below a more general one, which gives its parameters another layout.

    A general pattern below specific ones is for all others, of which a model may have none.
    """
    for number, (pattern, part) in enumerate(layout.layouts.items()):
        above = [first for first in list(layout.layouts)[:number] if fnmatchcase(pattern, first)]  # "*" is in its "*"
        matching = [name for name in names if fnmatchcase(name, pattern)]
        if above and any(layout.layouts[first] != part for first in _users(layout, matching)):
            problem = f"{above[0]!r} comes first and matches all that it does, such as {matching[0]!r} of {role}"
            note = f"put {pattern!r} before {above[0]!r}: the first pattern that matches decides"
            yield f"never uses {pattern!r}: {problem}", note
            return


def _users(layout: ByName, names: Sequence[str]) -> set[str]:
    """The patterns to which names go."""
    users = (next((pattern for pattern in layout.layouts if fnmatchcase(name, pattern)), None) for name in names)
    return {user for user in users if user is not None}


def _unmatched_layers(layout: Stages, names: Sequence[str], role: str) -> Iterator[tuple[str, str]]:
    """Layers that no parameter is of, or numbers in names that the layout does not take for layers."""
    layers = _numbers(layout.number, names)
    numbered = [name for name in names if re.search(r"(^|\.)\d+\.", name)]
    if layers and max(layers) + 1 < layout.layers:
        yield f"has {layout.layers} layers, but {role} states {_count(names)}, of {max(layers) + 1} layers", TOO_MANY
    elif numbered and not layers:
        problem = f"has {layout.layers} layers, but finds none in the names of the {_count(names)} of {role}"
        yield problem, _first_names(numbered)


def _numbers(pattern: str, names: Sequence[str]) -> set[int]:
    numbers = set[int | None]()
    for name in names:
        with suppress(HfError):  # a parameter of this side alone, which is not cut
            numbers.add(number_in(name, pattern))
    return {number for number in numbers if number is not None}


def _count(names: Sequence[str]) -> str:
    return f"{len(names)} parameter{'s' * (len(names) > 1)}"


def _first_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"it states {', '.join(map(repr, names[:MOST_NAMES]))}{more}"


def stating(side: SyncSide) -> str:
    """Advice to state the parameters of a state."""
    returned = f'{{"{side.effect.state}": [Parameter(name, shape), ...]}}'
    role = side.placement.role.__name__
    method = f"a static method state_parameters of {role}, which takes the constructor's arguments"
    return f"state them with {method} and returns {returned}"
