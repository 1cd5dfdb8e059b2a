"""One response a prompt is sampled and scored; then response and score are repeated, and compared."""

import hfdsl as hf
from tests.corpus.advantages import centered
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    answers = actor.generate(prompts)
    scores = hf.repeat(reward.score(answers), 4)
    rollout = hf.repeat(answers, 4)
    return actor.update(rollout, centered(scores, rollout, group=4))  # <- HF337


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
