"""Learning curves of every algorithm on one small task, on a CPU: ``python benchmarks/algorithms.py``.

A model of 22,000 parameters learns to say seven. Every step has 64 responses, however they are grouped, and the
learning rate is the same everywhere. The curves go to ``docs/algorithms.svg``, the numbers to ``docs/algorithms.json``.
With ``--seeds 3`` it learns three times, from other weights, other prompts and other draws: a curve is the median of
them, within the range between the lowest and the highest.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import torch

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.rl import workers as w
from hfdsl.rl.batches import B, Costs, Outcome, P, Prompts, R, Sequences
from hfdsl.rl.functions import outcome
from hfdsl.rl.kl import AdaptiveKL
from hfdsl.rl.lagrangian import Multiplier
from hfdsl.rl.losses import Clip

DOCS = Path(__file__).parent.parent / "docs"
RESPONSES, PROMPT, RESPONSE, VOCABULARY, SEVEN, END = 64, 4, 8, 16, 7, 1

MODEL = w.ModelConfig(
    config={
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 64,
        "bos_token_id": None,
        "pad_token_id": 0,
        "eos_token_id": END,
    }
)
TRAINING = w.TrainingConfig(w.OptimizerConfig(learning_rate=3e-3))


def share_of_sevens(response: list[int], task: dict[str, Any]) -> float:
    """The reward."""
    return response.count(SEVEN) / RESPONSE


class Sixes(w.RewardModel):
    """The cost: the share of sixes."""

    def __init__(self) -> None:
        pass

    @register(Dispatch.THREE_D_PROTO)
    def cost(self, prompts: Prompts, sequences: Sequences) -> Costs:
        """Sixes among the response's tokens."""
        mask = sequences.response_mask.tensor
        return Costs(cost=((sequences.ids.tensor[:, -RESPONSE:] == SEVEN - 1) & mask).sum(1) / RESPONSE)


@hf.dataflow
def evaluate(prompts: Prompts, actor: w.Actor, reward: w.Reward) -> Outcome:
    """What sampled responses are worth."""
    rollout = actor.generate(prompts)
    return outcome(rollout, reward.score(prompts, rollout))


@hf.dataflow
def weights(actor: w.Actor) -> dict[str, Any]:
    """The policy's weights."""
    return actor.weights()


@dataclass(frozen=True)
class Curve:
    """An algorithm: its options, its roles, and how many responses it gives to a prompt."""

    name: str
    roles: tuple[str, ...]
    group: int = 1
    options: tuple[tuple[str, Any], ...] = ()


CURVES = (
    Curve("ppo", ("actor", "critic", "reference", "reward")),
    Curve("ppo_adaptive_kl", ("actor", "critic", "reference", "reward", "penalty")),
    Curve(
        "safe_rlhf",
        ("actor", "critic", "cost_critic", "reference", "reward", "cost", "multiplier"),
        1,
        (("epochs", 4),),
    ),
    Curve("remax", ("actor", "reference", "reward")),
    Curve("grpo", ("actor", "reference", "reward"), 8),
    Curve(
        "dr_grpo",
        ("actor", "reward"),
        8,
        (("loss", Clip(0.2, aggregation="sequence-mean-token-sum", constant=RESPONSE)),),
    ),
    Curve("gspo", ("actor", "reward"), 8, (("updates", 2),)),
    Curve(
        "dapo",
        ("actor", "reward"),
        8,
        (("group", 8), ("rows", RESPONSES), ("updates", 2), ("longest", 2 * RESPONSE), ("buffer", 2)),
    ),
    Curve("rloo", ("actor", "reference", "reward"), 4),
    Curve("reinforce_plus_plus", ("actor", "reference", "reward")),
    Curve("online_dpo", ("actor", "reference", "reward"), 2),
    Curve("mutual", ("left", "right", "reward"), 8),
    Curve("distillation", ("actor", "teacher", "reward")),
)


def deployment(curve: Curve, teacher: Path, seed: int) -> hf.Deployment:
    """All roles in one process."""
    model = replace(MODEL, seed=seed)
    actor, critic = w.ActorConfig(model, w.GenerationConfig(RESPONSE), TRAINING), w.CriticConfig(model, TRAINING)
    second_actor = replace(actor, model=replace(MODEL, seed=seed + 1))
    placements: dict[str, Callable[[hf.ResourcePool], Any]] = {
        "actor": lambda pool: hf.place(w.Actor, actor, pool=pool),
        "left": lambda pool: hf.place(w.Actor, actor, pool=pool),
        "right": lambda pool: hf.place(w.Actor, second_actor, pool=pool),
        "critic": lambda pool: hf.place(w.Critic, critic, pool=pool),
        "cost_critic": lambda pool: hf.place(w.Critic, critic, pool=pool),
        "reference": lambda pool: hf.place(w.Reference, w.ReferenceConfig(model), pool=pool),
        "teacher": lambda pool: hf.place(w.Reference, w.ReferenceConfig(w.ModelConfig(path=str(teacher))), pool=pool),
        "reward": lambda pool: hf.place(w.Verifier, w.VerifierConfig(function=share_of_sevens), pool=pool),
        "cost": lambda pool: hf.place(Sixes, pool=pool),
        "penalty": lambda pool: hf.place(w.KLPenalty, AdaptiveKL(0.001, target=20.0), pool=pool),
        "multiplier": lambda pool: hf.place(w.LagrangeMultiplier, Multiplier(1.0), pool=pool),
    }
    pool = hf.ResourcePool([1], use_gpu=False)
    return hf.Deployment(**{role: placements[role](pool) for role in curve.roles})


def prompts(rows: int, step: int, seed: int) -> Prompts:
    """The prompts of a step."""
    ids = torch.randint(2, VOCABULARY, (rows, PROMPT), generator=torch.Generator().manual_seed(step + 100_000 * seed))
    return Prompts(ids=ids, mask=torch.ones_like(ids, dtype=torch.bool), task=[{}] * rows)


def text(rows: int, step: int, seed: int) -> Sequences:
    """Pretraining text: each token is the one before plus 1."""
    first = prompts(rows, step + 10_000, seed).ids.tensor[:, :1]
    ids = (first + torch.arange(PROMPT + RESPONSE)) % (VOCABULARY - 2) + 2
    mask = torch.ones_like(ids, dtype=torch.bool)
    return Sequences(ids=ids, mask=mask, response_mask=mask[:, PROMPT:])


def run(curve: Curve, steps: int, teacher: Path, seed: int) -> list[float]:
    """The mean score of every step's responses."""
    flow: hf.Dataflow[..., Any] = getattr(import_module(f"hfdsl.rl.dataflows.{curve.name}"), curve.name)
    if "group" in flow.options:
        flow = flow.given(group=curve.group)
    if "kl" in flow.options:
        flow = flow.given(kl=0.001)  # the reference knows nothing that would be worth keeping
    flow, roles, rows = flow.given(**dict(curve.options)), deployment(curve, teacher, seed), RESPONSES // curve.group
    with flow.compile(roles, {B: rows, P: PROMPT, R: RESPONSE}).launch("local", seed=seed) as running:
        graded = curve.name == "distillation"
        evaluation = running.also(evaluate.compile(roles, {B: rows, P: PROMPT, R: RESPONSE})) if graded else None
        scores = []
        for step in range(steps):
            batch = prompts(rows, step, seed)
            outputs = running.step(batch, text(rows, step, seed)) if curve.name == "safe_rlhf" else running.step(batch)
            results = (evaluation.step(batch),) if evaluation is not None else outputs
            scores.append(next(result.score.value for result in results if isinstance(result, Outcome)))
        if curve.name == "grpo":
            save(running.also(weights.compile(roles)).step(), teacher)
    return scores


def save(state: dict[str, Any], folder: Path) -> None:
    """The policy that GRPO has made is the teacher of the student."""
    from hfdsl.rl.models.loading import load

    model = load(MODEL)
    model.load_state_dict({name.removeprefix("model."): value for name, value in state.items()})
    model.save_pretrained(folder)


def smooth(scores: Sequence[float]) -> list[float]:
    """The mean of each three steps."""
    return [sum(scores[max(0, i - 2) : i + 1]) / len(scores[max(0, i - 2) : i + 1]) for i in range(len(scores))]


def draw(curves: dict[str, list[list[float]]], path: Path) -> None:
    """A plot an algorithm: the median of all seeds, and all that lies between the lowest and the highest."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "hfdsl"
    across = 5
    figure, grid = plt.subplots(
        -(-len(curves) // across),
        across,
        figsize=(11, 6),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axes in grid.flat[len(curves) :]:
        axes.set_axis_off()
    for axes, (name, seeds) in zip(grid.flat, curves.items(), strict=False):
        by_step = list(zip(*map(smooth, seeds), strict=True))
        steps = range(1, len(by_step) + 1)
        axes.fill_between(steps, list(map(min, by_step)), list(map(max, by_step)), alpha=0.3, linewidth=0)
        axes.plot(steps, list(map(median, by_step)))
        axes.set_title(name, fontsize="medium")
        axes.set(ylim=(0, 1), xlim=(1, len(by_step)))
        axes.tick_params(labelbottom=True)
    figure.supxlabel("step of 64 responses")
    figure.supylabel("mean score (of 3 steps)")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Run all, write, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, from 0 on")
    parser.add_argument("--out", type=Path, default=DOCS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    curves: dict[str, list[list[float]]] = {curve.name: [] for curve in CURVES}
    for seed in range(options.seeds):
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            for curve in CURVES:
                start = time.perf_counter()
                scores = run(curve, options.steps, Path(folder), seed)
                curves[curve.name].append([round(score, 4) for score in scores])
                seconds = time.perf_counter() - start
                print(
                    f"seed {seed}  {curve.name:20s} {scores[0]:.2f} -> {scores[-1]:.2f}   {seconds:.0f} s", flush=True
                )
        print(f"seed {seed}  all {time.perf_counter() - begin:.0f} s", flush=True)
        text = ",\n".join(f'"{name}":{json.dumps(seeds, separators=(",", ":"))}' for name, seeds in curves.items())
        (options.out / "algorithms.json").write_text(f"{{{text}}}\n")
        draw(curves, options.out / "algorithms.svg")  # after each seed: a run that is ended keeps what it has


if __name__ == "__main__":
    main()
