"""Constant seeds: does a body that samples draw other numbers in every step?

A worked example, a method whose responses a policy learns from::

    def generate(self, prompts: Prompts) -> Rollout:
        draw = torch.Generator().manual_seed(0)                  HF362: the same stream in every call
        token = torch.multinomial(chances, 1, generator=draw)    its first number is the same in every step

Nothing fails, and each step explores what the one before has explored. In a constructor the same line is right, since
the stream continues from call to call. The rule reads what runs in every call of a body, and of the functions and
methods that it calls there by name. It accepts a seed that depends on anything. In a body that samples no tokens it
reports only draws from probabilities: a verifier may generate the same test cases every time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from hfdsl.check.bodies.names import local_names, value_of
from hfdsl.check.bodies.role_code import ReadFunction, RoleCode, code_of, code_of_function
from hfdsl.check.bodies.syntax import certain_expressions, is_decorated
from hfdsl.check.context import Context
from hfdsl.check.dependences import Dependences, trains, updates_after
from hfdsl.check.findings import Finding, Label
from hfdsl.check.sources import span_of
from hfdsl.check.syntax_trees import nodes_of
from hfdsl.graph.program import Node, RoleCall
from hfdsl.graph.spans import definition_span

GLOBAL_SEEDS: Final[Mapping[str, str]] = {
    "numpy.random.seed": "numpy",
    "random.seed": "random",
    "torch.cuda.manual_seed": "torch",
    "torch.cuda.manual_seed_all": "torch",
    "torch.manual_seed": "torch",
    "torch.random.manual_seed": "torch",
}
"""By function that seeds a global stream the package whose stream it is."""

MADE_WITH_SEEDS: Final = frozenset({"numpy.random.RandomState", "numpy.random.default_rng", "random.Random"})
"""Functions that make a stream of a seed."""

CHOICES: Final = frozenset({"bernoulli", "exponential_", "gumbel_softmax", "multinomial", "rsample", "sample"})
"""Functions of torch that draw from chances, or the noise for it."""

DRAWS: Final = CHOICES | frozenset(
    {
        "bernoulli_",
        "normal",
        "normal_",
        "rand",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "uniform_",
    }
)
"""Functions of torch that draw numbers."""

OTHER_DRAWS: Final = frozenset(
    {"choice", "choices", "gauss", "gumbel", "integers", "multinomial", "normal", "randint", "random", "uniform"}
)
"""Functions of Python and NumPy that draw numbers."""

RESTORES: Final = frozenset({"fork_rng", "set_rng_state", "set_state", "setstate"})
"""Names of what gives a stream another state than that of its last seed."""


class StreamSeed(NamedTuple):
    """A call that seeds a stream, by its name in the function: that of a package, or an expression."""

    stream: str
    place: ast.Call
    function: ReadFunction


class StreamDraw(NamedTuple):
    """A call that draws from a stream."""

    stream: str
    name: str
    place: ast.Call
    function: ReadFunction


def steps_draw_other_numbers(context: Context) -> Iterator[Finding]:
    """HF362: no body whose result an update learns from draws from a stream that a constant has seeded in the call."""
    program, seen, samplers = context.program, set[object](), Dependences(context.program).samplers
    graph = program.graph
    for node, signature in graph.bodies if not graph.misuses else ():
        update = next(updates_after(program, node), None)
        if signature.is_ready_made or update is None or trains(program, node) or is_decorated(signature.body):
            continue
        if isinstance(node.op, RoleCall):
            code = code_of(program.role_class(node.role))
        else:
            code = code_of_function(signature.body)
        for function in code.functions.get(signature.body.__name__, ())[:1]:
            repeated = _repeated_draw(_Calls(code).of(function), of_tokens=node.id in samplers)
            if repeated is not None and repeated[0].place not in seen:
                seen.add(repeated[0].place)
                yield _finding(node, update, *repeated)


def _finding(node: Node, update: Node, seed: StreamSeed, draw: StreamDraw) -> Finding:
    return Finding(
        "HF362",
        f"'{node.label}' seeds what it draws with a constant in every call, '{ast.unparse(seed.place)}': it draws the "
        "same numbers in every step",
        Label(span_of(definition_span(seed.function.body).file, seed.place), "the same seed in every step"),
        (
            Label(span_of(definition_span(draw.function.body).file, draw.place), "draws from it"),
            Label(node.span, "called here"),
            Label(update.span, "learns from the result"),
        ),
        notes=(
            "hf.current_call().generator() is another stream in every step, and the same one if a step is repeated",
        ),
    )


@dataclass(frozen=True, slots=True)
class Streams:
    """The seeds and draws of a body and of what it calls, in the names that the body has for streams.

    ``events`` are constant seeds of every call, and draws, in order; ``others`` the streams with another seed, too.
    """

    events: Sequence[StreamSeed | StreamDraw] = ()
    others: frozenset[str] = frozenset()
    restored: bool = False


def _repeated_draw(streams: Streams, *, of_tokens: bool) -> tuple[StreamSeed, StreamDraw] | None:
    """A constant seed and a draw from its stream after it."""
    seeds = dict[str, StreamSeed]()
    for event in streams.events if not streams.restored else ():
        if isinstance(event, StreamSeed):
            seeds[event.stream] = event
        elif event.stream in seeds.keys() - streams.others and (of_tokens or event.name in CHOICES):
            return seeds[event.stream], event
    return None


@dataclass(frozen=True, slots=True)
class _Calls:
    """The calls of streams in the code of a role, or of a function, at most ``depth`` functions deep."""

    code: RoleCode
    depth: int = 3

    def of(self, function: ReadFunction) -> Streams:
        """The seeds and draws of a call of a function."""
        certain = set(_certain_calls(function.definition.body))
        events, others = list[StreamSeed | StreamDraw](), set[str]()
        restored = not RESTORES.isdisjoint(function.names)
        assigned = {ast.unparse(value): ast.unparse(target) for target, value in _assignments(function)}
        calls = [node for node in nodes_of(function.definition) if isinstance(node, ast.Call)]
        for call in sorted(calls, key=lambda call: (call.end_lineno or 0, call.end_col_offset or 0)):
            seeds = [StreamSeed(stream, call, function) for stream in _seeded(function, call)]
            constant = _is_constant(function, call)
            callee = self.callee(function, call)
            if callee is not None:
                inner = _named_by_caller(call, callee, _Calls(self.code, self.depth - 1).of(callee))
                seeds, constant = [event for event in inner.events if isinstance(event, StreamSeed)], True
                events += [event for event in inner.events if call in certain or isinstance(event, StreamDraw)]
                others |= inner.others
                restored |= inner.restored
            seeds += [seed._replace(stream=assigned[seed.stream]) for seed in seeds if seed.stream in assigned]
            if constant and call in certain:
                events += [seed for seed in seeds if seed not in events]
            else:
                others |= {seed.stream for seed in seeds}
            events += _draws(function, call)
        return Streams(events, frozenset(others), restored)

    def callee(self, function: ReadFunction, call: ast.Call) -> ReadFunction | None:
        """The function or method of the role's code that a call is known to call."""
        match call.func:
            case ast.Name(name) | ast.Attribute(ast.Name("self"), name):
                candidates = self.code.functions.get(name, ())
            case _:
                return None
        return candidates[0] if len(candidates) == 1 and self.depth and candidates[0] is not function else None


def _named_by_caller(call: ast.Call, callee: ReadFunction, inner: Streams) -> Streams:
    """The streams of a function as its caller names them: what is passed or returned; others are its own."""
    arguments = [argument.arg for argument in callee.definition.args.args if argument.arg != "self"]
    names = {name: ast.unparse(value) for name, value in zip(arguments, call.args, strict=False)}
    names |= {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg}
    returned = [node.value for node in callee.definition.body if isinstance(node, ast.Return) and node.value]
    names |= {ast.unparse(value): ast.unparse(call) for value in returned}

    def outer(stream: str) -> str:
        is_shared = stream in GLOBAL_SEEDS.values() or stream.startswith("self.")
        return names.get(stream, stream if is_shared else f"{callee.definition.name}: {stream}")

    events = [event._replace(stream=outer(event.stream)) for event in inner.events]
    return Streams(events, frozenset(map(outer, inner.others)), inner.restored)


def _seeded(function: ReadFunction, call: ast.Call) -> Iterator[str]:
    """The stream that a call seeds, if it does: one that it makes has the name of the call."""
    path = function.path(call.func)
    if path in GLOBAL_SEEDS:
        yield GLOBAL_SEEDS[path]
    elif path in MADE_WITH_SEEDS and (call.args or call.keywords):
        yield ast.unparse(call)
    elif isinstance(call.func, ast.Attribute) and call.func.attr == "manual_seed":
        yield ast.unparse(call if isinstance(call.func.value, ast.Call) else call.func.value)


def _draws(function: ReadFunction, call: ast.Call) -> Iterator[StreamDraw]:
    """The stream that a call draws from, if it does."""
    path = function.path(call.func)
    name = call.func.attr if isinstance(call.func, ast.Attribute) else path.rpartition(".")[2]
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    package = path.partition(".")[0]
    if package in ("numpy", "random") and path in (f"random.{name}", f"numpy.random.{name}") and name in OTHER_DRAWS:
        yield StreamDraw(package, name, call, function)
    elif isinstance(call.func, ast.Attribute) and name in OTHER_DRAWS and package != "torch":
        yield StreamDraw(ast.unparse(call.func.value), name, call, function)
    if name in DRAWS and "generator" in keywords:
        yield StreamDraw(ast.unparse(keywords["generator"]), name, call, function)
    elif _draws_from_torch(function, name, package, keywords):
        yield StreamDraw("torch", name, call, function)


def _draws_from_torch(function: ReadFunction, name: str, package: str, keywords: Mapping[str | None, ast.expr]) -> bool:
    """Whether a call draws from the global stream of torch: a function, a method of a tensor, or one of chances."""
    if name == "generate":
        return isinstance(flag := keywords.get("do_sample"), ast.Constant) and flag.value is True
    if name in ("rsample", "sample"):
        return package != "random" and "distributions" in function.names
    return name in DRAWS and (package == "torch" or name.endswith("_") or name in CHOICES)


def _is_constant(function: ReadFunction, call: ast.Call) -> bool:
    """Whether a seed is a number, or a name of the module for one."""
    match [*call.args, *(keyword.value for keyword in call.keywords)]:
        case [ast.Constant(int())]:
            return True
        case [ast.Name(name)]:
            return name not in local_names(function.definition) and type(value_of(function.body, name)) is int
    return False


def _assignments(function: ReadFunction) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The targets of a function's assignments, each with its value."""
    for node in nodes_of(function.definition):
        match node:
            case ast.Assign([target], value) | ast.AnnAssign(target, _, ast.expr() as value):
                yield target, value


def _certain_calls(block: Sequence[ast.stmt]) -> Iterator[ast.Call]:
    """The calls of a block that are made whenever it runs, those of loops among them, up to where it may end early."""
    for statement in block:
        match statement:
            case ast.For() | ast.While() | ast.With():
                yield from _certain_calls(statement.body)
                headers = [item.context_expr for item in statement.items] if isinstance(statement, ast.With) else []
                yield from (node for header in headers for node in nodes_of(header) if isinstance(node, ast.Call))
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.Expr() | ast.Return():
                yield from (node for node in certain_expressions(statement) if isinstance(node, ast.Call))
        if any(isinstance(node, ast.Return) for node in nodes_of(statement)):
            return
