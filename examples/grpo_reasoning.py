"""A small language model learns to spell words backward with GRPO, from a typed dataflow run on Ray worker groups.

``python examples/grpo_reasoning.py`` checks the program, prints its plan, warms the policy up on imperfect
demonstrations, trains it with verifier rewards, and leaves the curves as a picture and the metrics as JSON lines in
``runs/``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import hfdsl as hf
from hfdsl import Add, Dispatch, bool_, f32, i64, register

GROUP = 8  # responses a prompt
UPDATES = 2  # optimiser steps a rollout
PROMPTS = 64
HELD_OUT = 512


class B(hf.Dim):
    """Rows: one prompt, or one prompt-response pair."""


class P(hf.Dim):
    """Prompt tokens, left-padded."""


class R(hf.Dim):
    """Response tokens, right-padded."""


T = Add[P, R]
SIZES: dict[type[hf.Dim], int] = {B: PROMPTS, P: 9, R: 9}


# -- what flows along the edges


class Prompts(hf.Batch):
    """Problems, as token ids and as the verifier knows them."""

    ids: i64[B, P]
    mask: bool_[B, P]
    problem: hf.Obj[dict[str, Any], B]


class Sequences(hf.Batch):
    """Prompts with their responses."""

    ids: i64[B, T]
    mask: bool_[B, T]
    response_mask: bool_[B, R]


class Rollout(Sequences):
    """What the policy generated, with the log-probs that it had then."""

    log_probs: f32[B, R]


class RefLogProbs(hf.Batch):
    """Log-probs of the same responses under the frozen reference."""

    ref_log_probs: f32[B, R]


class Scores(hf.Batch):
    """The verifier's verdicts, 0 to 1."""

    reward: f32[B]


class Advantages(hf.Batch):
    """How much better than its group a response is."""

    advantage: f32[B]


class Experience(Rollout):
    """All that an update reads."""

    ref_log_probs: f32[B, R]
    advantage: f32[B]


class ActorMetrics(hf.Batch):
    """One optimiser step; every rank has its share of the batch's token means."""

    loss: hf.Metric[float, Literal["sum"]]
    kl: hf.Metric[float, Literal["sum"]]
    grad_norm: hf.Metric[float, Literal["first"]]


class Outcome(hf.Batch):
    """What the verifier made of a batch of responses."""

    reward: hf.Metric[float, Literal["mean"]]
    accuracy: hf.Metric[float, Literal["mean"]]


# -- the roles


@dataclass(frozen=True)
class PolicyConfig:
    """``checkpoint`` is where training starts; ``updates`` is over how many optimiser steps the learning rate falls."""

    checkpoint: str
    micro_batch: int = 64
    learning_rate: float = 3e-4
    updates: int = 100 * UPDATES
    clip: float = 0.2
    kl_coefficient: float = 0.001


class Actor(hf.Worker):
    """The policy: generates and learns."""

    def __init__(self, config: PolicyConfig) -> None:
        import torch

        import small_policy

        torch.set_num_threads(1)
        self.config, self.model = config, small_policy.build(config.checkpoint)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config.learning_rate, betas=(0.9, 0.99), weight_decay=0.0
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda update: min((update + 1) / 10, 1.0) * max(0.1, 1 - 0.9 * update / config.updates)
        )

    @register(Dispatch.THREE_D_PROTO)
    @hf.requires("B % micro_batch == 0")
    def generate(self, prompts: Prompts, *, greedy: bool = False) -> Rollout:
        import torch

        import small_policy
        import spelling

        ids, mask = prompts.ids.tensor, prompts.mask.tensor
        uniforms = None if greedy else hf.current_call().uniforms(spelling.RESPONSE)
        parts = [
            small_policy.generate(self.model, ids[i], mask[i], None if uniforms is None else uniforms[i])
            for i in small_policy.micro_batches(len(ids))
        ]
        response, response_mask, log_probs = (torch.cat(columns) for columns in zip(*parts, strict=True))
        return Rollout(
            ids=torch.cat([ids, response], dim=1),
            mask=torch.cat([mask, response_mask], dim=1),
            response_mask=response_mask,
            log_probs=log_probs,
        )

    @register(Dispatch.THREE_D_PROTO)
    def update(self, experience: Experience) -> ActorMetrics:
        import torch

        import small_policy
        from hfdsl.rl.losses import clipped_surrogate, kl_estimate

        peers, config = self.axis("dp"), self.config
        mask = experience.response_mask.tensor
        tokens = peers.all_reduce(mask.sum())  # of the whole batch: shares of a rank then add up to the token mean
        self.optimizer.zero_grad()
        total_loss = total_kl = 0.0
        for i in small_policy.micro_batches(len(mask)):
            log_probs = small_policy.response_log_probs(
                self.model, experience.ids.tensor[i], experience.mask.tensor[i], mask.shape[1]
            )
            surrogate = clipped_surrogate(
                log_probs, experience.log_probs.tensor[i], experience.advantage.tensor[i, None], config.clip
            )
            kl = kl_estimate(log_probs, experience.ref_log_probs.tensor[i])
            loss = ((surrogate + config.kl_coefficient * kl) * mask[i]).sum() / tokens
            loss.backward()
            total_loss += float(loss.detach())
            total_kl += float((kl.detach() * mask[i]).sum() / tokens)
        gradients = [parameter.grad for parameter in self.model.parameters()]
        summed = peers.all_reduce(torch.cat([gradient.flatten() for gradient in gradients]))
        for gradient, part in zip(gradients, summed.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        return ActorMetrics(loss=total_loss, kl=total_kl, grad_norm=float(norm.detach()))


class Reference(hf.Worker):
    """The policy as it was before training."""

    def __init__(self, config: PolicyConfig) -> None:
        import torch

        import small_policy

        torch.set_num_threads(1)
        self.model = small_policy.build(config.checkpoint)

    @register(Dispatch.THREE_D_PROTO)
    def log_probs(self, sequences: Sequences) -> RefLogProbs:
        import torch

        import small_policy

        ids, mask, length = sequences.ids.tensor, sequences.mask.tensor, sequences.response_mask.tensor.shape[1]
        with torch.no_grad():
            parts = [
                small_policy.response_log_probs(self.model, ids[i], mask[i], length)
                for i in small_policy.micro_batches(len(ids))
            ]
        return RefLogProbs(ref_log_probs=torch.cat(parts))


class Reward(hf.Worker):
    """The verifier: reasoning-gym's own scorer."""

    @register(Dispatch.DP_PROTO)
    def score(self, prompts: Prompts, sequences: Sequences) -> Scores:
        import torch

        import spelling

        responses = sequences.ids.tensor[:, prompts.ids.tensor.shape[1] :].tolist()
        return Scores(
            reward=torch.tensor(
                [spelling.score(*pair) for pair in zip(responses, prompts.problem.objects, strict=True)]
            )
        )


# -- stateless functions and the dataflows


@hf.function(rows=hf.Grouped(GROUP))
def group_advantages(scores: Scores) -> Advantages:
    """Rewards normalised within the responses to one prompt."""
    from hfdsl.rl.advantages import group_normalised

    return Advantages(advantage=group_normalised(scores.reward.tensor, GROUP))


@hf.function(rows=hf.Whole)
def outcome(scores: Scores) -> Outcome:
    """Mean reward, and the share of exact answers."""
    reward = scores.reward.tensor
    return Outcome(reward=float(reward.mean()), accuracy=float((reward == 1.0).float().mean()))


@hf.dataflow
def grpo(prompts: Prompts, actor: Actor, reference: Reference, reward: Reward) -> tuple[ActorMetrics, Outcome]:
    """One step of GRPO (Shao et al., 2024): groups of responses, verifier rewards, two updates."""
    questions = hf.repeat(prompts, GROUP)
    rollout = actor.generate(questions)
    scores = reward.score(questions, rollout)
    ref = reference.log_probs(rollout)
    experience = hf.merge(Experience, rollout, ref, group_advantages(scores))
    updates = [actor.update(part) for part in hf.minibatches(experience, UPDATES)]
    return updates[-1], outcome(scores)


@hf.dataflow
def evaluate(prompts: Prompts, actor: Actor, reward: Reward) -> Outcome:
    """Greedy answers to held-out problems."""
    return outcome(reward.score(prompts, actor.generate(prompts, greedy=True)))


# -- the experiment


def deploy(checkpoint: str, steps: int = 100) -> hf.Deployment:
    """Actor and reference share two processes, the verifier has one of its own."""
    policy, verifier = (
        hf.ResourcePool([2], use_gpu=False, name="policy"),
        hf.ResourcePool([1], use_gpu=False, name="verifier"),
    )
    config = PolicyConfig(checkpoint, updates=steps * UPDATES)
    return hf.Deployment(
        actor=hf.place(Actor, config, pool=policy, mesh=hf.Mesh(dp=2)),
        reference=hf.place(Reference, config, pool=policy, mesh=hf.Mesh(dp=2)),
        reward=hf.place(Reward, pool=verifier),
    )


def batch(problems: list[dict[str, Any]]) -> Prompts:
    """Problems as the input of a dataflow."""
    import spelling

    ids, mask = spelling.prompts(problems)
    return Prompts(ids=ids, mask=mask, problem=problems)


def batches() -> Iterator[Prompts]:
    """Training problems without end."""
    import spelling

    problems = spelling.training_problems(0, spelling.held_out(HELD_OUT))
    while True:
        yield batch(list(islice(problems, PROMPTS)))


# For the command line: hfdsl check|plan|draw|run examples/grpo_reasoning.py:experiment.
# `run` starts from the warm-up that `make demo` has left.
experiment = hf.Experiment(grpo, deploy("runs/grpo_reasoning/warm_up.pt"), SIZES, batches=batches)


def warm_up(problems: Iterator[dict[str, Any]], seed: int, checkpoint: Path, steps: int) -> None:
    """Imitate demonstrations of which 60 % have a slip, and save the policy."""
    import torch

    import small_policy

    torch.set_num_threads(2)
    model = small_policy.build(seed=seed)
    for step, loss in enumerate(small_policy.imitate(model, problems, steps=steps, slips=0.6), start=1):
        if step % 50 == 0:
            print(f"  imitation {step:3d}   loss {loss:.3f}", flush=True)
    torch.save(model.state_dict(), checkpoint)


def main() -> None:
    """Check, plan, warm up, train, evaluate, draw."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--imitation", type=int, default=300, help="steps of the supervised warm-up")
    parser.add_argument("--steps", type=int, default=100, help="steps of GRPO")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", choices=["ray", "local"], default="ray")
    parser.add_argument("--out", type=Path, default=Path("runs/grpo_reasoning"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    checkpoint = (options.out / "warm_up.pt").resolve()

    deployment = deploy(str(checkpoint), options.steps)
    print(grpo.check(deployment, SIZES), end="\n\n")
    plan = grpo.compile(deployment, SIZES)
    print(plan, end="\n\n", flush=True)

    import spelling

    unseen = spelling.held_out(HELD_OUT)
    problems = spelling.training_problems(options.seed * 100_000_000, unseen)  # neighbouring seeds share problems
    warm_up(problems, options.seed, checkpoint, options.imitation)
    with plan.launch(options.backend, seed=options.seed, timeout=120) as running:
        evaluation = running.also(evaluate.compile(deployment, {**SIZES, B: HELD_OUT}))
        train(running, evaluation, problems, batch(unseen), options)


def train(running: Any, evaluation: Any, problems: Iterator[dict[str, Any]], unseen: Prompts, options: Any) -> None:
    """The loop: a step, a line, now and then the held-out problems."""
    before = evaluation.step(unseen).accuracy.value
    print(f"  held-out accuracy before GRPO {before:.3f}", flush=True)
    history: list[dict[str, Any]] = []
    with (options.out / "metrics.jsonl").open("w") as file:
        for step in range(1, options.steps + 1):
            start = time.perf_counter()
            metrics, result = running.step(batch(list(islice(problems, PROMPTS))))
            record = {
                "step": step,
                "reward": result.reward.value,
                "accuracy": result.accuracy.value,
                "loss": metrics.loss.value,
                "kl": metrics.kl.value,
                "grad_norm": metrics.grad_norm.value,
                "seconds": time.perf_counter() - start,
                "node_seconds": running.timings,
            }
            if step % 10 == 0 or step == options.steps:
                record["held_out"] = evaluation.step(unseen).accuracy.value
            history.append(record)
            file.write(json.dumps(record) + "\n")
            file.flush()
            print(line(record), flush=True)
    draw(history, before, options.out / "curves.png")
    after = history[-1]["held_out"]
    print(f"\nheld-out accuracy: {before:.3f} before GRPO, {after:.3f} after {options.steps} steps")
    print(f"curves and metrics in {options.out}/")


def line(record: dict[str, Any]) -> str:
    """One step for people: what it achieved, and where its time went."""
    nodes = "  ".join(
        f"{name.split('.')[-1]} {seconds:.2f}" for name, seconds in record["node_seconds"].items() if seconds >= 0.005
    )
    held = f"  held-out {record['held_out']:.3f}" if "held_out" in record else ""
    return (
        f"  step {record['step']:3d}  reward {record['reward']:.3f}  accuracy {record['accuracy']:.3f}"
        f"  kl {record['kl']:.4f}  {record['seconds']:.2f} s ({nodes}){held}"
    )


def draw(history: list[dict[str, Any]], before: float, path: Path) -> None:
    """Reward and accuracy, KL, and time by node."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    steps = [record["step"] for record in history]
    figure, (top, middle, bottom) = plt.subplots(3, 1, figsize=(8, 9), sharex=True, layout="constrained")
    top.plot(steps, [record["reward"] for record in history], label="reward (sampled)")
    top.plot(steps, [record["accuracy"] for record in history], label="accuracy (sampled)")
    held = [(0, before), *((record["step"], record["held_out"]) for record in history if "held_out" in record)]
    top.plot(*zip(*held, strict=True), "o-", label="accuracy (held out, greedy)")
    top.set(ylim=(0, 1), title="GRPO on spell_backward")
    middle.plot(steps, [record["kl"] for record in history], label="KL to the reference")
    nodes = {name: [r["node_seconds"].get(name, 0.0) for r in history] for name in history[0]["node_seconds"]}
    bottom.stackplot(steps, *nodes.values(), labels=list(nodes))
    bottom.set(xlabel="step", ylabel="seconds")
    for axes in (top, middle, bottom):
        axes.legend(fontsize="small")
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # the context manager of the run has ended its processes by now
        raise SystemExit("stopped") from None
