"""GSPO: one ratio a sequence; a column with a row dim alone, made of token columns; two mini-batches."""

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.vocabulary import Actor as Policy
from tests.corpus.vocabulary import ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, Rollout, Scores, prompts_of

GROUP = 4


class Group(Rollout):
    advantage: f32[B]
    old_sequence_log_prob: f32[B]


class Actor(Policy):
    @register(Dispatch.THREE_D_PROTO)
    def update_sequences(self, group: Group) -> ActorMetrics:
        now = self.chosen(group.ids.tensor).mean(1)
        ratio = (now - group.old_sequence_log_prob.tensor).exp().clamp(0.9, 1.1)
        return ActorMetrics(loss=float(-(ratio * group.advantage.tensor).mean()))


@hf.function(rows=hf.Grouped(GROUP))
def grouped(rollout: Rollout, scores: Scores) -> Group:
    rewards = scores.reward.tensor.view(-1, GROUP)
    centered = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)
    mean = rollout.log_probs.tensor.mean(1)
    return Group(
        ids=rollout.ids,
        response_mask=rollout.response_mask,
        log_probs=rollout.log_probs,
        advantage=centered.flatten(),
        old_sequence_log_prob=mean,
    )


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> list[ActorMetrics]:
    rollout = actor.generate(hf.repeat(prompts, GROUP))
    group = grouped(rollout, reward.score(rollout))
    return [actor.update_sequences(part) for part in hf.minibatches(group, 2)]


pool = hf.ResourcePool([2, 2])
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=pool), reward=hf.place(Reward, pool=pool)),
    dims={B: 4, P: 3, R: 4},
    batches=prompts_of(4),
)
