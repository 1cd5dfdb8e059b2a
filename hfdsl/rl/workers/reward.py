"""Rewards: a score for each response as a whole."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.protocols.offloading import Part
from hfdsl.rl.batches import Costs, Pairs, PreferenceMetrics, Prompts, Scores, Sequences
from hfdsl.rl.hub import local_folder
from hfdsl.rl.losses import BradleyTerry
from hfdsl.rl.workers.config import CriticConfig, RewardConfig, learning
from hfdsl.rl.workers.gpu_memory import gpu_bytes, parameter_count
from hfdsl.rl.workers.kept_bytes import kept_bytes
from hfdsl.rl.workers.obstacles import obstacles, refuse
from hfdsl.rl.workers.slicing import sliced, vocabulary
from hfdsl.rl.workers.state_bytes import SCORE_HEAD, saved_shapes


class Reward(hf.Worker):
    """The base class of rewards; place a ``RewardModel``, a ``Verifier``, a ``Judge``, or a class of your own."""

    @register(Dispatch.THREE_D_PROTO)
    @abstractmethod
    def score(self, prompts: Prompts, sequences: Sequences) -> Scores:
        """The score of every response."""
        ...


def equal_scores(config: RewardConfig) -> str | None:
    """Why a reward model gives every response the same score, for checks; None if its files have a score head.

    >>> from hfdsl.rl.workers.config import ModelConfig
    >>> equal_scores(RewardConfig(ModelConfig(config={"model_type": "qwen2"})))
    'its model has no files, so its score head is 0'
    """
    if config.model.path is None:
        return "its model has no files, so its score head is 0"
    saved = saved_shapes(local_folder(config.model.path))
    if not saved or any(name.endswith(SCORE_HEAD) for name in saved):
        return None  # files that are not here may have it
    return f"the files of '{config.model.path}' have no '{SCORE_HEAD}', so its score head is 0"


class RewardModel(Reward):
    """A transformer with a linear head, whose number at the last token of a response is its score."""

    equal_scores = staticmethod(equal_scores)
    gpu_bytes = staticmethod(gpu_bytes)
    parameter_count = staticmethod(parameter_count)
    obstacles = staticmethod(obstacles)
    sliced = staticmethod(sliced)
    vocabulary = staticmethod(vocabulary)

    def __init__(self, config: RewardConfig) -> None:
        from hfdsl.rl.models.policies import scorer

        refuse(obstacles(self.mesh, config))
        self.config = config
        self.model = scorer(config.model, self.axis("tp"), packing=config.batching.packing).requires_grad_(False)

    @register(Dispatch.THREE_D_PROTO)
    def score(self, prompts: Prompts, sequences: Sequences) -> Scores:
        """The score of every response."""
        from hfdsl.rl.models.scoring import scores

        return Scores(score=scores(self.model, sequences, self.config.batching, self.config.autocast))

    @register(Dispatch.THREE_D_PROTO)
    def cost(self, prompts: Prompts, sequences: Sequences) -> Costs:
        """The cost of every response: the model's score, for a model trained to predict harm."""
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


class RewardLearner(Reward):
    """A reward model that learns from pairs of responses; ``hfdsl export`` saves it for ``RewardModel``."""

    gpu_bytes = staticmethod(gpu_bytes)
    parameter_count = staticmethod(parameter_count)
    kept_bytes = staticmethod(kept_bytes)
    learning = staticmethod(learning)
    obstacles = staticmethod(obstacles)
    sliced = staticmethod(sliced)
    vocabulary = staticmethod(vocabulary)

    def __init__(self, config: CriticConfig) -> None:
        from hfdsl.rl.models.learning import Learner
        from hfdsl.rl.models.policies import scorer

        refuse(obstacles(self.mesh, config))
        self.config = config
        packing = config.batching.packing
        self.model = scorer(config.model, self.axis("tp"), config.lora, config.training.autocast, packing=packing)
        self.learner = Learner(self.model, self.model.base_model, config.training, self.axis("dp"))

    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("reward")
    def score(self, prompts: Prompts, sequences: Sequences) -> Scores:
        """The score of every response."""
        from hfdsl.rl.models.scoring import scores

        return Scores(score=scores(self.model, sequences, self.config.batching, self.config.training.autocast))

    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("reward")
    def score_pairs(self, pairs: Pairs) -> Scores:
        """The score of every response of pairs, f32[B]."""
        from hfdsl.rl.models.scoring import scores

        return Scores(score=scores(self.model, pairs, self.config.batching, self.config.training.autocast))

    @register(Dispatch.THREE_D_PROTO, rows=hf.Grouped(2))
    @hf.writes("reward")
    def prefer(self, pairs: Pairs, *, loss: BradleyTerry) -> PreferenceMetrics:
        """One optimizer step on the whole batch of pairs."""
        from hfdsl.rl.models.updates import ranking_update

        return PreferenceMetrics(**ranking_update(self.model, self.learner, pairs, loss, self.config, self.axis("dp")))

    def state(self) -> dict[str, Any]:
        """The state in a checkpoint: weights, the optimizer's states, the number of steps."""
        return self.learner.state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.learner.load_state(state)

    def offload(self, part: Part) -> None:
        """Move a part of the role to the host while it is idle."""
        self.learner.offload(part)

    def onload(self, part: Part) -> None:
        """Move the part back to the device."""
        self.learner.onload(part)
