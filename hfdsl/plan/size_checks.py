"""Size checks at run time: the rules of a check that depend on sizes, applied again to the sizes of a step."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from hfdsl.check.context import Context
from hfdsl.check.findings import is_error
from hfdsl.check.program import Program
from hfdsl.check.rules.dataflow.presence import certain_columns
from hfdsl.check.rules.dataflow.wiring import mismatches
from hfdsl.check.rules.rows.filtered import enough_rows
from hfdsl.check.rules.rows.sizes import requirements, row_arithmetic, rows_split_alike
from hfdsl.errors import SizeError
from hfdsl.plan.plan import Plan

RULES = (mismatches, rows_split_alike, row_arithmetic, requirements, enough_rows, certain_columns)
"""The rules of a check whose findings depend on sizes."""


def check_sizes(plan: Plan, sizes: Mapping[Any, int]) -> None:
    """Check the sizes of a step, where the plan was compiled without some of them.

    A rule that fails now was undecided at compilation, or there would be no plan; so the code is that of the warning.

    Raises:
        SizeError: HF319 with the sizes, the rule that fails, the numbers, and the nearest sizes that work.
    """
    if sizes.keys() <= plan.dims.keys():
        return  # no size was left open; the report cannot say this, since a comment may hide its warning
    context = Context.of(Program(plan.graph, plan.inference, plan.deployment), sizes)
    for finding in chain(*(rule(context) for rule in RULES)):
        if is_error(finding):
            open_ = ", ".join(f"{dim.__name__} = {size}" for dim, size in sizes.items() if dim not in plan.dims)
            details = "; ".join((finding.message, *finding.notes))
            line = f"{finding.code}, line {finding.primary.span.line}"
            raise SizeError("HF319", f"not decided before launch, and refused with {open_} ({line}): {details}")
