"""Experiments: a dataflow with its deployment and sizes, which is what the command line takes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hfdsl.deploy.cluster import Cluster
from hfdsl.deploy.deployment import Deployment
from hfdsl.errors import DefinitionError, ResourceError
from hfdsl.graph.dataflow import Dataflow
from hfdsl.graph.spans import NOWHERE, Span, frame_span
from hfdsl.types.dims import Dim, Sizes

if TYPE_CHECKING:
    from hfdsl.check.report import Report
    from hfdsl.plan.compiled import CompiledPlan


@dataclass(frozen=True, slots=True)
class Experiment:
    """A dataflow, where its roles run, and how large its dims are.

    ``batches`` is called without arguments when the experiment is run and gives the input of every step: one record, or
    a tuple of records in the order of the dataflow's parameters. ``seed`` is the root of every random stream of a run.
    ``cluster`` describes the nodes that it is to run on, for ``check``.

    Raises:
        DefinitionError: HF118 where ``dataflow`` is not made by ``@hf.dataflow``.
        ResourceError: HF507 where ``deployment`` is not an ``hf.Deployment``, HF523 where ``cluster`` is no
            ``hf.Cluster``.

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
    span: Span = field(default=NOWHERE, init=False, repr=False, compare=False)  # where it is written

    def __post_init__(self) -> None:
        object.__setattr__(self, "span", frame_span(sys._getframe(2)))  # past the __init__ that dataclass makes
        if not isinstance(self.dataflow, Dataflow):
            raise DefinitionError("HF118", f"an experiment takes a function under @hf.dataflow, got {self.dataflow!r}")
        if not isinstance(self.deployment, Deployment):
            raise ResourceError("HF507", f"an experiment takes an hf.Deployment, got {self.deployment!r}")
        if not isinstance(self.cluster, Cluster | None):
            raise ResourceError("HF523", f"an experiment takes an hf.Cluster, got {self.cluster!r}")

    def check(self) -> Report:
        """Everything that can be known to be wrong before launch; see ``Dataflow.check``."""
        return self.dataflow.check(self.deployment, self.dims, self.cluster)

    def compile(self) -> CompiledPlan:
        """The plan; see ``Dataflow.compile``.

        Raises:
            CheckError: with the report, where ``check`` finds errors.
        """
        return self.dataflow.compile(self.deployment, self.dims, self.cluster)
