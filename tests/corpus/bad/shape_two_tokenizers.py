# mypy: disable-error-code="empty-body, arg-type"
"""Actor and critic have different tokenizers: a response has 38 actor tokens, but 29 critic tokens.

Seen: https://github.com/nebuly-ai/optimate/issues/312
Elsewhere: a RuntimeError (29 against 38 at dimension 1) in the surrogate loss of the first update.
"""

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Rollout


class C(hf.Dim):
    """Response tokens of the critic's tokenizer."""


class CriticAdvantages(hf.Batch):
    advantages: f32[B, C]


class Gpt2Critic(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def advantages(self, rollout: Rollout) -> CriticAdvantages: ...


class Loss(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def surrogate(self, log_probs: f32[B, R], advantages: f32[B, R]) -> ActorMetrics: ...


@hf.dataflow
def learn(prompts: Prompts, actor: Actor, critic: Gpt2Critic, loss: Loss) -> ActorMetrics:
    rollout = actor.generate(prompts)
    judged = critic.advantages(rollout)
    return loss.surrogate(rollout.log_probs, judged.advantages)  # <- HF210


pool = hf.ResourcePool([1])
experiment = hf.Experiment(
    learn,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        critic=hf.place(Gpt2Critic, pool=pool),
        loss=hf.place(Loss, pool=pool),
    ),
    dims={B: 1, P: 64, R: 38, C: 29},
)
