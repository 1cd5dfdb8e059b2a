"""A Llama of 1.23 billion parameters learns to spell words backward with vLLM as the engine of its policy.

    for seed in 0 1 2; do python -m benchmarks.training.large supervised grpo --seed $seed; done

Words are strings of 3 to 14 random letters, drawn by seeds; no held-out word is trained on. ``supervised`` imitates
demonstrations and exports the model, ``grpo`` continues from it with a rule's scores alone. ``--set`` changes fields of
the TOML file of a stage.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from random import Random
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any
from zlib import crc32

if TYPE_CHECKING:
    from hfdsl.rl.training.metrics import Record

FOLDER = Path("runs/large")
STAGES = ("supervised", "grpo")

TRAINING, HELD_OUT = 200_000, 512
"""How many words there are of each."""

HELD_OUT_SHARE = 20
"""One of so many words, by its checksum, is never trained on."""


SHOWN = frozenset({"solved", "loss", "kl", "score", "engine_kl"})
"""The metrics that are printed, by the ends of their names."""


class LastStepError(Exception):
    """The run is over after its last step: one that ends by itself writes a checkpoint of 15 GB."""


def words(seed: int, *, held_out: bool) -> Iterator[str]:
    """Different words, without end; whether a word is held out depends on the word alone."""
    draw, seen = Random(seed), set[str]()
    while True:
        word = "".join(draw.choices(ascii_lowercase, k=draw.randint(3, 14)))
        if (crc32(word.encode()) % HELD_OUT_SHARE == 0) == held_out and word not in seen:
            seen.add(word)
            yield word


def solved(response: str, task: Mapping[str, Any]) -> float:
    """The reward: whether the response is the word spelled backward.

    >>> solved("cba", {"word": "abc"}), solved("cbaa", {"word": "abc"})
    (1.0, 0.0)
    """
    return float(response == task["word"][::-1])


def prepare(folder: Path) -> None:
    """Write the words."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in {"train": TRAINING, "held_out": HELD_OUT}.items():
        chosen = islice(words(len(name), held_out=name == "held_out"), count)
        rows = ({"word": word, "backward": word[::-1]} for word in chosen)
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")


def train_stage(stage: str, seed: int, changes: list[str]) -> Path:
    """Run one stage with a seed, and print a line for every evaluation and for the first steps; its folder."""
    from hfdsl.rl.training.config import load
    from hfdsl.rl.training.loop import train

    output = FOLDER / f"{stage}_seed{seed}"
    own = {
        "supervised": [f"actor.model.seed={seed}"],
        "grpo": [f"actor.model.path={FOLDER / f'model_seed{seed}'}"],
    }[stage]
    run = load(
        str(Path(__file__).with_name(f"large_{stage}.toml")), [f"seed={seed}", f"output={output}", *own, *changes]
    )

    def show(record: Record) -> None:
        share = record.values.get("held_out/solved")
        if share is not None or record.step % 10 <= 1:
            values = {name: record.values[name] for name in record.values if name.split("/")[-1] in SHOWN}
            figures = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
            print(f"seed {seed}, {stage} step {record.step}: {record.seconds:.2f} s, {figures}", flush=True)
        if stage == "grpo" and record.step == run.config.steps:
            raise LastStepError

    with suppress(LastStepError):
        train(run, show=show)
    return output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="+", choices=STAGES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], help="a change, as in hfdsl train --set")
    options = parser.parse_args()
    prepare(FOLDER)
    for stage in options.stages:
        output = train_stage(stage, options.seed, options.set)
        if stage == "supervised":
            from hfdsl.rl.training.run_folder.export import export

            export(output, "actor", FOLDER / f"model_seed{options.seed}")
            shutil.rmtree(output / "checkpoints")  # 15 GB, which the model does not need


if __name__ == "__main__":
    main()
