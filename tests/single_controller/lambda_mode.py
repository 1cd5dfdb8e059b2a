"""A dispatch mode of lambdas at module level; a test imports it where the mode may be registered."""

from __future__ import annotations

from hfdsl.single_controller import Dispatch, Worker, register, register_dispatch_mode

LAMBDA = register_dispatch_mode(
    "TESTS_LAMBDA", lambda group, x: (([x] * group.world_size,), {}), lambda group, outputs: outputs[-1]
)


class ByLambda(Worker):
    @register(LAMBDA)
    def give(self, x: int) -> int:
        return x + self.rank

    @register(Dispatch.ONE_TO_ALL)
    def knows(self) -> str:
        return Dispatch("TESTS_LAMBDA").name
