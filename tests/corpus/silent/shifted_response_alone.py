"""Logits and tokens are those of the response."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.learners import Causal
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    RefLogProbs,
    Reward,
    Rollout,
    Sequences,
    gains,
    prompts_of,
)


class Reference(Causal):
    @register(Dispatch.THREE_D_PROTO)
    def log_probs(self, sequences: Sequences) -> RefLogProbs:
        count = self.config.response
        logits, response = self.model(sequences.ids.tensor).logits[:, -count:], sequences.ids.tensor[:, -count:]
        picked = logits.log_softmax(-1).gather(-1, response[..., None])  # <- HF359
        return RefLogProbs(ref_log_probs=picked[..., 0])


@hf.function
def weighted(rollout: Rollout, ref: RefLogProbs) -> Rollout:
    kept = rollout.response_mask.tensor & (ref.ref_log_probs.tensor > -10.0)
    return Rollout(ids=rollout.ids, response_mask=kept, log_probs=rollout.log_probs)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reference: Reference, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    kept = weighted(rollout, reference.log_probs(rollout))
    return actor.update(kept, gains(reward.score(kept), kept))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        reference=hf.place(Reference, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
