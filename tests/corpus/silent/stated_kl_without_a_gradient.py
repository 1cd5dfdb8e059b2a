"""The KL to the reference is in the loss by an estimator whose gradient is 0 on average."""

import hfdsl as hf
from hfdsl.rl.batches import B, Experience, P, Prompts, R
from hfdsl.rl.functions import group_advantages
from hfdsl.rl.losses import Clip
from tests.corpus.ready_records import Judge, Loss, Reference, Regularized, prompts_of
from tests.corpus.vocabulary import PolicyConfig


@hf.dataflow
def program(prompts: Prompts, policy: Regularized, reference: Reference, judge: Judge) -> Loss:
    rollout = policy.sample(hf.repeat(prompts, 4))
    advantages = group_advantages(rollout, judge.score(rollout), group=4)
    experience = hf.merge(Experience, rollout, advantages, reference.log_probs(rollout))
    return policy.learn_by(experience, loss=Clip(kl=0.04, estimator="k1"))  # <- HF946


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        policy=hf.place(Regularized, PolicyConfig(), pool=pool),
        reference=hf.place(Reference, PolicyConfig(), pool=pool),
        judge=hf.place(Judge, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
