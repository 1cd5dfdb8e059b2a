"""A small program to train: a policy that is a table of logits, and a reward for the letter that follows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from hfdsl.protocols.queueing import Late
from hfdsl.rl.batches import B, Informative, Outcome, Prompts, Rollout, Scores
from hfdsl.rl.functions import outcome

LETTERS = "abcdefgh"


@dataclass(frozen=True)
class Adam:
    learning_rate: float = 0.1
    betas: tuple[float, float] = (0.9, 0.99)


@dataclass(frozen=True)
class ToyConfig:
    size: int
    seed: int | None = None
    optimizer: Adam = field(default_factory=Adam)
    poison: int | None = None  # the update whose loss is not a number


class Metrics(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]
    weight: hf.Metric[float, Literal["first"]]


class Weighted(Rollout):
    score: f32[B]


class Policy(hf.Worker):
    """From the last letter of a prompt to every token of its response."""

    def __init__(self, config: ToyConfig) -> None:
        torch.set_num_threads(1)
        self.config = config
        if config.seed is not None:
            torch.manual_seed(config.seed)
        self.table = torch.nn.Embedding(config.size, config.size)
        self.optimizer = torch.optim.Adam(
            self.table.parameters(), lr=config.optimizer.learning_rate, betas=config.optimizer.betas
        )
        self.updates = 0

    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts, *, width: int, greedy: bool = False) -> Rollout:
        ids, mask = prompts.ids.tensor, prompts.mask.tensor
        with torch.no_grad():
            log_probs = self.table(ids[:, -1]).log_softmax(-1)[:, None].expand(-1, width, -1)
        draws = hf.current_call().uniforms(width)
        sampled = (log_probs.exp().cumsum(-1) < draws[..., None]).sum(-1).clamp(max=self.config.size - 1)
        response = log_probs.argmax(-1) if greedy else sampled
        real = torch.ones(len(ids), width, dtype=torch.bool)
        return Rollout(
            ids=torch.cat([ids, response], 1),
            mask=torch.cat([mask, real], 1),
            response_mask=real,
            log_probs=log_probs.gather(-1, response[..., None])[..., 0],
        )

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, weighted: Weighted) -> Metrics:
        width = weighted.response_mask.tensor.shape[1]
        last, response = weighted.ids.tensor[:, -width - 1], weighted.ids.tensor[:, -width:]
        log_probs = self.table(last).log_softmax(-1).gather(-1, response)
        noise = torch.rand(len(last), 1)  # of the rank's own stream
        loss = -(log_probs * (weighted.score.tensor[:, None] + 0.1 * noise)).mean()
        [gradient] = torch.autograd.grad(loss, [self.table.weight])
        self.table.weight.grad = self.axis("dp").all_reduce(gradient, "mean")
        self.optimizer.step()
        self.updates += 1
        value = float("nan") if self.updates == self.config.poison else float(loss.detach())
        return Metrics(loss=value, weight=float(self.table.weight.detach().double().sum()))

    def state(self) -> dict[str, Any]:
        return {"table": self.table.state_dict(), "adam": self.optimizer.state_dict(), "updates": self.updates}

    def load_state(self, state: dict[str, Any]) -> None:
        self.table.load_state_dict(state["table"])
        self.optimizer.load_state_dict(state["adam"])
        self.updates = state["updates"]


class Learner(Policy):
    """A policy whose weights others load."""

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=4)
    def update(self, weighted: Weighted) -> Metrics:
        return super().update(weighted)

    @register(Dispatch.ONE_TO_ALL, execute_mode=hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> dict[str, Any]:
        return {name: tensor.clone() for name, tensor in self.table.state_dict().items()}


class Guesser(Policy):
    """What samples in the place of a policy."""

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts, *, width: int, greedy: bool = False) -> Rollout:
        return super().generate(prompts, width=width, greedy=greedy)

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: dict[str, Any]) -> None:
        self.table.load_state_dict(weights)


class Unsaved(Learner):
    """It trains and keeps nothing in a checkpoint."""

    state = load_state = None  # type: ignore[assignment]  # as if it had none


class Forgetful(Guesser):
    """It keeps nothing of its weights in a checkpoint."""

    state = load_state = None  # type: ignore[assignment]  # as if it had none


class Follows(hf.Worker):
    """1 for the letter after the prompt's last one, a little less for others, as they are further away."""

    @register(Dispatch.DP_PROTO)
    def score(self, prompts: Prompts, rollout: Rollout) -> Scores:
        wanted, got = prompts.ids.tensor[:, -1:] + 1, rollout.ids.tensor[:, prompts.ids.tensor.shape[1] :]
        return Scores(score=(1 - (wanted - got).abs() / 16).mean(1))


class Keen(Follows):
    """Another reward, with arguments of its own."""

    def __init__(self, scale: float, *, bonus: int = 0) -> None:
        self.scale, self.bonus = scale, bonus

    @register(Dispatch.DP_PROTO)
    def score(self, prompts: Prompts, rollout: Rollout) -> Scores:
        return Scores(score=super().score(prompts, rollout).score.tensor * self.scale + self.bonus)


def follow(*, width: int = 2, repeats: int = 1) -> hf.Dataflow[..., Any]:
    """The dataflow for responses of a width."""

    @hf.dataflow
    def following(prompts: Prompts, policy: Policy, reward: Follows) -> tuple[Metrics, Outcome]:
        questions = hf.repeat(prompts, repeats)
        rollout = policy.generate(questions, width=width)
        scores = reward.score(questions, rollout)
        return policy.update(hf.merge(Weighted, rollout, scores)), outcome(rollout, scores)

    return following


@hf.dataflow
def ahead(
    prompts: Prompts, policy: Learner, guesser: Guesser, reward: Follows, *, lag: int = 2, late: Late = "wait"
) -> tuple[Metrics, Outcome]:
    """A guesser that samples while the policy learns."""
    rollout = guesser.generate(prompts, width=2)
    scores = reward.score(prompts, rollout)
    batch = hf.queue(hf.merge(Weighted, rollout, scores), lag=lag, late=late)
    metrics = policy.update(batch)
    hf.sync(policy, guesser)
    return metrics, outcome(rollout, scores)


@hf.function(rows=hf.GroupedBy("group"))
def good(scores: Scores, *, group: int, above: float) -> Informative:
    """The groups whose mean score is above a bound."""
    means = scores.score.tensor.view(-1, group).mean(1)
    return Informative(keep=(means > above).repeat_interleave(group))


@hf.dataflow
def asking(
    prompts: Prompts, policy: Policy, reward: Follows, *, group: int = 2, above: float = 0.7
) -> tuple[Weighted, Outcome]:
    questions = hf.repeat(prompts, group)
    rollout = policy.generate(questions, width=2)
    scores = reward.score(questions, rollout)
    kept = hf.filter(hf.merge(Weighted, rollout, scores), good(scores, group=group, above=above).keep, group=group)
    return kept, outcome(rollout, scores)


@hf.dataflow
def learning(weighted: Weighted, policy: Policy, *, parts: int = 1) -> list[Metrics]:
    return [policy.update(part) for part in hf.minibatches(weighted, parts)]


@hf.dataflow
def looking(prompts: Prompts, policy: Policy, reward: Follows) -> tuple[Outcome, Rollout, Scores]:
    rollout = policy.generate(prompts, width=2)  # sampled: its stream must continue too
    scores = reward.score(prompts, rollout)
    return outcome(rollout, scores), rollout, scores


@hf.dataflow
def judged(prompts: Prompts, policy: Policy, judge: Keen) -> Outcome:
    """An evaluation by another role than the reward of the training."""
    rollout = policy.generate(prompts, width=2, greedy=True)
    return outcome(rollout, judge.score(prompts, rollout))


def table(folder: Path, **changes: Any) -> dict[str, Any]:
    """The configuration of a run in a folder."""
    lines = folder / "letters.jsonl"
    if not lines.exists():
        rows = [f"{a}{b}" for a in LETTERS for b in LETTERS]
        lines.write_text("".join(f'{{"word": "{row}", "answer": "{row[::-1]}"}}\n' for row in rows))
        (folder / "unseen.jsonl").write_text("".join(f'{{"word": "{a}"}}\n' for a in LETTERS))
    defaults: dict[str, Any] = {
        "algorithm": "tests.rl.training.toy:follow",
        "deployment": {"pools": {"all": {"processes": [2], "gpu": False}}, "default": {"pool": "all"}},
        "dims": {"B": 6, "P": 3},
        "steps": 6,
        "output": str(folder / "run"),
        "data": {
            "source": {"kind": "JsonLines", "path": str(lines)},
            "tokenizer": {"kind": "Characters", "alphabet": LETTERS},
            "prompt": {"text": "{word}"},
        },
        "evaluation": {
            "algorithm": "tests.rl.training.toy:looking",
            "source": {"kind": "JsonLines", "path": str(folder / "unseen.jsonl")},
            "every": 2,
            "dims": {"B": 8},
        },
        "checkpoints": {"every": 3},
        "policy": {"size": 11, "optimizer": {"learning_rate": 0.05}},
    }
    return defaults | changes
