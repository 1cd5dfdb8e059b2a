"""The batches of a run and of its evaluation, from its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hfdsl.errors import ConfigError
from hfdsl.graph.dataflow import Dataflow
from hfdsl.graph.program import Graph, Input
from hfdsl.protocols.worker import Worker
from hfdsl.rl.batches import Pairs, Prompts, Sequences
from hfdsl.rl.data.feed import Feed
from hfdsl.rl.data.prompts import Encoder
from hfdsl.rl.data.sources import Source
from hfdsl.rl.data.tokenizers import load_tokenizer
from hfdsl.rl.training.preflight.requirements import require_packages
from hfdsl.rl.training.preflight.tokenizers import check_models
from hfdsl.rl.training.run_config import EvaluationConfig, RunConfig
from hfdsl.types.batches import Batch

RESPONSES: Mapping[type[Batch], int] = {Prompts: 0, Sequences: 1, Pairs: 2}
"""The batches that a run feeds, with the number of responses in each row of the data."""

SIZES = (("B", "P"), ("B", "P", "R"), ("B", "P", "R"))
"""The dims that need sizes, by the number of responses."""

NEEDED = {"B": "the rows of a step", "P": "the most tokens of a prompt", "R": "the most tokens of a response"}


def responses_of(graph: Graph) -> int | None:
    """The number of responses in each row of the data that a dataflow takes; None if no run can feed it."""
    takes = _inputs(graph)
    return RESPONSES.get(takes[0]) if len(takes) == 1 else None


def other_batches(graph: Graph) -> str:
    """The message about a dataflow that no run can feed."""
    named = ", ".join(record.__name__ for record in _inputs(graph)) or "nothing"
    return f"'{graph.name}' takes {named}; a run feeds one batch of Prompts, Sequences or Pairs"


def missing_size(name: str) -> str:
    """The message about a dim that needs a size."""
    return f"dims: '{name}' is missing: {NEEDED[name]}"


def _inputs(graph: Graph) -> list[type[Batch]]:
    return [node.op.record for node in graph.inputs if isinstance(node.op, Input)]


def run_feed(
    config: RunConfig,
    roles: Mapping[str, type[Worker]],
    flow: Dataflow[..., Any],
    evaluation: Dataflow[..., Any] | None,
) -> Feed:
    """The feed of a run, without the rows that its evaluation holds out; errors as for ``training_feed``."""
    feed = training_feed(config, roles, flow.trace())
    if config.evaluation is None or evaluation is None:
        return feed
    return evaluation_batch(config, config.evaluation, evaluation.trace(), feed)[1]


def training_feed(config: RunConfig, roles: Mapping[str, type[Worker]], graph: Graph) -> Feed:
    """The feed of a dataflow, from all rows.

    Raises:
        ConfigError: HF901 for a dataflow that takes other batches, or a missing size.
        DataError: HF902 to HF904 for data, tokenizers and models that do not fit together.
        PackageError: HF990 if torch, transformers or safetensors is not installed.
    """
    require_packages()
    check_models(config, roles, load_tokenizer(config.data.tokenizer))
    return _feed(config, config.data.source, graph, config.dims)


def evaluation_batch(config: RunConfig, evaluation: EvaluationConfig, graph: Graph, feed: Feed) -> tuple[Any, Feed]:
    """The batch of a run's evaluation, and the run's feed without rows of the same text; errors as above."""
    batch, texts = _feed(config, evaluation.source, graph, {**config.dims, **evaluation.dims}).first()
    return batch, replace(feed, held_out=texts) if evaluation.held_out else feed


def _feed(config: RunConfig, source: Source, graph: Graph, sizes: Mapping[str, int]) -> Feed:
    responses = responses_of(graph)
    if responses is None:
        raise ConfigError("HF901", other_batches(graph))
    for name in SIZES[responses]:
        if name not in sizes:
            raise ConfigError("HF901", missing_size(name))
    if sizes["B"] % max(responses, 1):
        raise ConfigError("HF901", f"dims: B = {sizes['B']} rows cannot form pairs: B must be even")
    width = sizes["R"] if responses else None
    tokenizer = load_tokenizer(config.data.tokenizer)
    encoder = Encoder(config.data.prompt, tokenizer, sizes["P"], width, pairs=responses == 2)
    return Feed(source.open(), encoder, sizes["B"] // max(responses, 1), config.data.on_bad)
