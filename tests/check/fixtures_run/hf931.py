"""A deadline that is a text."""

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.single_controller import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup


class Counter(hf.Worker):
    @register(Dispatch.ONE_TO_ALL)
    def add(self, number: int) -> int:
        return number


with RayResourcePool([1], use_gpu=False) as pool, RayWorkerGroup(pool, RayClassWithInitArgs(Counter)) as group:
    # good: group.with_deadline(30).add(1)
    group.with_deadline("30").add(1)  # type: ignore[arg-type]  # <- bad
