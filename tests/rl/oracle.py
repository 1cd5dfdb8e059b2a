"""The formulas of the papers in plain Python, a response at a time, on lists of its own tokens and in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Row = list[float]


def gae(rewards: Row, values: Row, gamma: float, lam: float) -> Row:
    """The sum of the definition, term by term."""
    after = [*values, 0.0][1:]
    deltas = [r + gamma * v_next - v for r, v, v_next in zip(rewards, values, after, strict=True)]
    return [sum((gamma * lam) ** i * delta for i, delta in enumerate(deltas[t:])) for t in range(len(deltas))]


def returns(rewards: Row, gamma: float) -> Row:
    return [sum(gamma**i * reward for i, reward in enumerate(rewards[t:])) for t in range(len(rewards))]


def mean(numbers: Sequence[float]) -> float:
    return math.fsum(numbers) / len(numbers) if numbers else 0.0


def deviation(numbers: Sequence[float]) -> float:
    """The standard deviation with n - 1."""
    centre = mean(numbers)
    return math.sqrt(math.fsum((x - centre) ** 2 for x in numbers) / (len(numbers) - 1))


def grouped(rewards: Row, group: int, of_row: Callable[[float, Row, Row], float]) -> Row:
    """``one(reward, its group, the others of its group)`` of every row."""
    numbers = []
    for row, reward in enumerate(rewards):
        first = row - row % group
        mates = rewards[first : first + group]
        others = [mate for place, mate in enumerate(mates, first) if place != row]
        numbers.append(of_row(reward, mates, others))
    return numbers


def clip_loss(new: float, old: float, advantage: float, low: float, high: float, dual: float | None = None) -> float:
    ratio = math.exp(new - old)
    objective = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    if dual is not None and advantage < 0:
        objective = max(objective, dual * advantage)
    return -objective


def cispo_loss(new: float, old: float, advantage: float, low: float, high: float) -> float:
    return -min(max(math.exp(new - old), 1 - low), 1 + high) * advantage * new


def decoupled_loss(
    new: float, proximal: float, behavior: float, advantage: float, low: float, high: float, most: float
) -> float:
    """Minus proximal / behavior, truncated, times the clipped surrogate around the proximal policy."""
    return min(math.exp(proximal - behavior), most) * clip_loss(new, proximal, advantage, low, high)


def sequence_ratio(new: Row, old: Row) -> float:
    return math.prod(math.exp(a - b) for a, b in zip(new, old, strict=True)) ** (1 / len(new))


def importance_weights(trainer: Row, engine: Row, level: str, outside: str, low: float, high: float) -> Row:
    """The weight of each token of a response; NaN for one that is masked."""
    ratios = [math.exp(p - q) for p, q in zip(trainer, engine, strict=True)]
    if level == "sequence":
        ratios = [math.prod(ratios)] * len(ratios)
    if outside == "mask":
        return [ratio if low <= ratio <= high else math.nan for ratio in ratios]
    return [min(max(ratio, low), high) for ratio in ratios]


def kl(kind: str, policy: float, reference: float) -> float:
    ratio = math.exp(reference - policy)
    return {
        "k1": policy - reference,
        "k2": 0.5 * (policy - reference) ** 2,
        "k3": (ratio - 1) - math.log(ratio),
        "abs": abs(policy - reference),
    }[kind]


def value_loss(value: float, old: float, target: float, clip: float) -> float:
    near = old + min(max(value - old, -clip), clip)
    return 0.5 * max((value - target) ** 2, (near - target) ** 2)


def aggregated(terms: list[Row], mode: str, constant: float) -> float:
    """The loss of a batch from the terms of the tokens of every response."""
    responses = [row for row in terms if row]
    if not responses:
        return 0.0
    if mode == "token-mean":
        return mean([term for row in responses for term in row])
    if mode == "sequence-mean-token-mean":
        return mean([mean(row) for row in responses])
    return mean([math.fsum(row) / constant for row in responses])
