"""All responses have the same length, so that a statistic of all columns has no padding in it."""

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.rl.batches import Advantages, B, Experience, P, Prompts, R, Rewards, Rollout
from hfdsl.rl.functions import kl_penalized_rewards
from tests.corpus.ready_records import Judge, Loss, Policy, Reference, prompts_of
from tests.corpus.vocabulary import TOKENS, PolicyConfig


class Endless(Policy):
    """Samples tokens up to the full length."""

    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("policy")
    def write(self, prompts: Prompts) -> Rollout:
        import torch

        ids = prompts.ids.tensor
        for draw in hf.current_call().uniforms(self.config.response).T:
            chances = self.table[ids[:, -1]].softmax(-1).cumsum(-1)
            ids = torch.cat([ids, (chances < draw[:, None]).sum(-1, keepdim=True).clamp(max=TOKENS - 1)], dim=1)
        response_mask = torch.ones(len(ids), self.config.response, dtype=torch.bool)
        mask = torch.cat([prompts.mask.tensor, response_mask], dim=1)
        return Rollout(ids=ids, mask=mask, response_mask=response_mask, log_probs=self.chosen(ids))


@hf.function(rows=hf.Whole)
def normalized(rewards: Rewards) -> Advantages:
    gains = rewards.rewards.tensor.flip(1).cumsum(1).flip(1)
    return Advantages(advantage=(gains - gains.mean()) / (gains.std() + 1e-6))


@hf.dataflow
def program(prompts: Prompts, policy: Endless, reference: Reference, judge: Judge) -> Loss:
    rollout = policy.write(prompts)
    rewards = kl_penalized_rewards(rollout, reference.log_probs(rollout), judge.score(rollout))
    return policy.learn(hf.merge(Experience, rollout, normalized(rewards)))


pool, config = hf.ResourcePool([2]), PolicyConfig()
experiment = hf.Experiment(
    program,
    hf.Deployment(
        policy=hf.place(Endless, config, pool=pool),
        reference=hf.place(Reference, config, pool=pool),
        judge=hf.place(Judge, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
