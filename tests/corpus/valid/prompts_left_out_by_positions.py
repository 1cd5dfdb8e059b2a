"""A mask of positions leaves prompts out."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.learners import Descending, LearnerMetrics, Sequence, joined
from tests.corpus.vocabulary import B, P, PolicyConfig, Prompts, R, Reward, Scores, prompts_of


class Policy(Descending):
    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def learn(self, sequence: Sequence, scores: Scores) -> LearnerMetrics:
        ids, gain = sequence.ids.tensor, scores.reward.tensor[:, None]
        now = self.table[ids[:, :-1]].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        import torch

        start = ids.shape[1] - self.config.response
        mask = sequence.attention_mask.tensor[:, 1:] & (torch.arange(1, ids.shape[1]) >= start)
        return self.descend(-(now * gain * mask).sum() / mask.sum())


@hf.dataflow
def program(prompts: Prompts, actor: Policy, reward: Reward) -> LearnerMetrics:
    rollout = actor.generate(prompts)
    return actor.learn(joined(rollout), reward.score(rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Policy, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
