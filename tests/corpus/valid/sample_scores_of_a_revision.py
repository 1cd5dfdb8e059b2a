"""A draft is trained with the score of its revision: what is scored depends on the draft."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import ActorMetrics, B, Learner, P, PolicyConfig, Prompts, R, Reward, Rollout, prompts_of


@hf.function
def to_revise(draft: Rollout, prompts: Prompts) -> Prompts:
    length = prompts.ids.tensor.shape[1]
    return Prompts(ids=draft.ids.tensor[:, -length:], answer=prompts.answer)


@hf.dataflow
def program(prompts: Prompts, learner: Learner, reward: Reward) -> ActorMetrics:
    draft = learner.generate(prompts)
    revised = learner.generate(to_revise(draft, prompts))
    return learner.learn(draft, gained(reward.score(revised), draft))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Learner, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
