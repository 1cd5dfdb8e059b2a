"""The agent masks the outputs of tools, and the experience leaves the mask out: the policy learns to write them."""

import hfdsl as hf
from hfdsl import Dispatch, bool_, register
from hfdsl.rl.batches import B, Experience, P, Prompts, R, Rollout
from hfdsl.rl.functions import group_advantages
from tests.corpus.ready_records import Judge, Loss, Policy, prompts_of
from tests.corpus.vocabulary import PolicyConfig


class Episodes(Rollout):
    loss_mask: bool_[B, R]


class Agent(Policy):
    """After an odd token comes the output of a tool, which the policy does not choose."""

    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("policy")
    def play(self, prompts: Prompts) -> Episodes:
        rollout = self.sample(prompts)
        mask = rollout.response_mask.tensor
        before = rollout.ids.tensor[:, -mask.shape[1] - 1 : -1]
        return Episodes(
            ids=rollout.ids,
            mask=rollout.mask,
            response_mask=mask,
            log_probs=rollout.log_probs,
            loss_mask=mask & (before % 2 == 0),
        )


@hf.dataflow
def program(prompts: Prompts, policy: Agent, judge: Judge) -> Loss:
    episodes = policy.play(hf.repeat(prompts, 4))
    advantages = group_advantages(episodes, judge.score(episodes), group=4)
    return policy.learn(hf.merge(Experience, episodes, advantages))  # <- HF356


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(policy=hf.place(Agent, PolicyConfig(), pool=pool), judge=hf.place(Judge, pool=pool)),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
