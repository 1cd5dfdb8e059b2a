"""A role that lies on the host while it is idle, and does not say how."""

import hfdsl as hf


class Policy(hf.Worker):
    def offload(self, part: str) -> None:
        """Its memory is given back."""

    # good: def onload(self, part: str) -> None:
    # good:     """What it had is there again."""


policy = hf.place(Policy, pool=hf.ResourcePool([8]), offload=True)  # <-
