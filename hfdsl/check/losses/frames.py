"""Frames: what transfer functions of a policy's loss know of the function that an operation is in, and note there.

A worked example, a frame per call of ``clipped``::

    def update(self, experience):
        loss = -self.clipped(ratio, -self.eps) * experience.gain      a frame: low is -self.eps
        loss = loss + self.clipped(other, 0.0)                        another one: low is 0

    def clipped(self, ratio, low):
        return ratio.clamp(1 + low, 1.2)                              a clip in either, with its place
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import NamedTuple

from hfdsl.check.bodies.linear_numbers import Linear, LinearNumbers
from hfdsl.check.bodies.scopes import FunctionScope
from hfdsl.check.losses.collected import Collected
from hfdsl.check.losses.origins import LogitMakers, LogProbOrigins
from hfdsl.check.sources import span_of
from hfdsl.graph.spans import Span, definition_span


class Epochs(NamedTuple):
    """A loop that takes steps on the same rows: how often it runs, and the effects of statements before it."""

    times: Linear
    effects: int


@dataclass(slots=True)
class CallFrame:
    """The call of a function that is interpreted.

    ``linear``, ``makers`` and ``origins`` are what is known of its names besides their values. ``collected`` is shared
    with the functions that it calls, and so are ``own_bases``: where the log-probs of an origin are subtracted from
    themselves. ``epochs`` is the loop that it is in, if that takes steps on the same rows.
    """

    scope: FunctionScope
    file: str
    collected: Collected
    linear: LinearNumbers
    makers: LogitMakers
    origins: LogProbOrigins
    own_bases: dict[str, Span] = field(default_factory=dict)
    epochs: Epochs | None = None

    @classmethod
    def of(cls, scope: FunctionScope) -> CallFrame:
        """The frame of a body, with nothing collected."""
        file, makers = definition_span(scope.body).file, LogitMakers(scope)
        return cls(scope, file, Collected.nothing(), LinearNumbers(scope), makers, LogProbOrigins(scope))

    def begin_call(self, outer: CallFrame, number: int) -> None:
        """Share what another function has collected, which calls this one; ``number`` tells its calls apart."""
        self.collected, self.own_bases, self.epochs = outer.collected, outer.own_bases, outer.epochs
        self.origins.effects, self.origins.number = outer.origins.effects, number

    def enclose(self, inner: CallFrame) -> None:
        """Give the frame of a function that this one defines what is known of the names of this one."""
        self.linear.enclose(inner.linear)
        inner.origins.enclosed_in(self.origins)

    def place(self, node: ast.expr) -> Span:
        """Where an expression is written."""
        return span_of(self.file, node)
