"""The task of the demo: spell a word backward. Problems and scorer are ``spell_backward`` of reasoning-gym.

The package asks ``Spell this word backward (example: sun -> nus): Ammonia``; a character model of this size sees the
same problem as ``ammonia>`` (lower case, since the package's scorer ignores case). The score is the package's own: 1.0
for the exact word, else the share of positions that agree.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, TypeAlias

import reasoning_gym
import torch

Problem: TypeAlias = dict[str, Any]  # an entry of a reasoning-gym dataset: question, answer, metadata

PAD, EOS = 0, 1
ALPHABET = string.ascii_lowercase + ">"
VOCABULARY = len(ALPHABET) + 2
LONGEST = 8
PROMPT = LONGEST + 1  # the word and the separator
RESPONSE = LONGEST + 1  # the word and the end
HELD_OUT_SEED = 1_000_000_000  # entry i is drawn from seed + i: far away from every training problem


def dataset(seed: int, size: int) -> Any:
    """Problems of three to eight letters."""
    return reasoning_gym.create_dataset("spell_backward", seed=seed, size=size, min_word_len=3, max_word_len=LONGEST)


def held_out(count: int) -> list[Problem]:
    """Problems that training never shows."""
    problems = dataset(HELD_OUT_SEED, count)
    return [problems[i] for i in range(count)]


def training_problems(seed: int, unseen: Sequence[Problem]) -> Iterator[Problem]:
    """Problems without end, none with a word of ``unseen``."""
    words = {word(problem) for problem in unseen}
    return (problem for problem in dataset(seed, 1 << 30) if word(problem) not in words)


def word(problem: Problem) -> str:
    """The word to spell."""
    return str(problem["metadata"]["word"]).lower()


def encode(text: str) -> list[int]:
    """Token ids, one a character."""
    return [ALPHABET.index(character) + 2 for character in text]


def decode(ids: Sequence[int]) -> str:
    """The text before the end token."""
    text = list(ids)[: list(ids).index(EOS)] if EOS in ids else list(ids)
    return "".join(ALPHABET[i - 2] for i in text if i != PAD)


def prompts(problems: Sequence[Problem]) -> tuple[torch.Tensor, torch.Tensor]:
    """ids i64[B, P] and mask bool[B, P], left-padded."""
    rows = [encode(word(problem) + ">") for problem in problems]
    ids = torch.tensor([[PAD] * (PROMPT - len(row)) + row for row in rows])
    return ids, ids != PAD


def demonstrations(problems: Sequence[Problem], slips: float) -> tuple[torch.Tensor, torch.Tensor]:
    """ids i64[B, R] and mask bool[B, R] of answers to imitate, right-padded.

    A share ``slips`` of the words keeps its first two letters in reading order: imperfect demonstrators, whom the
    verifier's rewards then take the policy beyond.
    """
    rows = []
    for problem in problems:
        answer = word(problem)[::-1]
        if random.Random(answer).random() < slips:
            answer = answer[:-2] + answer[-1] + answer[-2]
        rows.append([*encode(answer), EOS])
    ids = torch.tensor([row + [PAD] * (RESPONSE - len(row)) for row in rows])
    return ids, ids != PAD


@cache
def _scorer() -> Any:
    return dataset(0, 1)


def score(response: Sequence[int], problem: Problem) -> float:
    """The package's score of a response, 0 to 1."""
    return float(_scorer().score_answer(decode(response), problem))
