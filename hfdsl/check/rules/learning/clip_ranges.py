"""Ranges of clips: is the range of a clip around 1, which a ratio of equal policies is?

A worked example, of a user's update::

    ratio = (log_probs - old).exp()
    ratio.clamp(-self.eps, self.eps)                                    HF365: around 0
    ratio.clamp(self.eps, 1 + self.eps)                                 HF365: far below, and a little above
    (log_probs - old).clamp(1 - self.eps, 1 + self.eps)                 HF365: a difference is 0 where a ratio is 1
    ratio.clamp(1 - self.eps, 1 + self.eps)

A clip around 0 lets only tokens through that became rarer than the range, so most of a batch has no gradient. Known
numbers decide it. For unknown ones the rule goes by the name of the range: a variable that is named a bound may hold
the bound itself. A clip with one bound, as of an importance weight, may be anywhere, and so may one of a ratio minus 1.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from hfdsl.check.bodies.kept_attributes import methods_of
from hfdsl.check.bodies.known_values import Known
from hfdsl.check.bodies.linear_numbers import Linear
from hfdsl.check.bodies.temperatures import known_attributes
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.losses.collected import RatioClip
from hfdsl.check.losses.updates import interpreted_surrogates, interpreted_update
from hfdsl.check.program import Program, call_numbers
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.sources import source_text
from hfdsl.graph.program import Node
from hfdsl.graph.spans import Span

SIDE: Final = re.compile(r"(^|_)(high|low|lower|max|min|upper)(?=_|$)")
"""The part of a name that says which bound a number is of."""

RANGE: Final = re.compile(
    r"(.*_)?(clip|clip_?range|clip_?ratio|eps|epsilon)(_(clip|coef|coeff|eps|epsilon|param|range|ratio))*"
)
"""The names of the range of a clip, without their sides: how far a ratio may be from 1."""

USUAL: Final = (0.05, 0.2)
"""Numbers that a range may be."""


def clips_are_around_one(context: Context) -> Iterator[Finding]:
    """HF365: a ratio is clipped to a range around 1."""
    program, reported = context.program, set[Span]()
    for node in program.graph.calls if not program.graph.misuses else ():
        for clip in _clips(program, node):
            if clip.place not in reported:
                reported.add(clip.place)
                yield _finding(context, node, clip)


def _clips(program: Program, node: Node) -> Iterator[RatioClip]:
    """The clips of a call that are certainly not around 1."""
    update = interpreted_update(program, node)
    if update is not None and update.clips:
        values = known_numbers(program, node, {name for clip in update.clips for name in _names(clip)})
        yield from (clip for clip in update.clips if _is_off_center(clip, values))
    for surrogate in interpreted_surrogates(program, node):
        values = {f"self.{name}": number for name, number in surrogate.numbers.items()}
        yield from (clip for clip in surrogate.collected.clips if _is_off_center(clip, values))


def _names(clip: RatioClip) -> set[str]:
    """The names of numbers in the bounds of a clip."""
    return {name for bound in (clip.low, clip.high) for name, _ in bound.number.factors}


def known_numbers(program: Program, node: Node, names: Iterable[str]) -> Mapping[str, float]:
    """The numbers with these names that a call passes, or that its role or a configuration of it is placed with."""
    place = program.placement(node)
    arguments = None if place is None else (place.args, place.kwargs)
    kept = known_attributes(program.role_class(node.role), arguments)
    values: dict[str, object] = dict(call_numbers(node))
    for name in names:
        root, *parts = re.findall(r"\w+", name)
        if root == "self" and parts:
            value: Any = kept.get(parts[0])
            value = value.value if isinstance(value, Known) else None
            for part in parts[1:]:
                value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
            values[name] = value
    return {name: value for name, value in values.items() if isinstance(value, (int, float))}


# -- ranges


def _is_off_center(clip: RatioClip, values: Mapping[str, float]) -> bool:
    """Whether a clip is certainly not around where nothing has changed; ``values`` are the numbers that are known."""
    low, high = clip.low.number, clip.high.number
    known = low.given(values), high.given(values)
    if not known[0].factors and not known[1].factors:
        low_number, high_number = known[0].offset, known[1].offset
        if clip.of_ratio and low_number != 0 and not low_number <= 1 <= high_number:
            return True
        if not clip.of_ratio and not low_number <= 0 <= high_number:
            return True
    if any(abs(values.get(name, 0.0)) >= 1 for number in (low, high) for name, _ in number.factors):
        return False
    return _is_off_one(clip) if clip.of_ratio else _is_off_zero(low, high)


def _is_off_one(clip: RatioClip) -> bool:
    """Whether the bounds of a clip are certainly not around a ratio of 1, whatever the range is."""
    low, high = clip.low.number, clip.high.number
    names = _names(clip)
    if not low.factors or not high.factors:
        return False
    if len(names) > 1:  # from one to the other: both may be the bounds themselves
        [stem, *others] = {*map(_range, names)}
        is_negative = low.offset == 0 and all(_at(low, size) < 0 for size in USUAL)
        return RANGE.fullmatch(stem) is not None and not others and is_negative
    written = re.findall(r"\w+", f"{source_text(clip.low.place)} {source_text(clip.high.place)}")
    if not any(RANGE.fullmatch(_range(name)) for name in (*names, *written)):
        return False
    is_shifted = low.offset == 0 and high.offset == 1 and low.factors == high.factors
    return is_shifted or all(_at(low, size) < 0 or not _at(low, size) <= 1 <= _at(high, size) for size in USUAL)


def _is_off_zero(low: Linear, high: Linear) -> bool:
    """Whether two bounds are those of a ratio, and not around a difference of 0."""
    is_falling, is_rising = (all(f * sign > 0 for _, f in n.factors) for n, sign in ((low, -1), (high, 1)))
    has_both = low.factors and high.factors
    return low.offset == high.offset == 1 and bool(has_both) and is_falling and is_rising


def _at(number: Linear, size: float) -> float:
    """A number where all that is not known has a size."""
    return number.given({name: size for name, _ in number.factors}).offset


def _range(name: str) -> str:
    """The last part of a name, without the side: ``eps`` of ``self.eps_low``."""
    last = re.findall(r"\w+", name)[-1]
    return SIDE.sub("", last).strip("_")


# -- findings


def _finding(context: Context, node: Node, clip: RatioClip) -> Finding:
    low, high = (source_text(bound.place) or "a number" for bound in (clip.low, clip.high))
    if clip.of_ratio:
        message = f"'{node.label}' clips a ratio to the range from {low} to {high}, which is not around 1"
        label, advice = "1 where nothing has changed", "a ratio is clipped to the range from 1 - eps to 1 + eps"
    else:
        message = f"'{node.label}' clips a difference of log-probs to the range from {low} to {high}, as for a ratio"
        label, advice = "0 where nothing has changed", "take the exponential first: (log_probs - old).exp()"
    finding = Finding("HF365", message, Label(clip.place, label), (Label(node.span, "called here"),))
    return with_suggestions(context, finding, _edits(context.program, node, clip), advice, most=1)


def _edits(program: Program, node: Node, clip: RatioClip) -> Iterator[Suggestion]:
    """The range around 1 that is certainly meant; a helper may have other callers."""
    from hfdsl.check.repair import bodies  # late: most programs need none

    method = methods_of(program.role_class(node.role)).get(node.method)
    if method is None or not method.has(clip.place) or not clip.of_ratio:
        return
    texts = dict[Span, str]()
    for bound, sign in ((clip.low, "-"), (clip.high, "+")):
        text = source_text(bound.place) or ""
        size = _size(text)
        if not size:
            return
        if not re.fullmatch(rf"1(\.0*)? *\{sign} *{re.escape(size)}", text):
            texts[bound.place] = f"1 {sign} {size}"
    yield from bodies.replaced(texts)


def _size(text: str) -> str:
    """The size of a range in the text of a bound, such as ``eps`` in ``-eps``; empty if it is not certain."""
    try:
        bound = ast.parse(text, mode="eval").body
    except SyntaxError:
        return ""
    match bound:
        case ast.UnaryOp(ast.USub(), size) | ast.BinOp(ast.Constant(0 | 1), ast.Add() | ast.Sub(), size):
            pass
        case _:
            size = bound
    return ast.unparse(size) if isinstance(size, (ast.Attribute, ast.Constant, ast.Name)) else ""
