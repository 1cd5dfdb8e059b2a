"""The same, mended: A reduction that ranks do not have."""

import hfdsl as hf


class Critic(hf.Worker):
    def average(self, loss: float) -> float:
        return self.axis("dp").all_reduce(loss, "mean")


Critic().average(0.5)
