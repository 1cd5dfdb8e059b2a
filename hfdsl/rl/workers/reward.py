"""Rewards: a score for each response as a whole."""

from __future__ import annotations

from abc import abstractmethod

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.protocols.offloading import Part
from hfdsl.rl.batches import Costs, Prompts, Scores, Sequences
from hfdsl.rl.workers.config import RewardConfig
from hfdsl.rl.workers.gpu_memory import gpu_bytes
from hfdsl.rl.workers.slicing import sliced


class Reward(hf.Worker):
    """The base class of rewards; place a ``RewardModel``, a ``Verifier``, a ``Judge``, or a class of your own."""

    @register(Dispatch.THREE_D_PROTO)
    @abstractmethod
    def score(self, prompts: Prompts, sequences: Sequences) -> Scores:
        """The score of every response."""
        ...


class RewardModel(Reward):
    """A transformer with a linear head, whose number at the last token of a response is its score."""

    gpu_bytes = staticmethod(gpu_bytes)
    sliced = staticmethod(sliced)

    def __init__(self, config: RewardConfig) -> None:
        from hfdsl.rl.models.policies import scorer

        self.config = config
        self.model = scorer(config.model, self.axis("tp"), packing=config.batching.packing).requires_grad_(False)

    @register(Dispatch.THREE_D_PROTO)
    def score(self, prompts: Prompts, sequences: Sequences) -> Scores:
        """The score of every response."""
        from hfdsl.rl.models.scoring import scores

        return Scores(score=scores(self.model, sequences, self.config.batching, self.config.autocast))

    @register(Dispatch.THREE_D_PROTO)
    def cost(self, prompts: Prompts, sequences: Sequences) -> Costs:
        """The same number as a cost, for a model that was trained to predict harm."""
        from hfdsl.rl.models.scoring import scores

        return Costs(cost=scores(self.model, sequences, self.config.batching, self.config.autocast))

    def offload(self, part: Part) -> None:
        """Move the weights to the host while the role is idle."""
        from hfdsl.rl.models.offloading import model_to_host

        model_to_host(self.model)

    def onload(self, part: Part) -> None:
        """Move the weights back to the device."""
        from hfdsl.rl.models.offloading import model_to_device

        model_to_device(self.model)
