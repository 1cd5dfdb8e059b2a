"""The policy: generates, learns, and gives its weights."""

from __future__ import annotations

from typing import Any

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.protocols.offloading import Part
from hfdsl.rl.batches import (
    ActorMetrics,
    Experience,
    ImitationMetrics,
    PreferenceMetrics,
    Preferences,
    Prompts,
    ReferenceLogProbs,
    Rollout,
    Sequences,
)
from hfdsl.rl.losses import DPO, PolicyLoss
from hfdsl.rl.workers.config import ActorConfig
from hfdsl.rl.workers.slicing import sliced

FROM_FIRST = hf.Protocol("FROM_FIRST", collect={"dp": "first", "pp": "last", "tp": "first"})
"""All ranks take part, and one of them gives the value."""


class Actor(hf.Worker):
    """The policy: generates, learns by any loss of ``hfdsl.rl.losses``, and gives its weights to other roles."""

    sliced = staticmethod(sliced)

    def __init__(self, config: ActorConfig) -> None:
        from hfdsl.rl.models.learning import Learner
        from hfdsl.rl.models.policies import policy, sampling

        self.config = config
        self.policy = policy(config.model, config.generation.temperature, self.axis("tp"))
        self.learner = Learner(self.policy, self.policy.model, config.training, self.axis("dp"))
        self.sampling = sampling(
            self.policy, config.model, config.generation, config.batching, config.training.autocast
        )

    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts, *, greedy: bool = False) -> Rollout:
        """Responses with their log-probs, sampled or, with ``greedy``, of the likeliest tokens."""
        from hfdsl.rl.models.policies import rollout

        return Rollout(**rollout(self.policy, prompts, self.sampling, greedy=greedy))

    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("policy")
    def log_probs(self, sequences: Sequences) -> ReferenceLogProbs:
        """The log-probs of another policy's responses; 0 on padding."""
        from hfdsl.rl.models.scoring import log_probs

        found = log_probs(self.policy, sequences, self.config.batching, self.config.training.autocast)
        return ReferenceLogProbs(ref_log_probs=found)

    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def update(self, experience: Experience, *, loss: PolicyLoss) -> ActorMetrics:
        """One optimizer step on the whole batch, of whatever size."""
        from hfdsl.rl.models.updates import policy_update

        return ActorMetrics(**policy_update(self.learner, experience, loss, self.config, self.axis("dp")))

    @register(Dispatch.THREE_D_PROTO, rows=hf.Grouped(2))
    @hf.writes("policy")
    def prefer(self, preferences: Preferences, *, loss: DPO) -> PreferenceMetrics:
        """One optimizer step on the whole batch of pairs."""
        from hfdsl.rl.models.updates import dpo_update

        return PreferenceMetrics(
            **dpo_update(self.policy, self.learner, preferences, loss, self.config, self.axis("dp"))
        )

    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def imitate(self, sequences: Sequences) -> ImitationMetrics:
        """One optimizer step of a supervised stage: the cross entropy of the responses."""
        from hfdsl.rl.models.updates import sft_update

        return ImitationMetrics(**sft_update(self.learner, sequences, self.config, self.axis("dp")))

    @register(FROM_FIRST)
    @hf.exports("policy")
    def weights(self) -> dict[str, Any]:
        """The policy's weights by name, a copy, for ``hf.sync``."""
        from hfdsl.rl.models.sharding import full_state_dict

        return full_state_dict(self.policy)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: weights, the optimizer's states, steps."""
        return self.learner.state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.learner.load_state(state)

    def offload(self, part: Part) -> None:
        """A part of the role goes to the host while it is idle; with the weights, what generation keeps is given up."""
        if part == "weights":
            self.sampling.forget()
        self.learner.offload(part)

    def onload(self, part: Part) -> None:
        """It comes back."""
        self.learner.onload(part)
