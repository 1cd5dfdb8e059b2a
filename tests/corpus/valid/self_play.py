"""Self-play: two trained policies of one class answer the same prompts, and each learns from the other's score."""

import hfdsl as hf
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    Advantages,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    Scores,
    prompts_of,
)


@hf.function
def won(mine: Scores, theirs: Scores, rollout: Rollout) -> Advantages:
    ahead = (mine.reward.tensor - theirs.reward.tensor).sign()
    return Advantages(advantages=ahead[:, None] * rollout.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, first: Actor, second: Actor, judge: Reward) -> dict[str, ActorMetrics]:
    a, b = first.generate(prompts), second.generate(prompts)
    score_a, score_b = judge.score(a), judge.score(b)
    return {
        "first": first.update(a, won(score_a, score_b, a)),
        "second": second.update(b, won(score_b, score_a, b)),
    }


left, right = hf.ResourcePool([2]), hf.ResourcePool([4])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        first=hf.place(Actor, PolicyConfig(learning_rate=0.2), pool=left),
        second=hf.place(Actor, PolicyConfig(), pool=right, mesh=hf.Mesh(dp=2, tp=2)),
        judge=hf.place(Reward, pool=left),
    ),
    dims={B: 6, P: 3, R: 4},
    batches=prompts_of(6),
)
