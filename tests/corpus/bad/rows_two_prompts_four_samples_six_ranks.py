# mypy: disable-error-code="empty-body"
"""2 prompts with 4 samples each make 8 rows, but policy and reference have 6 ranks.

Seen: https://github.com/NovaSky-AI/SkyRL/issues/1609
Elsewhere: SkyRL silently truncates the batch to no prompts; the run dies later in a minimum over an empty array.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import B, P, PolicyConfig, Prompts, R, Reference, RefLogProbs, Rollout


class Engine(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts) -> Rollout: ...


class Policy(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def train(self, rollout: Rollout, ref: RefLogProbs) -> None: ...


@hf.dataflow
def step(prompts: Prompts, engine: Engine, policy: Policy, reference: Reference) -> RefLogProbs:
    rollout = engine.generate(hf.repeat(prompts, 4))
    ref = reference.log_probs(rollout)  # <- HF310
    policy.train(rollout, ref)
    return ref


pool = hf.ResourcePool([6])
experiment = hf.Experiment(
    step,
    hf.Deployment(
        engine=hf.place(Engine, pool=hf.ResourcePool([2]), mesh=hf.Mesh(dp=1, tp=2)),
        policy=hf.place(Policy, pool=pool),
        reference=hf.place(Reference, PolicyConfig(), pool=pool),
    ),
    dims={B: 2, P: 512, R: 1024},
)
