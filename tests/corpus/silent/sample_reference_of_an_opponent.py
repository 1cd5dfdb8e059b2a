"""Two policies of one class: the reference's log-probs are those of the other one's responses."""

import hfdsl as hf
from tests.corpus.advantages import less_divergence
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reference, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, opponent: Actor, reference: Reference, reward: Reward) -> ActorMetrics:
    mine, theirs = actor.generate(prompts), opponent.generate(prompts)
    ref = reference.log_probs(theirs)
    return actor.update(mine, less_divergence(mine, ref, reward.score(mine)))  # <- HF334


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        opponent=hf.place(Actor, PolicyConfig(), pool=pool),
        reference=hf.place(Reference, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
