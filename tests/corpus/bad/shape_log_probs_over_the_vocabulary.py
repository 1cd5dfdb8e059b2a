# mypy: disable-error-code="empty-body, arg-type"
"""A record declares log-probabilities over the whole vocabulary, and those of the chosen tokens are put into it.

Seen: https://github.com/CarperAI/trlx/issues/371
Elsewhere: nothing checks the type in the annotation; a reader finds the real shape by printing it.
"""

import hfdsl as hf
from hfdsl import Dispatch, f32, i64, register
from tests.corpus.vocabulary import B, P, Prompts, R, Rollout, T


class V(hf.Dim):
    """Words of the vocabulary."""


class PPORLElement(hf.Batch):
    ids: i64[B, T]
    logprobs: f32[B, R, V]


class Orchestrator(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def make_experience(self, prompts: Prompts) -> Rollout: ...


@hf.dataflow
def ppo(prompts: Prompts, orchestrator: Orchestrator) -> PPORLElement:
    rollout = orchestrator.make_experience(prompts)
    return PPORLElement(ids=rollout.ids, logprobs=rollout.log_probs)  # <- HF210


experiment = hf.Experiment(
    ppo, hf.Deployment(orchestrator=hf.place(Orchestrator, pool=hf.ResourcePool([1]))), dims={B: 128, P: 64, R: 48}
)
