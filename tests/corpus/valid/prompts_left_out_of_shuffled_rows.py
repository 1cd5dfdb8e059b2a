"""Mini-batches are shuffled rows, and the mask of their tokens has those of responses alone."""

import torch

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.learners import Descending, LearnerMetrics, Sequence, joined
from tests.corpus.vocabulary import B, P, PolicyConfig, Prompts, R, Reward, Scores, prompts_of


class Policy(Descending):
    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def learn(self, sequence: Sequence, scores: Scores) -> LearnerMetrics:
        columns = {
            "ids": sequence.ids.tensor,
            "gain": scores.reward.tensor[:, None],
            "mask": sequence.response_mask.tensor,
        }
        losses = []
        for rows in torch.randperm(len(columns["ids"])).split(2):
            part = {name: column[rows] for name, column in columns.items()}
            tokens, mask = part["ids"], part["mask"]
            now = self.table[tokens[:, :-1]].log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
            now = now[:, -mask.shape[1] :]
            losses.append(-(now * part["gain"] * mask).sum() / mask.sum())
        return self.descend(torch.stack(losses).mean())


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
