"""A reward by rule, for responses that a program can verify."""

from __future__ import annotations

from hfdsl import Dispatch, register
from hfdsl.rl.batches import Prompts, Scores, Sequences
from hfdsl.rl.workers.config import VerifierConfig
from hfdsl.rl.workers.gpu_memory import no_gpu_bytes
from hfdsl.rl.workers.obstacles import refuse, verifier_obstacles
from hfdsl.rl.workers.reward import Reward


class Verifier(Reward):
    """Scores responses by the scorer of a reasoning-gym data set, or by a function."""

    gpu_bytes = staticmethod(no_gpu_bytes)
    obstacles = staticmethod(verifier_obstacles)

    def __init__(self, config: VerifierConfig) -> None:
        from hfdsl.rl.models.rule_rewards import RuleReward

        refuse(verifier_obstacles(self.mesh, config))
        self.rule = RuleReward(config)

    @register(Dispatch.THREE_D_PROTO)
    def score(self, prompts: Prompts, sequences: Sequences) -> Scores:
        """The score of every response."""
        import torch

        width = sequences.response_mask.tensor.shape[1]
        responses = sequences.ids.tensor[:, -width:].tolist()
        masks = sequences.response_mask.tensor.tolist()
        scores = [
            self.rule(row, [token for token, real in zip(response, mask, strict=True) if real], task)
            for row, (response, mask, task) in enumerate(zip(responses, masks, prompts.task.objects, strict=True))
        ]
        return Scores(score=torch.tensor(scores, dtype=torch.float32, device=sequences.ids.tensor.device))
