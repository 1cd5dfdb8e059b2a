"""The student is its own teacher, and has nothing to learn."""

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
    RefLogProbs,
    Rollout,
    prompts_of,
)


@hf.function
def taught(rollout: Rollout, teacher: RefLogProbs) -> Advantages:
    return Advantages(advantages=teacher.ref_log_probs.tensor - rollout.log_probs.tensor)


@hf.dataflow
def program(prompts: Prompts, learner: Learner) -> ActorMetrics:
    rollout = learner.generate(prompts)
    graded = learner.log_probs_now(rollout)  # <- HF340
    return learner.learn(rollout, taught(rollout, graded))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Learner, PolicyConfig(), pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
