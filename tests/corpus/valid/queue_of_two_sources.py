"""A policy and a draft model learn side by side, and late prompts of the policy are dispatched again."""

from collections.abc import Iterator

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    Advantages,
    B,
    Engine,
    Learner,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    Scored,
    gains,
    prompts_of,
)


class Teacher(Actor):
    @register(Dispatch.DP_PROTO)
    @hf.reads("teacher")
    def answer(self, prompts: Prompts) -> Rollout:
        return self.generate(prompts)


class Draft(Actor):
    @register(Dispatch.DP_PROTO)
    @hf.writes("draft")
    def imitate(self, answers: Rollout) -> ActorMetrics:
        return self.update(answers, Advantages(advantages=answers.response_mask.tensor.float()))


@hf.dataflow
def program(
    prompts: Prompts,
    hard: Prompts,
    learner: Learner,
    engine: Engine,
    reward: Reward,
    draft: Draft,
    teacher: Teacher,
) -> tuple[ActorMetrics, ActorMetrics]:
    rollout = engine.sample(prompts)
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    batch = hf.queue(scored, lag=2, late="refill")
    answers = hf.queue(teacher.answer(hard), lag=2, late="wait")
    metrics = learner.learn(batch, gains(batch, batch))
    hf.sync(learner, engine)
    return metrics, draft.imitate(answers)


train, serve, distill, config = hf.ResourcePool([4]), hf.ResourcePool([2]), hf.ResourcePool([2]), PolicyConfig()
places = hf.Deployment(
    learner=hf.place(Learner, config, pool=train),
    engine=hf.place(Engine, config, pool=serve),
    reward=hf.place(Reward, pool=serve),
    draft=hf.place(Draft, config, pool=distill),
    teacher=hf.place(Teacher, config, pool=hf.ResourcePool([2])),
)


def pairs() -> Iterator[tuple[Prompts, Prompts]]:
    yield from zip(prompts_of(8)(), prompts_of(8)(), strict=True)


experiment = hf.Experiment(program, places, dims={B: 8, P: 3, R: 4}, batches=pairs)
