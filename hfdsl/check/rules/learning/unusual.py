"""Unusual numbers: is a number of learning so far outside of what is usual that it is hardly meant?

A worked example; every number is allowed::

    Clip(high=28.0, kl=5.0)                                       # percent for shares; 0.05
    kl_penalized_rewards(rollout, ref, scores, kl=5.0)
    OptimizerConfig(learning_rate=1e-2)                           # for saved weights, 1e-6
    GenerationConfig(512, temperature=1e-4)                       # its log-probs are divided by it

The annotation of a number says what is usual (``hfdsl.types.bounds.Usual``); for rates and temperatures this file does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import lru_cache
from typing import Any

from hfdsl.check.constructor_types import annotations_one_by_one
from hfdsl.check.context import Context
from hfdsl.check.dependences import training_calls, trains
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program, call_numbers
from hfdsl.check.rules.learning.ratios import first_ratio_updates
from hfdsl.check.sources import argument_span
from hfdsl.graph.program import Constant, Node
from hfdsl.graph.signatures import Signature
from hfdsl.protocols import role_facts
from hfdsl.protocols.role_facts import Learning
from hfdsl.types.bounds import Usual, annotations_of, usual_of

LARGEST_RATE = 5e-3
"""The largest learning rate of saved weights that is not doubted, for very small models. RL of models of some billion
parameters takes up to 5e-6, a supervised stage 3e-4."""

LEAST_TEMPERATURE = 0.1
"""The least temperature of a policy that learns by ratios that is not doubted. RL takes about 1."""

RATE = "AdamW changes a weight by about the rate in every update, and most weights are below 0.1; RL takes 1e-7 to 5e-6"
"""What a large rate does."""

TEMPERATURE = "sample at about 1 to learn; for the likeliest tokens call generate(prompts, greedy=True)"
"""The advice for a low temperature."""


def numbers_are_usual(context: Context) -> Iterator[Finding]:
    """HF947: numbers of losses and of calls before an update are not far above what is usual."""
    program, graph = context.program, context.program.graph
    reported, seen = set[object](), set[object]()
    for node, signature in graph.bodies if not graph.misuses else ():
        call_key = node.span, *(id(operand.value) for _, operand in node.arguments if isinstance(operand, Constant))
        if call_key in seen:
            continue  # another turn of a loop
        seen.add(call_key)
        for text, port, usual in (*_of_losses(program, node), *_of_ports(node, signature)):
            place = Label(argument_span(node.span, signature, port))
            if (place.span, text) not in reported:
                reported.add((place.span, text))
                yield Finding("HF947", text, place, notes=(usual.effect,) if usual.effect else ())


def _of_losses(program: Program, node: Node) -> Iterator[tuple[str, str, Usual]]:
    """The unusual numbers of the losses that an update gets, each with the port of its loss."""
    for port, operand in node.arguments if trains(program, node) else ():
        loss = operand.value if isinstance(operand, Constant) else None
        kind: Any = type(loss)
        for name, annotation in annotations_of(kind).items() if is_dataclass(loss) else ():
            usual, number = usual_of(annotation), getattr(loss, name, None)
            if usual is not None and usual.doubts(number) and not _is_in_percent(loss):
                text = f"the loss of '{node.label}' has {name} = {number:g}, where at most {usual.at_most:g} is usual"
                yield text, port, usual


def _is_in_percent(loss: object) -> bool:
    """Whether the lower end of a clip is a mistake of its own, HF946."""
    low = getattr(loss, "low", None)
    return isinstance(low, (int, float)) and low > 1


def _of_ports(node: Node, signature: Signature) -> Iterator[tuple[str, str, Usual]]:
    """The unusual numbers that a call gets, each with its port."""
    declared = _usual_numbers(signature.body)
    for name, number in call_numbers(node).items() if declared else ():
        if name in declared and declared[name].doubts(number):
            yield (
                f"'{name}' of '{node.label}' is usually at most {declared[name].at_most:g}, and is {number!r}",
                name,
                declared[name],
            )


@lru_cache(maxsize=256)
def _usual_numbers(body: Callable[..., Any]) -> Mapping[str, Usual]:
    """The usual numbers that a function declares, by parameter."""
    names = getattr(body, "__globals__", {})
    types = annotations_one_by_one(inspect.signature(body), names, {}, extras=True)
    numbers = {name: usual_of(annotation) for name, annotation in types.items()}
    return {name: usual for name, usual in numbers.items() if usual is not None}


# -- rates and temperatures


def rates_suit_saved_weights(context: Context) -> Iterator[Finding]:
    """HF947: the learning rate of a role with saved weights does not overwrite them."""
    program = context.program
    first = {node.role: node for node in reversed(training_calls(program))}
    for role, update in first.items():
        place = program.placement(update)
        learning = role_facts.learning.of(place)
        if place is not None and learning is not None and is_large(learning):
            label, trained = Label(place.span, "configured here"), Label(update.span, "trains it")
            yield Finding("HF947", large_rate(role, learning), label, (trained,), notes=(RATE,))


def is_large(learning: Learning) -> bool:
    """Whether a learning rate is hardly meant for the weights that it changes."""
    return learning.pretrained and learning.rate > LARGEST_RATE


def large_rate(role: str, learning: Learning) -> str:
    """The message of the finding on a role with a large rate."""
    return (
        f"'{role}' learns saved weights at a rate of {learning.rate:g}, where at most {LARGEST_RATE:g} is usual: a few "
        "updates overwrite what the model has learned"
    )


def temperatures_leave_a_choice(context: Context) -> Iterator[Finding]:
    """HF947: the temperature of a policy that learns by ratios is not close to 0."""
    for role, update, temperature in low_temperatures(context.program):
        place = context.program.placement(update)
        if place is not None:
            label = Label(place.span, f"has temperature = {temperature:g}")
            trained = Label(update.span, "learns by ratios")
            yield Finding("HF947", low_temperature(role, temperature), label, (trained,), notes=(TEMPERATURE,))


def low_temperatures(program: Program) -> Iterator[tuple[str, Node, float]]:
    """The policies that learn by ratios at a temperature close to 0, each with its first such update."""
    for update in first_ratio_updates(program):
        temperature = role_facts.policy_temperature.of(program.placement(update))
        if temperature is not None and temperature < LEAST_TEMPERATURE:
            yield update.role, update, temperature


def low_temperature(role: str, temperature: float) -> str:
    """The message of the finding on a policy with a low temperature."""
    return (
        f"'{role}' has temperature = {temperature:g}, where at least {LEAST_TEMPERATURE:g} is usual: its responses "
        f"hardly differ, and its log-probs change {1 / temperature:,.0f} times as much as its logits"
    )
