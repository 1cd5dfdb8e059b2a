"""The target of a command: a dataflow with its deployment and sizes, and the dataflows beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hfdsl.check.context import Timing
from hfdsl.check.report import Report
from hfdsl.check.run import check
from hfdsl.deploy.cluster import Cluster
from hfdsl.deploy.experiment import Experiment
from hfdsl.deploy.retries import Retries
from hfdsl.graph.dataflow import Dataflow
from hfdsl.graph.spans import NOWHERE
from hfdsl.tools.importing import TargetSource, UsageError
from hfdsl.types.dims import Dim, Sizes

if TYPE_CHECKING:
    from hfdsl.plan.compiled import CompiledPlan
    from hfdsl.rl.training.config import Loaded
    from hfdsl.tools.rounds import RoundsAndUpdate
    from hfdsl.tools.scene import Scene


ONLY_SHOWN = ("plan", "draw", "simulate", "diff")
"""The commands that show a plan and start nothing."""


@dataclass(frozen=True, slots=True)
class CommandTarget:
    """The target of a command. Without an experiment it is a dataflow, and only its types can be checked.

    ``beside`` has the other dataflows that run on the same workers; they are checked too. With ``loaded`` a TOML file
    configures them all. A step of a run with ``rounds`` is several steps of this dataflow and then one of another.
    """

    text: str
    source: TargetSource
    dataflow: Dataflow[..., Any]
    experiment: Experiment | None
    dims: Mapping[type[Dim], Sizes]
    cluster: Cluster | None = None
    beside: tuple[CommandTarget, ...] = ()
    loaded: Loaded | None = None
    rounds: RoundsAndUpdate | None = None

    def check(self, timing: Timing | None = None) -> Report:
        """The report, with the deployment if there is one."""
        deployment = self.experiment.deployment if self.experiment else None
        span = self.experiment.span if self.experiment else NOWHERE
        loader = self.experiment.batches if self.experiment else None
        return check(self.dataflow.body, deployment, self.dims, self.cluster, span, loader, timing=timing)

    def reports(self, *, elsewhere: bool = False, timing: Timing | None = None) -> list[Report]:
        """The reports on the dataflow and on those beside it; the first also has the findings about the configuration.

        With ``elsewhere`` the run starts on another machine: the files and packages of this one say nothing. With
        ``timing`` the reports on programs with queues say how long a step takes.
        """
        if self.loaded is None:
            return [self.check(timing)]
        from hfdsl.rl.training.check import ConfigCheck  # late: other targets need nothing of rl

        return ConfigCheck(self.cluster, elsewhere, timing).reports(self.loaded)

    def plans(self, command: str) -> tuple[CompiledPlan, ...]:
        """The plans of a step: one, or the plan of a round and that of the update.

        A configured run is checked as by ``hfdsl check``. A plan that is only printed may be of a run on another
        machine, whose files and packages are not required here.

        Raises:
            UsageError: where the target is a dataflow alone.
            CheckError: where the check finds errors.
            ConfigError: HF901 if rounds do not go with the update.
        """
        if self.loaded is None:
            return (self.deployed(command).compile(),)
        from hfdsl.rl.training.check import require_clean
        from hfdsl.rl.training.experiments import compiled

        report, *beside = self.reports(elsewhere=command in ONLY_SHOWN)
        require_clean([report, *beside])
        first, *others = self.rounds.plans() if self.rounds else (compiled(self.deployed(command), self.loaded),)
        return replace(first, report=report), *others

    def plans_text(self, plans: Sequence[CompiledPlan]) -> str:
        """Plans of this target, for people."""
        if self.loaded is None:
            return "\n\n".join(map(str, plans))
        from hfdsl.rl.training.engine_choice import reasons  # late: other targets need nothing of rl

        parts = ("\n".join(reasons(self.loaded)), self.rounds, *plans, "\n".join(self._copies(plans[0])))
        return "\n\n".join(map(str, filter(None, parts)))

    @property
    def retries(self) -> Retries | None:
        """The retries of a run that a file configures."""
        return None if self.loaded is None else self.loaded.config.faults.on(self.loaded.config.backend)

    def _copies(self, plan: CompiledPlan) -> Iterator[str]:
        from hfdsl.plan.copies import copy_lines  # late: a check plans nothing

        return iter(()) if self.retries is None else copy_lines(plan, self.retries)

    def scene(self, plans: Sequence[CompiledPlan]) -> Scene:
        """Plans of this target as one drawing."""
        from hfdsl.tools.scene import scene  # late: a check draws nothing

        return self.rounds.scene(plans[0], plans[1]) if self.rounds else scene(plans[0])

    def deployed(self, command: str) -> Experiment:
        """The experiment with its sizes.

        Raises:
            UsageError: where the target is a dataflow alone.
        """
        if self.experiment is None:
            raise UsageError(
                f"'{self.text}' is a dataflow without a deployment, which 'hfdsl check' takes; 'hfdsl {command}' needs "
                "an hf.Experiment(dataflow, deployment, dims=...)"
            )
        return replace(self.experiment, dims=self.dims, cluster=self.cluster)
