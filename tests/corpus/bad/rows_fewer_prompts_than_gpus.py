# mypy: disable-error-code="empty-body"
"""32 prompts per step are split over the 64 data-parallel ranks of eight nodes.

Seen: https://github.com/verl-project/verl/issues/606
Elsewhere: verl runs the initial validation to its end, then the driver asserts equal chunks at the first training step.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import Advantages, B, P, Prompts, R, Rollout, Scores


class ActorRollout(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def generate_sequences(self, prompts: Prompts) -> Rollout: ...

    @register(Dispatch.DP_PROTO)
    def update_actor(self, rollout: Rollout, advantages: Advantages) -> None: ...


class Verifier(hf.Worker):
    @register(Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
    def score(self, rollout: Rollout) -> Scores: ...


@hf.function
def outcome_advantages(scores: Scores, rollout: Rollout) -> Advantages: ...


@hf.dataflow
def grpo(prompts: Prompts, actor: ActorRollout, verifier: Verifier) -> Rollout:
    rollout = actor.generate_sequences(prompts)  # <- HF310
    actor.update_actor(rollout, outcome_advantages(verifier.score(rollout), rollout))
    return rollout


experiment = hf.Experiment(
    grpo,
    hf.Deployment(
        actor=hf.place(ActorRollout, pool=hf.ResourcePool([8] * 8)),
        verifier=hf.place(Verifier, pool=hf.ResourcePool([1], use_gpu=False)),
    ),
    dims={B: 32, P: 1024, R: 8192},
)
