"""The dataflow: a plain Python function that can be called, checked and compiled."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, get_type_hints

from hfdsl.errors import DefinitionError, ResourceError, WiringError
from hfdsl.graph.active import active_tracer
from hfdsl.graph.annotations import type_hints
from hfdsl.graph.eager import active_run, eager_arguments, eager_run, inner_result
from hfdsl.graph.fits import fits_static
from hfdsl.graph.parameters import optional_roles, with_defaults
from hfdsl.graph.program import Constant
from hfdsl.graph.signatures import deferred, is_option
from hfdsl.types.bounds import bounds_of, misfit
from hfdsl.types.column_annotations import REDUCTION_LITERALS
from hfdsl.types.dims import Dim, Sizes
from hfdsl.types.numbers import brief
from hfdsl.types.similar_names import closest

if TYPE_CHECKING:
    from hfdsl.check.report import Report
    from hfdsl.deploy.cluster import Cluster
    from hfdsl.deploy.deployment import Deployment
    from hfdsl.graph.spans import Span
    from hfdsl.graph.traced import TracedGraph
    from hfdsl.plan.compiled import CompiledPlan
    from hfdsl.plan.optimize import Optimize
    from hfdsl.protocols.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
DimT = TypeVar(
    "DimT", bound="type[Dim]"
)  # a mapping is invariant in its keys: {B: 4} alone is no Mapping[type[Dim], int]


class Dataflow(Generic[P, R]):
    """A dataflow.

    Call it with real workers and batches to run it eagerly; ``check`` and ``compile`` trace it instead.
    """

    def __init__(self, body: Callable[P, R]) -> None:
        functools.update_wrapper(self, body)
        self.body = body
        self._steps = 0

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run eagerly, each worker as a world of one rank; within another dataflow, inline the steps into it.

        Raises:
            WiringError: HF202, HF203, HF206 for arguments that do not match the parameters.
        """
        tracer = active_tracer((*args, *kwargs.values()))
        if tracer is not None:
            return tracer.call_dataflow(self.body, args, kwargs)  # type: ignore[no-any-return]  # stands for an R
        bound = eager_arguments(self.body, args, kwargs)
        body: Callable[..., R] = self.body  # the same parameters, workers as roles
        if active_run() is not None:
            return inner_result(
                self.body, body(*bound.args, **bound.kwargs)
            )  # its calls are the outer run's, as in a trace
        with eager_run(self.body.__name__, seed=0, step=self._steps):
            result = body(*bound.args, **bound.kwargs)
        self._steps += 1
        return result

    @property
    def options(self) -> dict[str, Any]:
        """The keyword-only parameters with a default, by name: plain values that shape the program.

        >>> import hfdsl as hf
        >>> class B(hf.Dim): ...
        >>> class Questions(hf.Batch):
        ...     text: hf.Obj[str, B]
        >>> @hf.dataflow
        ... def ask(questions: Questions, *, times: int = 2) -> Questions:
        ...     return hf.repeat(questions, times)
        >>> ask.options, ask.given(times=3).options
        ({'times': 2}, {'times': 3})
        """
        parameters, roles = inspect.signature(self.body).parameters.values(), self.optional_roles
        return {p.name: p.default for p in parameters if is_option(p) and p.name not in roles}

    @property
    def optional_roles(self) -> dict[str, type[Worker]]:
        """The optional roles, by name: the role parameters with the default None.

        >>> import hfdsl as hf
        >>> from hfdsl.rl.dataflows.grpo import grpo
        >>> grpo.optional_roles
        {'sampler': <class 'hfdsl.rl.workers.sampler.Sampler'>}
        """
        return optional_roles(self.body)

    def given(self, **options: Any) -> Dataflow[P, R]:
        """This dataflow with other options, or with an optional role: ``given(sampler=Sampler)``.

        ``check`` and ``compile`` with a deployment add the optional roles that the deployment places.

        Raises:
            WiringError: HF202 for an unknown option, HF206 for a value of the wrong type or outside of the annotated
                bounds.

        >>> import hfdsl as hf
        >>> class B(hf.Dim): ...
        >>> class Questions(hf.Batch):
        ...     text: hf.Obj[str, B]
        >>> @hf.dataflow
        ... def ask(questions: Questions, *, times: int = 2) -> Questions:
        ...     return hf.repeat(questions, times)
        >>> ask.given(times=3)(Questions(text=["why?"])).text.objects
        ['why?', 'why?', 'why?']
        """
        own_options, hints = self.options, type_hints(self.body, f"'{self.body.__name__}'")
        roles = {name: role for name, role in options.items() if name in self.optional_roles}
        for name, role in roles.items():
            if role is not None and not (isinstance(role, type) and issubclass(role, self.optional_roles[name])):
                kind = self.optional_roles[name].__name__
                raise WiringError("HF206", f"role '{name}' of '{self.body.__name__}' is {kind} or None, got {role!r}")
        options = {name: value for name, value in options.items() if name not in roles}
        for name, value in options.items():
            if name not in own_options:
                advice = closest(name, list(own_options))
                if name in inspect.signature(self.body).parameters:
                    advice = "this parameter would be one behind '*' and with a default"
                raise WiringError("HF202", f"'{self.body.__name__}' has no option '{name}'; {advice}")
            if name in hints and not fits_static(Constant(value), hints[name]):
                shown = getattr(hints[name], "__name__", hints[name])
                raise WiringError(
                    "HF206", f"option '{name}' of '{self.body.__name__}' takes {shown}, got {brief(value)}"
                )
        bounded = get_type_hints(self.body, localns=REDUCTION_LITERALS, include_extras=True)
        for name, value in options.items():
            if bounds_of(bounded.get(name)) is not None and (problem := misfit(bounded[name], value)):
                raise WiringError("HF206", f"option '{name}' of '{self.body.__name__}' {problem}")
        return Dataflow(with_defaults(self.body, {**own_options, **options, **roles}))

    def __repr__(self) -> str:
        return f"<dataflow {self.body.__qualname__}>"

    def trace(self) -> TracedGraph:
        """The graph of this dataflow, mistakes included."""
        from hfdsl.graph.trace import trace

        traces = _traces.get()
        if traces is None:
            return trace(self.body)
        if self not in traces:
            traces[self] = trace(self.body)
        return traces[self]

    def check(
        self,
        deployment: Deployment | None = None,
        dims: Mapping[DimT, Sizes] | None = None,
        cluster: Cluster | None = None,
    ) -> Report:
        """Report every mistake that can be known before launch; never raises for a mistake in the program.

        ``dims`` gives sizes (rows, tokens); dims that it omits stay symbolic. If a dim has several sizes, such as
        ``{B: (512, 100)}`` with a smaller last batch, each must work. With a ``cluster``, the check also decides
        whether its nodes can hold the deployment.
        """
        from hfdsl.check.run import check

        if deployment is not None:
            _check_deployment(self, deployment)
        return check(self.body, deployment, _sizes(dims), _described(self, cluster))

    def compile(
        self,
        deployment: Deployment,
        dims: Mapping[DimT, Sizes] | None = None,
        cluster: Cluster | None = None,
        optimize: Optimize | None = None,
    ) -> CompiledPlan:
        """The plan of this dataflow on ``deployment``, for one size of each dim.

        ``optimize`` switches single optimizations off: see ``hf.Optimize``.

        Raises:
            CheckError: with the report, if ``check`` finds errors; HF302 if a dim has several sizes.
            ResourceError: HF507 if ``deployment`` is not a deployment, HF523 if ``cluster`` is not a cluster.
            WiringError: HF206 if ``optimize`` is not an ``hf.Optimize``.
        """
        from hfdsl.plan.build import compile_dataflow

        _check_deployment(self, deployment)
        return compile_dataflow(self.body, deployment, _sizes(dims), _described(self, cluster), optimize)


_traces: ContextVar[dict[Dataflow[..., Any], TracedGraph] | None] = ContextVar("_traces", default=None)


@contextmanager
def traced_once() -> Iterator[None]:
    """A context in which ``Dataflow.trace`` traces each dataflow once: what it reads of its module stays the same."""
    token = None if _traces.get() is not None else _traces.set({})
    try:
        yield
    finally:
        if token is not None:
            _traces.reset(token)


def check_experiment(
    flow: Dataflow[..., Any],
    deployment: Deployment,
    dims: Mapping[type[Dim], Sizes] | None,
    cluster: Cluster | None,
    place: Span,
    loader: Callable[[], Any] | None,
) -> Report:
    """The report on a dataflow with the loader of its batches; ``place`` is where both are written."""
    from hfdsl.check.run import check

    return check(flow.body, deployment, _sizes(dims), cluster, place, loader)


def require_batches(flow: Dataflow[..., Any], loader: Callable[[], Any], place: Span) -> None:
    """Hold the loader of an experiment against the records that its dataflow takes.

    Raises:
        CheckError: with HF542, if it gives others.
    """
    from hfdsl.check.rules.placement.loaders import require_fit

    require_fit(flow.trace(), loader, place)


def _sizes(dims: Mapping[Any, Sizes] | None) -> Mapping[type[Dim], Sizes]:
    return {} if dims is None else dims


def _check_deployment(flow: Dataflow[..., Any], deployment: object) -> None:
    # By its parts: the room of deployments comes after this one.
    if not hasattr(deployment, "placements"):
        raise ResourceError("HF507", f"'{flow.body.__name__}' is placed by an hf.Deployment, got {deployment!r}")


def _described(flow: Dataflow[..., Any], cluster: Cluster | None) -> Cluster | None:
    if cluster is not None and not hasattr(cluster, "kinds"):
        raise ResourceError("HF523", f"'{flow.body.__name__}' is checked against an hf.Cluster, got {cluster!r}")
    return cluster


def dataflow(body: Callable[P, R], /) -> Dataflow[P, R]:
    """Turn a function of records and roles into a dataflow.

    Raises:
        DefinitionError: HF118 if ``body`` is not a function, HF121 if it is async or a generator.

    >>> import hfdsl as hf
    >>> class B(hf.Dim): ...
    >>> class Questions(hf.Batch):
    ...     text: hf.Obj[str, B]
    >>> class Echo(hf.Worker):
    ...     @hf.register(hf.Dispatch.DP_PROTO)
    ...     def answer(self, questions: Questions) -> Questions:
    ...         return Questions(text=[t.upper() for t in questions.text.objects])
    >>> @hf.dataflow
    ... def shout(questions: Questions, echo: Echo) -> Questions:
    ...     return echo.answer(questions)
    >>> shout(Questions(text=["hey"]), Echo()).text.objects
    ['HEY']
    """
    if not callable(body) or not hasattr(body, "__name__") or isinstance(body, type):
        raise DefinitionError("HF118", f"@hf.dataflow takes a function, got {body!r}")
    if kind := deferred(body):
        raise DefinitionError(
            "HF121", f"'{body.__name__}' is {kind}: a dataflow is a plain def, which is called once to see what it does"
        )
    return Dataflow(body)
