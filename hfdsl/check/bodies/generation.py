"""Options of generation: does a method certainly sample the likeliest tokens, by what it writes?

A worked example; each of these gives every copy of a prompt the same response::

    self.model.generate(input_ids=ids, do_sample=False)
    self.engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=512))

Several calls have to agree: a method may also sample a baseline.
"""

from __future__ import annotations

import ast
from typing import Final

from hfdsl.check.bodies.names import last_name
from hfdsl.check.sources import Function
from hfdsl.check.syntax_trees import nodes_of

GREEDY_OPTIONS: Final = {"do_sample": "do_sample = False", "temperature": "temperature = 0"}
"""By option the text of the value with which the likeliest tokens are chosen."""

BEAMS: Final = frozenset({"num_beam_groups", "num_beams", "penalty_alpha", None})
"""Options with which responses to a prompt may differ without chance; None for options that are not written."""


def greedy_option(definition: Function) -> str | None:
    """The option by which all generation of a method is greedy; None if some may sample.

    >>> body = ast.parse("def write(self, ids): return self.model.generate(ids, do_sample=False)").body[0]
    >>> greedy_option(body)
    'do_sample = False'
    """
    calls = [node for node in nodes_of(definition) if isinstance(node, ast.Call)]
    params = [call for call in calls if last_name(call.func) == "SamplingParams"]
    models = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "generate"]
    options = {_greedy(call, "temperature") for call in params} or {_greedy(call, "do_sample") for call in models}
    return next(iter(options)) if len(options) == 1 else None


def _greedy(call: ast.Call, option: str) -> str | None:
    """The text of an option by which one call is greedy."""
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    match named.get(option):
        case ast.Constant(bool() | int() | float() as value) if not value and BEAMS.isdisjoint(named):
            return GREEDY_OPTIONS[option]
    return None
