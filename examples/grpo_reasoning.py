"""A small language model learns to spell words backward with GRPO: ready-made roles, on Ray worker groups.

``python examples/grpo_reasoning.py`` checks the program, prints its plan, warms the policy up on imperfect
demonstrations, trains it with a verifier's rewards, and leaves the curves as a picture and the metrics as JSON lines in
``runs/``.

Problems and scorer are ``spell_backward`` of reasoning-gym. The package asks ``Spell this word backward (example: sun
-> nus): Ammonia``; a character model of this size sees the same problem as ``ammonia>``.
"""

from __future__ import annotations

import argparse
import random
import string
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hfdsl as hf
from hfdsl.rl import workers as w
from hfdsl.rl.batches import B, P, Prompts, R
from hfdsl.rl.data.feed import Feed
from hfdsl.rl.data.order import Cursor
from hfdsl.rl.data.prompts import Encoder, Prompt
from hfdsl.rl.data.sources import ReasoningGym, Row, Rows
from hfdsl.rl.data.tokenizers import Characters, load_tokenizer
from hfdsl.rl.dataflows.grpo import grpo
from hfdsl.rl.dataflows.supervised import supervised
from hfdsl.rl.losses import Clip
from hfdsl.rl.training.evaluation import evaluate
from hfdsl.rl.training.metrics import JsonLinesWriter, Record, line, values_of
from hfdsl.runtime.running import Running

LONGEST = 8  # letters of a word; then the separator, or the end
SIZES: dict[type[hf.Dim], int] = {B: 48, P: LONGEST + 1, R: LONGEST + 1}
UPDATES = 3  # optimizer steps per rollout
HELD_OUT = 512
OUT = Path("runs/grpo_reasoning")

spell = grpo.given(group=8, updates=UPDATES, loss=Clip(0.2, kl=0.001))  # eight responses per prompt

# -- the roles


CHARACTERS = Characters(string.ascii_lowercase + ">", lowercase=True)
DECODER = {
    "model_type": "llama",
    "vocab_size": CHARACTERS.size,
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2 * (LONGEST + 1),
    "bos_token_id": None,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
ROWS = w.BatchingConfig(rows=64)  # a row's numbers then do not depend on how a batch is split over ranks


def learns(model: w.ModelConfig, optimizer: w.OptimizerConfig) -> w.ActorConfig:
    """A policy that starts from this model."""
    optimizer = replace(optimizer, betas=(0.9, 0.99))
    return w.ActorConfig(model, w.GenerationConfig(max_tokens=LONGEST + 1), w.TrainingConfig(optimizer), ROWS)


def deploy(model: Path, steps: int = 100) -> hf.Deployment:
    """Actor and reference share two processes, the verifier has one of its own."""
    policy = hf.ResourcePool([2], use_gpu=False, name="policy")
    verifier = hf.ResourcePool([1], use_gpu=False, name="verifier")
    start = w.ModelConfig(path=str(model))
    updates = steps * UPDATES
    falling = w.OptimizerConfig(
        3e-4, schedule="linear", warmup_steps=min(10, updates // 2), total_steps=updates, min_lr_ratio=0.1
    )
    return hf.Deployment(
        actor=hf.place(w.Actor, learns(start, falling), pool=policy),
        reference=hf.place(w.Reference, w.ReferenceConfig(start, batching=ROWS), pool=policy),
        reward=hf.place(w.Verifier, w.VerifierConfig("spell_backward", tokenizer=CHARACTERS), pool=verifier),
    )


# -- the data


def words(size: int, seed: int) -> Rows:
    """Problems of three to eight letters; entry i is drawn from seed + i."""
    return ReasoningGym("spell_backward", size, seed, {"min_word_len": 3, "max_word_len": LONGEST}).open()


def unseen() -> tuple[Any, frozenset[str]]:
    """Problems that training never uses, and their texts."""
    return Feed(words(HELD_OUT, 1_000_000_000), encoder(), HELD_OUT).first()


def encoder(response: int | None = None) -> Encoder:
    """Words as prompts, with ``response`` as demonstrations."""
    return Encoder(Prompt("{metadata[word]}>"), load_tokenizer(CHARACTERS), SIZES[P], response)


@dataclass(frozen=True)
class Imperfect:
    """Demonstrations of which a share keeps its first two letters in reading order.

    The verifier's rewards then take the policy beyond its demonstrators.
    """

    rows: Rows
    slips: float = 0.6

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, index: int) -> Row:
        """A problem with an answer to imitate."""
        row = self.rows.row(index)
        answer = str(row["answer"]).lower()
        slips = random.Random(answer).random() < self.slips
        return row | {"answer": answer[:-2] + answer[-1] + answer[-2] if slips else answer}

    def place(self, index: int) -> str:
        """The source of the problem."""
        return self.rows.place(index)


def stream(feed: Feed, seed: int) -> Iterator[Any]:
    """Endless batches."""
    cursor = Cursor(seed)
    while True:
        batch, cursor = feed.take(cursor)
        yield batch


def batches(seed: int = 0) -> Iterator[Prompts]:
    """Training problems, none with a word that is held out."""
    return stream(Feed(words(1 << 20, 0), encoder(), SIZES[B], held_out=unseen()[1]), seed)


# For the command line: hfdsl check|plan|draw|run examples/grpo_reasoning.py:experiment.
# `run` starts from the warm-up that `make demo` saved.
experiment = hf.Experiment(spell, deploy(OUT / "warm_up"), SIZES, batches=batches)


# -- the run


@hf.dataflow
def weights(actor: w.Actor) -> dict[str, Any]:
    """The policy's weights."""
    return actor.weights()


def warm_up(folder: Path, seed: int, steps: int) -> None:
    """Imitate, and save the policy."""
    import torch

    torch.set_num_threads(1)  # at this size more threads would only wait for each other
    start = w.ModelConfig(config=DECODER, seed=seed)
    config = learns(start, w.OptimizerConfig(2e-3))
    alone = hf.Deployment(actor=hf.place(w.Actor, config, pool=hf.ResourcePool([1], use_gpu=False)))
    feed = Feed(Imperfect(words(1 << 20, 0)), encoder(SIZES[R]), 64, held_out=unseen()[1])
    with supervised.compile(alone, {**SIZES, B: 64}).launch() as running:
        for step, batch in zip(range(1, steps + 1), stream(feed, seed), strict=False):
            metrics = running.step(batch)
            if step % 50 == 0:
                print(f"  imitation {step:3d}   loss {metrics.loss.value:.3f}", flush=True)
        weight_values = running.also(weights.compile(alone)).step()
    save(start, weight_values, folder)


def save(config: w.ModelConfig, state: dict[str, Any], folder: Path) -> None:
    """Save the model in the format of transformers."""
    from hfdsl.rl.models.loading import load

    model = load(config)
    model.load_state_dict({name.removeprefix("model."): value for name, value in state.items()})
    model.save_pretrained(folder)


def train(running: Running, looking: Running, options: argparse.Namespace) -> list[Record]:
    """The loop: a step, a line, and from time to time the held-out problems."""
    held_out, history = unseen()[0], list[Record]()
    metrics = JsonLinesWriter(options.out / "metrics.jsonl", None)
    for step, batch in zip(range(options.steps + 1), batches(options.seed), strict=False):
        start = time.perf_counter()
        values = values_of(running.plan, running.step(batch), step) if step else {}  # step 0 only evaluates
        seconds = time.perf_counter() - start if step else 0.0
        if step % 10 == 0 or step == options.steps:
            scores = values_of(looking.plan, looking.step(held_out), step)
            values |= {f"held_out/{name.rpartition('/')[2]}": value for name, value in scores.items()}
        history.append(Record(step, values, seconds, running.timings))
        metrics.write(history[-1])
        print(line(history[-1]), flush=True)
    metrics.close()
    return history


def main() -> None:
    """Check, plan, warm up, train, evaluate, draw."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--imitation", type=int, default=300, help="steps of the supervised warm-up")
    parser.add_argument("--steps", type=int, default=100, help="steps of GRPO")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", choices=["ray", "local"], default="ray")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    deployment = deploy((options.out / "warm_up").resolve(), options.steps)
    print(spell.check(deployment, SIZES), end="\n\n")
    plan = spell.compile(deployment, SIZES)
    print(plan, end="\n\n", flush=True)

    warm_up(options.out / "warm_up", options.seed, options.imitation)
    with plan.launch(options.backend, seed=options.seed, timeout=120) as running:
        history = train(running, running.also(evaluate.compile(deployment, {**SIZES, B: HELD_OUT})), options)
    draw(history, options.out / "curves.png")
    before, after = (record.values["held_out/solved"] for record in (history[0], history[-1]))
    print(f"\nheld-out accuracy: {before:.3f} before GRPO, {after:.3f} after {options.steps} steps")
    print(f"curves and metrics in {options.out}/")


def draw(history: list[Record], path: Path) -> None:
    """Score and accuracy, KL, and time by node."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (top, middle, bottom) = plt.subplots(3, 1, figsize=(8, 9), sharex=True, layout="constrained")
    for axes, name, style, label in (
        (top, "outcome/score", "-", "score (sampled)"),
        (top, "outcome/solved", "-", "accuracy (sampled)"),
        (top, "held_out/solved", "o-", "accuracy (held out, greedy)"),
        (middle, "actor/reference_kl", "-", "KL to the reference"),
    ):
        points = [(record.step, record.values[name]) for record in history if name in record.values]
        axes.plot(*zip(*points, strict=True), style, label=label)
    top.set(ylim=(0, 1), title="GRPO on spell_backward")
    steps = history[1:]
    nodes = {name: [record.nodes.get(name, 0.0) for record in steps] for name in steps[0].nodes}
    bottom.stackplot([record.step for record in steps], *nodes.values(), labels=nodes)
    bottom.set(xlabel="step", ylabel="seconds by node")
    for axes in (top, middle, bottom):
        axes.legend(loc="best", fontsize="small")
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # the context manager of the run has already ended its processes
        raise SystemExit("stopped") from None
