"""A role that learns with an optimizer of torch: the programs on replicas and on states share it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import hfdsl as hf
from hfdsl import Dispatch, bool_, register
from tests.corpus.vocabulary import TOKENS, Actor, B, PolicyConfig, Prompts, Rollout, T, Table

if TYPE_CHECKING:
    import torch


class LearnerMetrics(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]


class Sequence(Rollout):
    """A prompt with its response, and the mask of what is no padding in both."""

    attention_mask: bool_[B, T]


@hf.function
def joined(rollout: Rollout) -> Sequence:
    """The tokens with a mask of attention, in which all of the prompt is."""
    import torch

    ids, response = rollout.ids.tensor, rollout.response_mask.tensor
    prompt = torch.ones(len(ids), ids.shape[1] - response.shape[1], dtype=torch.bool)
    return Sequence(
        ids=ids,
        response_mask=response,
        log_probs=rollout.log_probs,
        attention_mask=torch.cat([prompt, response], dim=1),
    )


class Bigrams(hf.Worker):
    """A model of which token follows which; a subclass learns."""

    def __init__(self, rate: float = 0.1) -> None:
        import torch

        self.table = torch.nn.Embedding(TOKENS, TOKENS)
        self.optimizer = torch.optim.SGD(self.table.parameters(), lr=rate)

    def loss(self, ids: torch.Tensor) -> torch.Tensor:
        """The negative log-probability of each token after the first, on average."""
        import torch

        return torch.nn.functional.cross_entropy(self.table(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


class Imitator(Bigrams):
    """Learns what it is shown, and saves what it has learned; plain SGD has no state of its own."""

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def imitate(self, prompts: Prompts) -> LearnerMetrics:
        loss = self.loss(prompts.ids.tensor)
        self.optimizer.zero_grad()
        loss.backward()
        for parameter in self.table.parameters():
            parameter.grad = self.axis("dp").all_reduce(parameter.grad, "mean")
        self.optimizer.step()
        return LearnerMetrics(loss=loss.item())

    def state(self) -> dict[str, Any]:
        return {"table": self.table.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.table.load_state_dict(state["table"])


class Descending(Actor):
    """A policy whose parameters an optimizer of torch changes; a subclass has the loss."""

    def __init__(self, config: PolicyConfig) -> None:
        import torch

        super().__init__(config)
        self.table.requires_grad_()
        self.optimizer = torch.optim.SGD([self.table], lr=config.learning_rate)

    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts) -> Rollout:
        import torch

        with torch.no_grad():
            return super().generate(prompts)

    def descend(self, loss: torch.Tensor) -> LearnerMetrics:
        """Take a step on a loss, averaged over the replicas."""
        self.optimizer.zero_grad()
        loss.backward()
        self.table.grad = self.axis("dp").all_reduce(self.table.grad, "mean")
        self.optimizer.step()
        return LearnerMetrics(loss=loss.item())


class Causal(Table):
    """A model that gives logits as those of transformers do, at every token those of the next one."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__(config)
        self.model: Any = lambda ids: SimpleNamespace(logits=self.table[ids])


class Tempered(Descending):
    """A policy that samples at a temperature; its model gives logits, as those of transformers do."""

    def __init__(self, config: PolicyConfig, temperature: float = 0.7) -> None:
        super().__init__(config)
        self.temperature = temperature
        self.model: Any = lambda ids: SimpleNamespace(logits=self.table[ids])

    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts) -> Rollout:
        return self.sampled(prompts, self.temperature)

    def sampled(self, prompts: Prompts, temperature: float) -> Rollout:
        """Responses to prompts, without log-probs."""
        import torch

        ids, count = prompts.ids.tensor, self.config.response
        for draw in hf.current_call().uniforms(count).T:
            logits = self.model(ids).logits[:, -1] / temperature
            token = (logits.softmax(-1).cumsum(-1) < draw[:, None]).sum(-1, keepdim=True)
            ids = torch.cat([ids, token.clamp(max=TOKENS - 1)], dim=1)
        mask = torch.ones(len(ids), count, dtype=torch.bool)
        return Rollout(ids=ids, response_mask=mask, log_probs=torch.zeros(len(ids), count))
