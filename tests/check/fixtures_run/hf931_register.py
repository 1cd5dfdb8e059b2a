"""A method with a deadline that is a text."""

import hfdsl as hf
from hfdsl import Dispatch, register


class Judge(hf.Worker):
    # good: @register(Dispatch.ONE_TO_ALL, deadline=60)
    @register(Dispatch.ONE_TO_ALL, deadline="60 s")  # type: ignore[call-overload, untyped-decorator]  # <- bad
    def score(self, text: str) -> float:
        return float(len(text))
