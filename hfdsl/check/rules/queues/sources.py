"""Sources: stages that dispatch prompts of the same loader, each at its own pace, in a program with dynamic queues.

A worked example. Of each batch of the loader, one source has dispatched four prompts and the other one none. These four
wait in the driver. How many wait at most?

- An update takes R groups from each source, whose steps put in D: after v updates a source has dispatched v R / D
  batches and those in its queues. If R / D is another number for the other source, more and more of its prompts wait
  (HF758).
- If these numbers are equal, and no group leaves a queue but with an update, two sources are as far apart as their
  queues have places. "refill" keeps this: the prompt of a late group is dispatched again, and not another one.
- The next prompts of the loader make up for a group that "drop" or a filter removes. Their other half waits forever,
  since nothing removes groups of the other source (HF757). If d of the D groups of a step are lost, n updates leave
  n R d / D (D - d) batches behind. No backpressure can bound that: the source that loses groups would wait for the
  other one, which waits for an update, which needs rows of both. With lag=0, "drop" removes nothing in front of an
  update: only R groups are in progress, all dispatched under its version.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.queue_bounds import stated_rows
from hfdsl.check.repair.queues import queued
from hfdsl.check.repair.suggestions import with_suggestions
from hfdsl.check.sizes.demands import filtered
from hfdsl.graph.program import Node, Queue
from hfdsl.graph.queue_problems import takes_weights_in_flight
from hfdsl.protocols.queueing import batches_in_words
from hfdsl.types.dims import Size, at_most, constant


class SourceQueue(NamedTuple):
    """A queue that rows of a source come through; ``first`` is one that the source itself feeds."""

    source: int
    first: Node
    node: Node
    queue: Queue
    trains: bool


def sources_lose_alike(context: Context) -> Iterator[Finding]:
    """HF757: no source loses groups for which it dispatches other prompts than the other sources."""
    through = _source_queues(context)
    for source_queue in through:
        node, queue = source_queue.node, source_queue.queue
        loses = filtered(put_in(context, node))
        drops = queue.late == "drop" and not (queue.lag == 0 and source_queue.trains)
        other_queue = next(candidate for candidate in through if candidate.source != source_queue.source)
        if not (drops or loses):
            continue
        remover = "a filter in front of this queue removes groups" if loses else "this queue drops late groups"
        finding = Finding(
            "HF757",
            f"{remover}, and its source continues with the loader's next batches: rows of the other source pile up "
            "in the driver",
            Label(node.span, "removes groups"),
            (Label(other_queue.node.span, "rows of another source"),),
        )
        same_step = "train what the filter has kept of one step: "
        suggestions = (
            [queued(node, [{"late": "wait"}], same_step)]
            if loses
            else [queued(node, [{"late": "refill"}], "dispatch the same prompts again: ")]
        )
        yield with_suggestions(context, finding, suggestions, "one source that returns both keeps them together")


def sources_take_alike(context: Context) -> Iterator[Finding]:
    """HF758: an update takes the same share of the loader's batches from every source."""
    shares = dict[Fraction, SourceQueue]()
    for source_queue in _source_queues(context):
        dispatched, read_rows = (
            put_in(context, source_queue.first),
            batch_rows(context, source_queue.node, source_queue.queue),
        )
        first = source_queue.first.op
        if source_queue.trains and isinstance(first, Queue) and dispatched.value and read_rows.value:
            share = Fraction(int(read_rows.value), source_queue.queue.group) / Fraction(
                int(dispatched.value), first.group
            )
            shares.setdefault(share, source_queue)
    if len(shares) > 1:
        least, most = min(shares), max(shares)
        less, more = batches_in_words(least), batches_in_words(most)
        yield Finding(
            "HF758",
            f"an update takes {more} of the loader from this source and {less} from the other one: more and more "
            "prompts of that one wait in the driver",
            Label(shares[most].node.span, f"takes {more}"),
            (Label(shares[least].node.span, f"takes {less}"),),
            notes=("give both batches the rows of the same number of steps",),
        )


def _source_queues(context: Context) -> list[SourceQueue]:
    """The queues by source, of a program that has several sources and dynamic queues."""
    split = context.program.split
    decides = any(queue.decides for _, queue in split.queues)
    decides |= takes_weights_in_flight(context.program.graph)
    if split.around or not decides:
        return []
    ends = [(split.producer(node), split.of[node.id], node, queue) for node, queue in split.queues]
    feeding, reading = {feeds for feeds, *_ in ends}, {reads for _, reads, *_ in ends}
    through = list[SourceQueue]()
    for source in sorted(feeding - reading):
        stages = {source}
        first = next(node for feeds, _, node, _ in ends if feeds == source)
        for feeds, reads, node, queue in sorted(ends, key=lambda end: end[0]):  # a stage feeds only later ones
            if feeds in stages:
                through.append(SourceQueue(source, first, node, queue, reads not in feeding))
                stages |= {reads} & feeding
    return through if len(feeding - reading) > 1 else []


def put_in(context: Context, node: Node) -> Size:
    """The rows that a step puts into a queue, or at most those where a filter is in front."""
    rows = None if node.batch is None else context.program.inference.rows(node.batch.node)
    return constant(0) if rows is None else context.known(rows)


def batch_rows(context: Context, node: Node, queue: Queue) -> Size:
    """The rows of a batch that a queue passes on, or at most those where a filter is in front."""
    stated = stated_rows(context, queue)
    return context.known(at_most(put_in(context, node))) if stated is None else stated
