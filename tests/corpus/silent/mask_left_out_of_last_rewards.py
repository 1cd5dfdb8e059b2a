"""Records of the user's: a mask says where responses end, and the reward goes to the last column of all of them."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import (
    TOKENS,
    ActorMetrics,
    Advantages,
    B,
    Learner,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    Scores,
    prompts_of,
)


class Ending(Learner):
    """Samples until it says 0."""

    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("policy")
    def write(self, prompts: Prompts) -> Rollout:
        import torch

        ids = prompts.ids.tensor
        for draw in hf.current_call().uniforms(self.config.response).T:
            chances = self.table[ids[:, -1]].softmax(-1).cumsum(-1)
            ids = torch.cat([ids, (chances < draw[:, None]).sum(-1, keepdim=True).clamp(max=TOKENS - 1)], dim=1)
        ends = ids[:, -self.config.response :] == 0
        mask = ends.long().cumsum(1) - ends.long() == 0
        return Rollout(ids=ids, response_mask=mask, log_probs=self.chosen(ids) * mask)


@hf.function
def returns(scores: Scores, rollout: Rollout) -> Advantages:
    import torch

    rewards = torch.zeros_like(rollout.log_probs.tensor)
    rewards[:, -1] = scores.reward.tensor  # <- HF355
    return Advantages(advantages=rewards.flip(1).cumsum(1).flip(1) * rollout.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, actor: Ending, reward: Reward) -> ActorMetrics:
    rollout = actor.write(prompts)
    return actor.learn(rollout, returns(reward.score(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Ending, PolicyConfig(), pool=pool), reward=hf.place(Reward, pool=pool)),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
