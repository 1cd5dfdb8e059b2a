# mypy: disable-error-code="empty-body"
"""128 samples are fewer than one global batch of 256, so training has 128 // 256 = 0 iterations.

Seen: https://github.com/THUDM/slime/pull/2366
Elsewhere: Megatron's scheduler fails with an assertion that has no message, while the actor is being built.
"""

import hfdsl as hf
from tests.corpus.vocabulary import Actor, ActorMetrics, Advantages, B, P, PolicyConfig, Prompts, R, Rollout

NUM_ROLLOUT, ROLLOUT_BATCH, SAMPLES, GLOBAL_BATCH = 2, 8, 8, 256


class Experience(Rollout, Advantages):
    """A rollout and the update that learns from it."""


@hf.function(rows=hf.Grouped(SAMPLES))
def grouped(rollout: Rollout) -> Experience: ...


@hf.dataflow
def train(prompts: Prompts, actor: Actor) -> list[ActorMetrics]:
    samples = grouped(actor.generate(hf.repeat(prompts, SAMPLES)))
    iterations = NUM_ROLLOUT * ROLLOUT_BATCH * SAMPLES // GLOBAL_BATCH
    parts = hf.minibatches(samples, iterations)  # <- HF304
    return [actor.update(part, part) for part in parts]


experiment = hf.Experiment(
    train,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([8]), mesh=hf.Mesh(dp=2, tp=4))),
    dims={B: ROLLOUT_BATCH, P: 1024, R: 1024},
)
