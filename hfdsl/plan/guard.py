"""The guard of what a check left open: the rules that judge sizes, asked again with the sizes of a step."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from hfdsl.check.findings import Severity
from hfdsl.check.rules.filtered import enough_rows
from hfdsl.check.rules.presence import certain_columns
from hfdsl.check.rules.sizes import requirements, row_arithmetic, rows_split_alike
from hfdsl.check.rules.wiring import mismatches
from hfdsl.check.subject import Subject
from hfdsl.errors import SizeError
from hfdsl.plan.plan import Plan

RULES = (mismatches, rows_split_alike, row_arithmetic, requirements, enough_rows, certain_columns)
"""The passes of a check that sizes decide."""


def check_sizes(plan: Plan, sizes: Mapping[Any, int]) -> None:
    """Judge the sizes of a step, where the plan was compiled without some of them.

    What does not hold now was open then, or there would be no plan: hence the code of the check's warning.

    Raises:
        SizeError: HF319 with the sizes, the rule that does not hold, the numbers, and those near them that do.
    """
    if sizes.keys() <= plan.dims.keys():
        return  # nothing was left open; what was is not read from the report, where a comment may hide it
    subject = Subject(plan.graph, plan.inference, plan.deployment, sizes)
    for finding in chain(*(rule(subject) for rule in RULES)):
        if finding.severity is Severity.ERROR:
            open_ = ", ".join(f"{dim.__name__} = {size}" for dim, size in sizes.items() if dim not in plan.dims)
            told = "; ".join((finding.message, *finding.notes))
            line = f"{finding.code}, line {finding.primary.span.line}"
            raise SizeError("HF319", f"not decided before launch, and refused with {open_} ({line}): {told}")
