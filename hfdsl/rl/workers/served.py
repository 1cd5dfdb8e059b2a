"""Roles that call a server with the OpenAI API: frozen teachers, baselines and judges."""

from __future__ import annotations

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.rl.batches import Prompts, Rollout, Scores, Sequences
from hfdsl.rl.workers.config import JudgeConfig, ServedConfig
from hfdsl.rl.workers.gpu_memory import no_gpu_bytes
from hfdsl.rl.workers.obstacles import refuse, served_obstacles
from hfdsl.rl.workers.reward import Reward


class ServedPolicy(hf.Worker):
    """Generates by a server's ``/completions``. Its weights are the server's, and ``hf.sync`` cannot replace them."""

    obstacles = staticmethod(served_obstacles)

    def __init__(self, config: ServedConfig) -> None:
        from hfdsl.rl.models.http_client import Client

        refuse(served_obstacles(self.mesh, config))
        self.config, self.client = config, Client(config.server)

    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts, *, greedy: bool = False) -> Rollout:
        """Responses with the server's log-probs, sampled or, with ``greedy``, of the likeliest tokens."""
        from hfdsl.rl.models.openai_api import server_rollout

        return Rollout(**server_rollout(self.client, prompts, self.config, greedy=greedy))


class Judge(Reward):
    """Scores a response by the number in a judge's answer, from a server's ``/chat/completions``."""

    gpu_bytes = staticmethod(no_gpu_bytes)
    obstacles = staticmethod(served_obstacles)

    def __init__(self, config: JudgeConfig) -> None:
        from hfdsl.rl.models.http_client import Client
        from hfdsl.rl.models.openai_api import JudgeRequests

        refuse(served_obstacles(self.mesh, config))
        self.client, self.requests = Client(config.server), JudgeRequests(config)

    @register(Dispatch.THREE_D_PROTO)
    def score(self, prompts: Prompts, sequences: Sequences) -> Scores:
        """The judge's score of every response."""
        return Scores(score=self.requests.scores(self.client, prompts, sequences))
