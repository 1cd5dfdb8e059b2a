"""A teacher has a temperature of its own: a function of the program knows what to do with its log-probs."""

import hfdsl as hf
from tests.corpus.vocabulary import (
    ActorMetrics,
    Advantages,
    B,
    Learner,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reference,
    RefLogProbs,
    Rollout,
    prompts_of,
)


class Warm(Learner):
    def __init__(self, config: PolicyConfig, temperature: float = 1.0) -> None:
        super().__init__(config)

    @staticmethod
    def policy_temperature(config: PolicyConfig, temperature: float = 1.0) -> float:
        return temperature


class WarmTeacher(Reference):
    def __init__(self, config: PolicyConfig, temperature: float = 1.0) -> None:
        super().__init__(config)

    @staticmethod
    def policy_temperature(config: PolicyConfig, temperature: float = 1.0) -> float:
        return temperature


@hf.function
def nearer(rollout: Rollout, teacher: RefLogProbs) -> Advantages:
    gap = teacher.ref_log_probs.tensor - rollout.log_probs.tensor
    return Advantages(advantages=gap * rollout.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, learner: Warm, teacher: WarmTeacher) -> ActorMetrics:
    rollout = learner.generate(prompts)
    return learner.learn(rollout, nearer(rollout, teacher.log_probs(rollout)))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Warm, PolicyConfig(), pool=pool),
        teacher=hf.place(WarmTeacher, PolicyConfig(), 2.0, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
