"""A method that drops rows, behind a protocol that joins them."""

import hfdsl as hf
from hfdsl import register
from hfdsl.single_controller import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup


class Filter(hf.Worker):
    # good: @register(hf.Protocol("PARTS", split=("rank",), collect={"rank": "join"}, gives="per_rank"))
    @register(hf.Dispatch.DP_PROTO)  # bad
    def clean(self, texts: list[str]) -> list[str]:
        return [text for text in texts if text]


with RayResourcePool([2], use_gpu=False) as pool, RayWorkerGroup(pool, RayClassWithInitArgs(Filter)) as group:
    kept = group.clean(["a", "", "b", "c"])  # <-
