"""Pairs of answers to the problems of ``examples/mathematics``, of which one is right.

    python -m examples.reward_model.pairs

writes ``runs/reward_model/{pairs,held_out_pairs}.jsonl``.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from examples.mathematics.problems import FOLDER as PROBLEMS
from examples.mathematics.problems import numbers, solved

FOLDER = Path("runs/reward_model")
LARGEST = 49  # 7 * 7, the largest answer


def wrong_answer(row: dict[str, Any], draw: random.Random) -> str:
    """A wrong answer: another number, another calculation, which may be right in itself, or one that breaks off.

    A policy finds what a reward model has not seen: one that has seen slips such as 12+7=20 alone knows nothing of
    2+2=4, and may give it a high score, whatever the question.
    """
    calculation, _, _ = row["solution"].partition("=")
    sign = draw.choice("+-*")
    a, b, result = numbers(sign, draw)
    kind = draw.randrange(5)
    answers = (
        f"{calculation}={max(row['answer'] + draw.choice((-2, -1, 1, 2)), 0)}",
        f"{calculation}={draw.randint(0, LARGEST)}",
        f"{a}{sign}{b}={result}",
        f"{a}{sign}{b}={draw.randint(0, LARGEST)}",
        row["solution"][: draw.randrange(1, len(calculation) + 2)],
    )
    answer = answers[kind]
    return wrong_answer(row, draw) if solved(answer, row) else answer


def write(source: Path, target: Path, seed: int) -> None:
    """Write a pair for every problem of a file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    with source.open() as problems, target.open("w") as file:
        for line in problems:
            row = json.loads(line)
            file.write(json.dumps({**row, "better": row["solution"], "worse": wrong_answer(row, draw)}) + "\n")


if __name__ == "__main__":
    write(PROBLEMS / "train.jsonl", FOLDER / "pairs.jsonl", 3)
    write(PROBLEMS / "held_out.jsonl", FOLDER / "held_out_pairs.jsonl", 4)
