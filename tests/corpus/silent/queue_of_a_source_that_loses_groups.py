"""Late samples are dropped, and the prompts of a teacher that a draft model learns from pile up."""

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
    batch = hf.queue(scored, lag=2, late="drop")  # <- HF757
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
experiment = hf.Experiment(program, places, dims={B: 64, P: 512, R: 4})
