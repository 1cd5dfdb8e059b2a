"""What a filter keeps is padded and scored; the scores of pad rows never come back."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Rollout, Scores, prompts_of


class Kept(hf.Batch):
    keep: hf.bool_[B]


@hf.function
def even(rollout: Rollout) -> Kept:
    return Kept(keep=rollout.ids.tensor[:, -1] % 2 == 0)


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO, pad="repeat_last")
    def score(self, rollout: Rollout) -> Scores:
        return Scores(reward=rollout.log_probs.tensor.sum(1))


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Judge) -> Scores:
    rollout = actor.generate(prompts)
    return reward.score(hf.filter(rollout, even(rollout).keep))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=pool), reward=hf.place(Judge, pool=pool)),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
