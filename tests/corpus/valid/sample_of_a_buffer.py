"""Fresh responses and those of a replay buffer, each with its own scores; the buffer's are a baseline too."""

from collections.abc import Iterator

import hfdsl as hf
from tests.corpus.advantages import above, gained
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, Rollout, prompts_of


def batches() -> Iterator[tuple[Prompts, Rollout]]:
    import torch

    [prompts] = prompts_of(8)()
    ids, mask = torch.arange(56).view(8, 7) % 8, torch.ones(8, 4, dtype=torch.bool)
    yield prompts, Rollout(ids=ids, response_mask=mask, log_probs=torch.zeros(8, 4))


@hf.dataflow
def program(prompts: Prompts, buffer: Rollout, actor: Actor, reward: Reward) -> list[ActorMetrics]:
    fresh = actor.generate(prompts)
    scores, baseline = reward.score(fresh), reward.score(buffer)
    return [actor.update(fresh, above(scores, baseline, fresh)), actor.update(buffer, gained(baseline, buffer))]


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=batches,
)
