"""The dataflows of a configuration: those of the run, its update and its evaluation, on the same placements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import hfdsl as hf
from hfdsl.deploy.cluster import Cluster
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.rl.training.config import Loaded
from hfdsl.rl.training.preflight.relocation import relocated
from hfdsl.rl.training.run_config import RunConfig

ELSEWHERE = "HF508"
"""The code for a placement of a role that a dataflow lacks; here, another dataflow has the role."""


@dataclass(frozen=True, slots=True)
class Experiments:
    """The dataflow of a run, and those that run beside it on the same workers."""

    run: hf.Experiment
    update: hf.Experiment | None = None
    evaluation: hf.Experiment | None = None

    @classmethod
    def of(cls, loaded: Loaded, cluster: Cluster | None = None) -> Experiments:
        """The experiments of a configuration, on one deployment; errors as for ``Loaded.experiment``."""
        config = loaded.config
        run = replace(loaded.experiment(), cluster=cluster)
        update = evaluation = None
        if config.update is not None and loaded.update is not None:
            update = replace(run, dataflow=loaded.update, dims=loaded.sizes({"B": config.update.rows}), batches=None)
        if config.evaluation is not None and loaded.evaluation is not None:
            sizes = loaded.sizes(config.evaluation.dims)
            evaluation = replace(run, dataflow=loaded.evaluation, dims=sizes, batches=None)
        return cls(run, update, evaluation)

    def items(self) -> Iterator[tuple[str, hf.Experiment]]:
        """The experiments by the table that names their dataflow: ``""``, ``"update"``, ``"evaluation"``."""
        for table, experiment in (("", self.run), ("update", self.update), ("evaluation", self.evaluation)):
            if experiment is not None:
                yield table, experiment

    def __iter__(self) -> Iterator[hf.Experiment]:
        return (experiment for _, experiment in self.items())


def size_fields(config: RunConfig, table: str) -> dict[str, str]:
    """The field with the size of each dim, for the dataflow that a table names."""
    sizes = {dim: f"dims.{dim}" for dim in config.dims}
    if table == "evaluation" and config.evaluation is not None:
        sizes |= {dim: f"evaluation.dims.{dim}" for dim in config.evaluation.dims}
    return {**sizes, "B": "update.rows"} if table == "update" else sizes


def checked(report: hf.Report, loaded: Loaded | None, table: str = "") -> hf.Report:
    """The report on one dataflow of a configuration, without findings of others, at places that a user can edit."""
    report = report.without(ELSEWHERE)
    return report if loaded is None else relocated(report, loaded, size_fields(loaded.config, table), table)


def compiled(experiment: hf.Experiment, loaded: Loaded | None = None, table: str = "") -> CompiledPlan:
    """The plan of the dataflow that a table names; with ``loaded``, findings are at the keys of its file.

    It has a name of its own among the plans of ``loaded``, which run on the same workers.

    Raises:
        CheckError: with the report, if a check finds errors.
    """
    try:
        plan = experiment.compile()
    except hf.CheckError as error:
        raise hf.CheckError(checked(error.report, loaded, table)) from None
    plan = replace(plan, report=checked(plan.report, loaded, table))
    if loaded is None or not table:
        return plan
    before = (loaded.algorithm, loaded.update if table == "evaluation" else None)
    is_taken = any(flow.trace().name == plan.name for flow in before if flow is not None)
    return replace(plan, graph=replace(plan.graph, name=f"{table} {plan.name}")) if is_taken else plan
