# mypy: disable-error-code="type-var, prop-decorator"
"""A property under a decorator that takes a method."""

import hfdsl as hf
from hfdsl import Dispatch, register


class Critic(hf.Worker):
    @register(Dispatch.ONE_TO_ALL)  # <-
    @property  # bad
    def temperature(self) -> float:
        return 1.0
