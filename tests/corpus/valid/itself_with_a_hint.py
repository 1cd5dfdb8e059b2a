"""A policy that sees a hint is the teacher of itself without one."""

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
    Sequences,
    prompts_of,
)


@hf.function
def taught(rollout: Rollout, teacher: RefLogProbs) -> Advantages:
    return Advantages(advantages=teacher.ref_log_probs.tensor - rollout.log_probs.tensor)


@hf.function
def hinted(prompts: Prompts, rollout: Rollout) -> Sequences:
    import torch

    length = prompts.ids.tensor.shape[1]
    ids = torch.cat([prompts.ids.tensor.flip(1), rollout.ids.tensor[:, length:]], dim=1)
    return Sequences(ids=ids, response_mask=rollout.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, learner: Learner) -> ActorMetrics:
    rollout = learner.generate(prompts)
    graded = learner.log_probs_now(hinted(prompts, rollout))
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
