"""The clip is around log-probs of the current actor, and the loss has no weight by those of the engine.

Seen: https://github.com/radixark/miles/pull/1829
Elsewhere: silent with the default flags; the pull request demands a flag that says how the lag is corrected.
"""

import hfdsl as hf
from hfdsl.rl.batches import ActorMetrics, Advantages, B, Experience, P, Prompts, R, ScoredRollout
from hfdsl.rl.losses import Clip
from hfdsl.rl.sampling import with_proximal
from hfdsl.rl.workers import (
    Actor,
    ActorConfig,
    GenerationConfig,
    ModelConfig,
    Reward,
    Sampler,
    SamplerConfig,
    Verifier,
    VerifierConfig,
)


@hf.function
def gains(scored: ScoredRollout) -> Advantages:
    return Advantages(advantage=scored.score.tensor[:, None] * scored.response_mask.tensor)


@hf.dataflow
def step(prompts: Prompts, actor: Actor, engine: Sampler, reward: Reward) -> ActorMetrics:
    rollout = engine.generate(prompts)
    batch = hf.queue(hf.merge(ScoredRollout, rollout, reward.score(prompts, rollout)), lag=1, late="wait")
    experience = hf.merge(Experience, with_proximal(batch, actor), gains(batch))
    metrics = actor.update(experience, loss=Clip(0.2, correction=None))  # <- HF750
    hf.sync(actor, engine)
    return metrics


train, serve = hf.ResourcePool([4]), hf.ResourcePool([2])
model, generation = ModelConfig(path="models/policy"), GenerationConfig(max_tokens=4)
places = hf.Deployment(
    actor=hf.place(Actor, ActorConfig(model, generation), pool=train),
    engine=hf.place(Sampler, SamplerConfig(model, generation), pool=serve),
    reward=hf.place(Verifier, VerifierConfig(dataset="spell_backward", tokenizer="models/policy"), pool=serve),
)
experiment = hf.Experiment(step, places, dims={B: 64, P: 512, R: 4})
