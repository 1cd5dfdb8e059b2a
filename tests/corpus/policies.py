"""Roles that say whose log-probs they give and take: the programs on ratios share them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import hfdsl as hf
from hfdsl import Dispatch, Execute, f32, register
from tests.corpus.advantages import Experience
from tests.corpus.vocabulary import Actor as Sampling
from tests.corpus.vocabulary import ActorMetrics, Advantages, B, Prompts, R, Rollout, Sequences, Table

if TYPE_CHECKING:
    import torch


class OldLogProbs(hf.Batch):
    log_probs: f32[B, R]


class ProximalExperience(Experience):
    proximal: f32[B, R]


class Policy(Sampling):
    """Samples, gives log-probs, and learns by the ratio to its old ones."""

    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("policy")
    def sample(self, prompts: Prompts) -> Rollout:
        return super().generate(prompts)

    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("policy")
    def log_probs(self, sequences: Sequences) -> OldLogProbs:
        return OldLogProbs(log_probs=self.chosen(sequences.ids.tensor))

    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy", ratio="log_probs")
    def learn(self, experience: Experience) -> ActorMetrics:
        return self._step(experience, experience.log_probs.tensor)

    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy", ratio="proximal")
    def learn_decoupled(self, experience: ProximalExperience) -> ActorMetrics:
        return self._step(experience, experience.proximal.tensor)

    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def learn_from_others(self, experience: Experience) -> ActorMetrics:
        return self._step(experience, experience.log_probs.tensor)

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> list[list[float]]:
        rows: list[list[float]] = self.table.tolist()
        return rows

    def _step(self, experience: Experience, old: torch.Tensor) -> ActorMetrics:
        ratio = (self.chosen(experience.ids.tensor) - old).exp()
        weights = cast("Any", experience.advantages.tensor * ratio)
        return super().update(experience, Advantages(advantages=weights))


class Engine(Sampling):
    """Samples with weights that it gets, and hands them on."""

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def sample(self, prompts: Prompts) -> Rollout:
        return super().generate(prompts)

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: list[list[float]]) -> None:
        import torch

        self.table = torch.tensor(weights)

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> list[list[float]]:
        rows: list[list[float]] = self.table.tolist()
        return rows


class Frozen(Table):
    """A model that does not learn."""

    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("reference")
    def log_probs(self, sequences: Sequences) -> OldLogProbs:
        return OldLogProbs(log_probs=self.chosen(sequences.ids.tensor))


def experience_of(sequences: Sequences, log_probs: OldLogProbs, advantages: Advantages) -> Experience:
    """An experience with these old log-probs."""
    return Experience(
        ids=sequences.ids,
        response_mask=sequences.response_mask,
        log_probs=log_probs.log_probs,
        advantages=advantages.advantages,
    )
