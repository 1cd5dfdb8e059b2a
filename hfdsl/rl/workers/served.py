"""Roles whose work a server does that speaks the OpenAI API: frozen teachers, baselines and judges."""

from __future__ import annotations

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.rl.batches import Prompts, Rollout, Scores, Sequences
from hfdsl.rl.workers.config import JudgeConfig, ServedConfig
from hfdsl.rl.workers.reward import Reward


class ServedPolicy(hf.Worker):
    """Generates by a server's ``/completions``. Its weights are the server's; nobody can bring it others."""

    def __init__(self, config: ServedConfig) -> None:
        from hfdsl.rl.models.http_client import Client

        self.config, self.client = config, Client(config.server)

    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts, *, greedy: bool = False) -> Rollout:
        """Responses with the log-probs that the server tells, sampled or, with ``greedy``, of the likeliest tokens."""
        from hfdsl.rl.models.openai_api import server_rollout

        return Rollout(**server_rollout(self.client, prompts, self.config, greedy=greedy))


class Judge(Reward):
    """Scores a response by the number in what a server's ``/chat/completions`` says of it."""

    def __init__(self, config: JudgeConfig) -> None:
        from hfdsl.rl.models.http_client import Client
        from hfdsl.rl.models.openai_api import JudgeRequests

        self.client, self.judgement = Client(config.server), JudgeRequests(config)

    @register(Dispatch.THREE_D_PROTO)
    def score(self, prompts: Prompts, sequences: Sequences) -> Scores:
        """What every response is worth to the judge."""
        return Scores(score=self.judgement.scores(self.client, prompts, sequences))
