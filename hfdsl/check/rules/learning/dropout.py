"""Dropout: does an update form ratios of log-probs with and without dropout?

A worked example, an actor with ``Lora(dropout=0.05)``::

    rollout = actor.generate(prompts)                    # log-probs of the whole model
    actor.update(rollout, loss=Clip())                   # log-probs of a model that drops 5 % / those
    actor.update(rollout, loss=Reinforce())              # no ratio: dropout is noise in the gradient, no more

The first ratios are not 1, so tokens are clipped and weighted at random before the policy has changed. A role states by
``drops`` what its updates drop; generation and log-probs never do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program
from hfdsl.check.rules.learning.ratios import first_ratio_updates
from hfdsl.graph.program import Node
from hfdsl.protocols import role_facts


@dataclass(frozen=True, slots=True)
class DroppedRatio:
    """An update that forms ratios, and the shares that it drops by setting."""

    update: Node
    drops: Mapping[str, float]

    @property
    def message(self) -> str:
        """The message of the finding."""
        settings = ", ".join(f"{name} = {share:g}" for name, share in self.drops.items())
        return (
            f"'{self.update.label}' computes with dropout ({settings}), but divides by log-probs without it: ratios do "
            "not start at 1"
        )


WITHOUT = "set it to 0: tokens are clipped and weighted at random before the policy has changed"
"""The advice, and the cost of dropout."""


def ratios_are_without_dropout(context: Context) -> Iterator[Finding]:
    """HF945: an update that forms ratios drops nothing."""
    for dropped in dropped_ratios(context.program):
        place = context.program.placement(dropped.update)
        if place is not None:
            yield Finding(
                "HF945",
                dropped.message,
                Label(place.span, "configured here"),
                (Label(dropped.update.span, "forms ratios"),),
                notes=(WITHOUT,),
            )


def dropped_ratios(program: Program) -> Iterator[DroppedRatio]:
    """The first update with a ratio of each role whose updates drop something."""
    for update in first_ratio_updates(program):
        if drops := role_facts.drops.of(program.placement(update)):
            yield DroppedRatio(update, drops)
