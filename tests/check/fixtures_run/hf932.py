"""A seed that is a fraction."""

import hfdsl as hf
from hfdsl import Dispatch, register


class B(hf.Dim): ...


class Prompts(hf.Batch):
    ids: hf.i64[B]


class Policy(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts) -> Prompts:
        return prompts


@hf.dataflow
def program(prompts: Prompts, policy: Policy) -> Prompts:
    return policy.generate(prompts)


deployment = hf.Deployment(policy=hf.place(Policy, pool=hf.ResourcePool([2], name="pool")))
plan = program.compile(deployment)
# good: running = plan.launch("local", seed=5)
running = plan.launch("local", seed=0.5)  # type: ignore[arg-type]  # <- bad
running.close()
