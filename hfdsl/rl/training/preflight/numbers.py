"""Numbers of a configuration that have to agree with each other."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from hfdsl.check.findings import Finding
from hfdsl.check.rules.precision import COST, correction
from hfdsl.graph.dims import program_dims
from hfdsl.graph.program import Constant, FunctionCall, Graph, Input, Node, Pack, Ref, Repeat, RoleCall
from hfdsl.rl.batches import R
from hfdsl.rl.losses import PolicyLoss
from hfdsl.rl.training.feeds import NEEDED, RESPONSES, SIZES
from hfdsl.rl.training.preflight.dataflows import is_trained, learners, ready_copies, size_of
from hfdsl.rl.training.preflight.subject import Subject
from hfdsl.rl.training.ready import calls, generating
from hfdsl.rl.training.toml.changes import SetField
from hfdsl.rl.training.typed import joined
from hfdsl.rl.workers.config import ActorConfig, GenerationConfig, ReferenceConfig, SamplerConfig, computes

GRADING = ("teacher_advantages", "distance")
"""The functions of ``hfdsl.rl.functions`` that allow a teacher a temperature of its own."""


def lengths_agree(subject: Subject) -> Iterator[Finding]:
    """The limit on a response's tokens is the width of the columns that hold them."""
    for table, graph in subject.graphs.items():
        field, width = size_of(subject, table, "R")
        if width is None or R not in program_dims(graph):
            continue
        for role in generating(graph):
            generation = getattr(getattr(subject.config, role, None), "generation", None)
            if isinstance(generation, GenerationConfig) and generation.max_tokens != width:
                yield subject.finding(
                    "HF711",
                    f"'{role}' generates max_tokens = {generation.max_tokens}, and the columns of a response have "
                    f"R = {width}",
                    f"{role}.generation.max_tokens",
                    related={field: f"R = {width}"},
                    changes=(
                        SetField(f"{role}.generation.max_tokens", width),
                        SetField(field, generation.max_tokens),
                    ),
                    advice=f"set max_tokens to {width}, or R to {generation.max_tokens}",
                )


def temperatures_agree(subject: Subject) -> Iterator[Finding]:
    """Roles whose log-probs are compared divide logits by one temperature."""
    for learner, role, field in dict.fromkeys((*_compared(subject), *_sampled(subject))):
        fields = f"{learner}.generation.temperature", f"{role}.{field}"
        learned, sampled = attrgetter(*fields)(subject.config)
        if learned != sampled:
            yield subject.finding(
                "HF712",
                f"'{role}' has temperature = {sampled:g}, and '{learner}' has {learned:g}: their log-probs are of "
                "different distributions",
                f"{role}.{field}",
                related={f"{learner}.generation.temperature": f"{learned:g} here"},
                changes=(SetField(f"{role}.{field}", learned),),
                advice=f"set {role}.{field} to {learned:g}",
            )


def sizes_are_given(subject: Subject) -> Iterator[Finding]:
    """The dims of the batches that the run feeds have sizes."""
    for table, graph in subject.graphs.items():
        takes = [node.op.record for node in graph.inputs if isinstance(node.op, Input)]
        if table == "update" or len(takes) != 1 or takes[0] not in RESPONSES:
            continue
        for dim in SIZES[RESPONSES[takes[0]]]:
            if size_of(subject, table, dim)[1] is None:
                yield subject.finding("HF901", f"dims: '{dim}' is missing: {NEEDED[dim]}", "dims")


def penalties_can_act(subject: Subject) -> Iterator[Finding]:
    """Some responses are long enough for the penalty on length."""
    for table, graph in subject.graphs.items():
        field, width = size_of(subject, table, "R")
        for node in graph.nodes:
            arguments = dict(node.arguments)
            longest, buffer = arguments.get("longest"), arguments.get("buffer")
            if not (isinstance(node.op, FunctionCall) and node.label == "length_penalized_scores"):
                continue
            if not (isinstance(longest, Constant) and isinstance(buffer, Constant)) or width is None:
                continue
            free = longest.value - buffer.value
            if width <= free:
                yield subject.finding(
                    "HF718",
                    f"'{node.label}' charges responses of more than {longest.value} - {buffer.value} = {free} tokens, "
                    f"and none has more than R = {width}",
                    joined(table, "options.longest"),
                    related={field: f"R = {width}"},
                    notes=("set longest to R, and buffer to the part of it in which the penalty grows",),
                )


def responses_of_a_prompt_differ(subject: Subject) -> Iterator[Finding]:
    """A role whose responses to a prompt are compared samples from more than one token."""
    for table, graph in subject.graphs.items():
        if table == "evaluation":
            continue
        for role in generating(graph):
            generation = getattr(getattr(subject.config, role, None), "generation", None)
            compares = _comparing(graph, role)
            if isinstance(generation, GenerationConfig) and generation.top_k == 1 and compares is not None:
                yield subject.finding(
                    "HF725",
                    f"'{role}' samples from 1 token (top_k = 1), so '{compares.label}' compares equal responses: "
                    "every advantage is 0",
                    f"{role}.generation.top_k",
                    changes=(SetField(f"{role}.generation.top_k", 0),),
                )


def _comparing(graph: Graph, role: str) -> Node | None:
    """The first function on groups of a role's responses to repeated prompts."""
    repeated, sampled = set[int](), set[int]()
    for node in graph.nodes:
        sources = {ref.node for ref in node.refs}
        if isinstance(node.op, Repeat) or sources & repeated:
            repeated.add(node.id)
        generates = isinstance(node.op, RoleCall) and node.op.role == role and node.op.signature.name == "generate"
        if (generates and node.id in repeated) or sources & sampled:
            sampled.add(node.id)
        if isinstance(node.op, FunctionCall) and node.op.signature.group_size > 1 and node.id in sampled:
            return node
    return None


def divisors_are_lengths(subject: Subject) -> Iterator[Finding]:
    """The divisor of the sum over a response is the longest length, or 1."""
    for table, graph in subject.graphs.items():
        field, width = size_of(subject, table, "R")
        for node in graph.nodes:
            loss = dict(node.arguments).get("loss")
            if not (isinstance(loss, Constant) and isinstance(loss.value, PolicyLoss)) or width is None:
                continue
            divisor = loss.value.constant
            if loss.value.aggregation == "sequence-mean-token-sum" and divisor not in (None, 1, width):
                constant = joined(table, "options.loss.constant")
                yield subject.finding(
                    "HF721",
                    f"the loss of '{node.label}' divides the sum over a response by constant = {divisor:g}, and the "
                    f"longest response has R = {width}",
                    constant,
                    related={field: f"R = {width}"},
                    notes=("updates are as small as if responses were that long; without a constant it is R",),
                    changes=(SetField(constant, "none"),) if _has_loss(subject, table) else (),
                    advice=f"set the constant to {width}",
                )


def coefficients_have_a_reference(subject: Subject) -> Iterator[Finding]:
    """A loss with a KL term reads the log-probs of a reference."""
    for table, graph in subject.graphs.items():
        for node in graph.nodes:
            loss = dict(node.arguments).get("loss")
            if not (isinstance(loss, Constant) and isinstance(loss.value, PolicyLoss) and loss.value.kl):
                continue
            if _lacks_reference(subject, graph, node):
                kl = joined(table, "options.loss.kl")
                has_loss = _has_loss(subject, table)
                yield subject.finding(
                    "HF713",
                    f"the loss of '{node.label}' has kl = {loss.value.kl:g}, and '{graph.name}' has no reference: the "
                    "term would be 0",
                    kl if has_loss else joined(table, "algorithm"),
                    notes=("algorithms with a reference, such as grpo, have the term",),
                    changes=(SetField(kl, 0.0),) if has_loss else (),
                    advice="set kl to 0",
                )


def dtypes_agree(subject: Subject) -> Iterator[Finding]:
    """Roles sample responses in the dtype in which the policy learns from them."""
    for learner, actor in learners(subject):
        learns = computes(actor)
        for role in generating(subject.graphs[""]):
            config = getattr(subject.config, role, None)
            if not isinstance(config, (ActorConfig, SamplerConfig)) or (role != learner and is_trained(subject, role)):
                continue
            samples = computes(config)
            if samples == learns:
                continue
            autocast = config.training.autocast if isinstance(config, ActorConfig) else config.autocast
            change = SetField(f"{role}.autocast", learns)
            yield subject.finding(
                "HF714",
                f"'{role}' samples in {samples}, and '{learner}' learns in {learns}: their log-probs of the same "
                "tokens differ, so ratios are not 1 where the policy has not changed",
                f"{role}.{'autocast' if autocast else 'model.dtype'}",
                related={f"{learner}.training": f"computes in {learns}"},
                notes=(COST, correction(learner)),
                changes=(change,),
                advice=str(change),
            )


def caches_hold_a_row(subject: Subject) -> Iterator[Finding]:
    """The cache of an engine has room for a prompt and its response."""
    for field, generation in subject.parts(GenerationConfig):
        length = subject.config.dims.get("P", 0) + generation.max_tokens
        engine = f"the engine of '{role}'" if (role := subject.role_of(field)) else "the engine"
        if generation.engine == "vllm" and generation.cache_tokens < length:
            yield subject.finding(
                "HF952",
                f"the cache of {engine} has {generation.cache_tokens} tokens, and a prompt with its response takes up "
                f"to {length}",
                f"{field}.cache_tokens",
                related={"dims": f"P = {subject.config.dims.get('P', 0)}"},
                notes=(f"set {field}.cache_tokens to {length} times the rows that are to be sampled at once",),
            )


def _compared(subject: Subject) -> Iterator[tuple[str, str, str]]:
    """The policy that learns, each role whose log-probs meet its own, and the field of that role's temperature."""
    graph = subject.graphs[""]
    for learner, _ in learners(subject):
        for role in generating(graph):
            generation = getattr(getattr(subject.config, role, None), "generation", None)
            if role != learner and isinstance(generation, GenerationConfig):
                yield learner, role, "generation.temperature"
        for op, node in calls(graph, "log_probs"):
            readers = {reader.label for reader in graph.nodes if any(_is_of(ref, node) for _, ref in reader.arguments)}
            is_reference = isinstance(getattr(subject.config, op.role, None), ReferenceConfig)
            if is_reference and not readers <= set(GRADING):
                yield learner, op.role, "temperature"


def _sampled(subject: Subject) -> Iterator[tuple[str, str, str]]:
    """The actors, and the roles that sample with their weights."""
    for graph in subject.graphs.values():
        for actor, sampler in ready_copies(subject, graph):
            yield actor, sampler, "generation.temperature"


def _is_of(ref: Any, node: Node) -> bool:
    return isinstance(ref, Ref) and ref.node == node.id


def _lacks_reference(subject: Subject, graph: Graph, update: Node) -> bool:
    """Whether the experience of an update certainly has no log-probs of a reference."""
    source = dict(update.arguments).get("experience")
    while isinstance(source, Ref):
        node = graph.nodes[source.node]
        if isinstance(node.op, Pack):
            return dict(node.arguments).get("ref_log_probs") == Constant(None)
        if isinstance(node.op, Input) and graph is not subject.graphs[""]:
            packs = [dict(sampled.arguments) for sampled in subject.graphs[""].nodes if isinstance(sampled.op, Pack)]
            columns = [pack["ref_log_probs"] for pack in packs if "ref_log_probs" in pack]
            return bool(columns) and all(column == Constant(None) for column in columns)
        source = None if isinstance(node.op, (RoleCall, FunctionCall, Input)) else node.batch
    return False


def _has_loss(subject: Subject, table: str) -> bool:
    config: Any = getattr(subject.config, table) if table else subject.config
    return hasattr(config.options, "loss")
