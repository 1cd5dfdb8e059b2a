"""Experiments: a dataflow with its deployment and sizes, as the command line takes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hfdsl.deploy.cluster import Cluster
from hfdsl.deploy.deployment import Deployment
from hfdsl.errors import DefinitionError, ResourceError
from hfdsl.graph.dataflow import Dataflow, check_experiment, require_batches
from hfdsl.graph.spans import NOWHERE, Span, caller_span
from hfdsl.types.arguments import constructor_takes
from hfdsl.types.dims import Dim, Sizes
from hfdsl.types.numbers import checked_seed

if TYPE_CHECKING:
    from hfdsl.check.report import Report
    from hfdsl.plan.compiled import CompiledPlan
    from hfdsl.plan.optimize import Optimize


@constructor_takes(ResourceError, "HF507", "hf.Experiment")
@dataclass(frozen=True, slots=True)
class Experiment:
    """A dataflow, where its roles run, and how large its dims are.

    ``batches`` is called without arguments when the experiment is run and gives the input of every step: one record, or
    a tuple of records in the order of the dataflow's parameters. ``seed`` is the root of every random stream of a run.
    ``cluster`` describes the nodes that it is to run on, for ``check``; ``optimize`` are the switches of its plan.

    Raises:
        DefinitionError: HF118 if ``dataflow`` is not made by ``@hf.dataflow``.
        ResourceError: HF507 if ``deployment`` is not an ``hf.Deployment``, HF523 if ``cluster`` is no
            ``hf.Cluster``, HF542 if ``batches`` is not a function, HF932 if ``seed`` is not a whole number.

    >>> import hfdsl as hf
    >>> class B(hf.Dim): ...
    >>> class Questions(hf.Batch):
    ...     text: hf.Obj[str, B]
    >>> class Echo(hf.Worker):
    ...     @hf.register(hf.Dispatch.DP_PROTO)
    ...     def answer(self, questions: Questions) -> Questions:
    ...         return questions
    >>> @hf.dataflow
    ... def parrot(questions: Questions, echo: Echo) -> Questions:
    ...     return echo.answer(questions)
    >>> pool = hf.ResourcePool([2], use_gpu=False)
    >>> experiment = hf.Experiment(parrot, hf.Deployment(echo=hf.place(Echo, pool=pool)), dims={B: 7})
    >>> experiment.check().codes
    ('HF310',)
    """

    dataflow: Dataflow[..., Any]
    deployment: Deployment
    dims: Mapping[type[Dim], Sizes] = field(default_factory=dict)
    batches: Callable[[], Iterable[Any]] | None = None
    seed: int = 0
    cluster: Cluster | None = None
    optimize: Optimize | None = None
    span: Span = field(default=NOWHERE, init=False, repr=False, compare=False)  # where it is written

    def __post_init__(self) -> None:
        object.__setattr__(self, "span", caller_span())
        if not isinstance(self.dataflow, Dataflow):
            raise DefinitionError("HF118", f"an experiment takes a function under @hf.dataflow, got {self.dataflow!r}")
        if not isinstance(self.deployment, Deployment):
            raise ResourceError("HF507", f"an experiment takes an hf.Deployment, got {self.deployment!r}")
        if not isinstance(self.cluster, Cluster | None):
            raise ResourceError("HF523", f"an experiment takes an hf.Cluster, got {self.cluster!r}")
        if self.batches is not None and not callable(self.batches):
            text = "batches= of an experiment is a function without parameters that returns the batches"
            raise ResourceError("HF542", f"{text}, got {type(self.batches).__name__}: write lambda: ...")
        object.__setattr__(self, "seed", checked_seed(self.seed, "seed= of an experiment"))

    def check(self) -> Report:
        """Everything that can be known to be wrong before launch; see ``Dataflow.check``."""
        return check_experiment(self.dataflow, self.deployment, self.dims, self.cluster, self.span, self.batches)

    def compile(self) -> CompiledPlan:
        """The plan; see ``Dataflow.compile``.

        Raises:
            CheckError: with the report, where ``check`` finds errors.
        """
        plan = self.dataflow.compile(self.deployment, self.dims, self.cluster, self.optimize)
        if self.batches is not None:
            require_batches(self.dataflow, self.batches, self.span)
        return plan
