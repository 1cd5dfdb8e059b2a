"""Functions that a process calls whenever a body begins there, or after it has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

BodyMoment: TypeAlias = Literal["begins", "ended"]

BodyHook: TypeAlias = Callable[[str, int, str], None]
"""A function of the plan, the number of the step and the label of a call."""


class BodyHooks:
    """The hooks of a process, called in the order in which they were added.

    >>> hooks = BodyHooks()
    >>> hooks.add("begins", lambda plan, step, label: print(f"{plan}: {label} of step {step}"))
    >>> hooks.call("begins", "grpo", 3, "actor.update")
    grpo: actor.update of step 3
    """

    def __init__(self) -> None:
        self._hooks: dict[BodyMoment, list[BodyHook]] = {"begins": [], "ended": []}

    def add(self, moment: BodyMoment, hook: BodyHook) -> None:
        """Call a hook, too, from now on."""
        self._hooks[moment].append(hook)

    def call(self, moment: BodyMoment, plan: str, step: int, label: str) -> None:
        """Call all hooks of a moment."""
        for hook in self._hooks[moment]:
            hook(plan, step, label)
