# mypy: disable-error-code="arg-type"
"""A reduction that ranks do not have."""

import hfdsl as hf


class Critic(hf.Worker):
    def average(self, loss: float) -> float:
        # good: return self.axis("dp").all_reduce(loss, "mean")
        return self.axis("dp").all_reduce(loss, "average")  # <- bad


Critic().average(0.5)
