"""The check of a configured run: of its dataflows, and of everything else that is known before launch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from hfdsl.check.context import Timing
from hfdsl.check.findings import Edit, Finding, order
from hfdsl.check.raised import findings_of
from hfdsl.check.report import CheckError, Report
from hfdsl.check.run import check
from hfdsl.deploy.cluster import Cluster
from hfdsl.errors import HfError
from hfdsl.graph.dataflow import Dataflow, traced_once
from hfdsl.graph.program import Input
from hfdsl.graph.spans import NOWHERE
from hfdsl.rl.batches import Pairs
from hfdsl.rl.training.config import Loaded, load
from hfdsl.rl.training.config_names import Find
from hfdsl.rl.training.experiments import Experiments, checked, size_fields
from hfdsl.rl.training.places import Places
from hfdsl.rl.training.preflight.relocation import deciding_fields, option_fields
from hfdsl.rl.training.preflight.run import preflight
from hfdsl.rl.training.toml.changes import SetField
from hfdsl.rl.training.toml.trials import Attempt, ConfigTrials, help_error
from hfdsl.types.dims import Dim

AT_A_KEY: Mapping[str, str] = {"HF714": "HF942"}
"""Findings at keys of a configuration, each with the finding of the dataflow that it replaces."""

DECIDED_AT_KEYS = frozenset({"HF909", "HF967"})
"""Findings of a dataflow that are found in a configuration, too, which knows more: the end token of its tokenizer."""

CAUSES: Mapping[str, tuple[str, ...]] = {"HF959": ("HF504",), "HF963": ("HF730", "HF731", "HF732", "HF963")}
"""Findings of a configuration, each with those of a dataflow that it causes: full GPUs, parameters that differ."""


def _other_value(finding: Finding) -> Any:
    """The value to try for an option that a finding of a dataflow is about; None if there is none."""
    match finding.code:
        case "HF314":
            return 8  # a group of more than one response
        case "HF360":
            limit = re.search(r"at most (\d+) are kept", finding.message)
            return None if limit is None else int(limit[1])
        case "HF759":
            least = re.search(r"with lag=(\d+)$", finding.message)
            return None if least is None else int(least[1])
        case "HF943":
            return {"level": "token"}  # the default correction
        case "HF948":
            return 1.0  # no discount
    return None


@dataclass(frozen=True, slots=True)
class ConfigCheck:
    """The check of a run on a cluster; with ``elsewhere``, without the files and packages of this machine.

    With ``timing`` the reports on programs with queues say how long a step takes.
    """

    cluster: Cluster | None = None
    elsewhere: bool = False
    timing: Timing | None = None

    @traced_once()
    def reports(self, loaded: Loaded) -> list[Report]:
        """The reports on all dataflows of a run; the first includes the findings of the configuration.

        Raises:
            ConfigError: HF901 for sizes and placements that do not fit the dataflow.
        """
        places = loaded.places
        trials = None
        if isinstance(places, Places):
            trials = ConfigTrials(places, lambda: self._attempt(places.main.file, places.changes, loaded.find))
        report, *beside = self._reports(loaded, trials)
        return [report, *beside]

    @traced_once()
    def load(self, path: str, changes: Sequence[str], find: Find) -> Loaded:
        """Load the configuration of a file, and place its roles.

        Raises:
            ConfigError: HF901 as for ``config.load`` and ``reports``, with changes of the file that fix it.
        """
        try:
            loaded = load(path, changes, find)
            Experiments.of(loaded, self.cluster)
        except HfError as error:
            trials = ConfigTrials(Places.of(path, changes), lambda: self._attempt(path, changes, find))
            help_error(error, trials)
            raise
        return loaded

    def _attempt(self, path: str, changes: Sequence[str], find: Find | None) -> Attempt:
        stage = 0
        try:
            loaded = load(path, changes, find)
            stage = 1
            Experiments.of(loaded, self.cluster)
            stage = 2
            return Attempt(stage, tuple(finding for report in self._reports(loaded, None) for finding in report))
        except HfError as error:
            return Attempt(stage, findings_of(error))

    def _reports(self, loaded: Loaded, trials: ConfigTrials | None) -> list[Report]:
        reports = []
        for table, experiment in Experiments.of(loaded, self.cluster).items():
            report = check(
                experiment.dataflow.body,
                experiment.deployment,
                experiment.dims,
                self.cluster,
                NOWHERE,
                numbers=ConfigNumbers(loaded, table),
                is_shuffled=not table and not _takes_pairs(experiment.dataflow),
                repairs=trials is not None or not isinstance(loaded.places, Places),
                timing=self.timing,
            )
            report = checked(report, loaded, table)
            if trials is not None:
                findings = [
                    _with_options(trials.with_working_fixes(finding), loaded, trials, table) for finding in report
                ]
                report = replace(report, findings=tuple(findings))
            reports.append(report)
        codes = reports[0].codes
        at_keys = [
            finding
            for finding in preflight(loaded, elsewhere=self.elsewhere, trials=trials, cluster=self.cluster)
            if finding.code not in AT_A_KEY or AT_A_KEY[finding.code] in codes
        ]
        stated = {(finding.code, finding.message) for finding in at_keys}
        reports = [
            replace(report, findings=tuple(f for f in report if (f.code, f.message) not in stated))
            for report in reports
        ]
        repeated = DECIDED_AT_KEYS | {AT_A_KEY[finding.code] for finding in at_keys if finding.code in AT_A_KEY}
        repeated |= {code for finding in at_keys for code in CAUSES.get(finding.code, ())}
        remaining = [finding for finding in reports[0].findings if finding.code not in repeated]
        run_report, *beside = reports
        return list(_each_once([replace(run_report, findings=order([*remaining, *at_keys])), *beside]))


def _takes_pairs(dataflow: Dataflow[..., Any]) -> bool:
    """Whether a run feeds two consecutive rows for each question."""
    return any(isinstance(node.op, Input) and node.op.record is Pairs for node in dataflow.trace().inputs)


def _each_once(reports: Sequence[Report]) -> Iterator[Report]:
    """The reports, each without the findings of those before it: all dataflows of a run share their placements."""
    reported: set[tuple[object, ...]] = set()
    for report in reports:
        keys = [(finding.code, finding.primary.span, finding.message) for finding in report]
        new = tuple(finding for finding, key in zip(report, keys, strict=True) if key not in reported)
        yield replace(report, findings=new)
        reported |= set(keys)


def _with_options(finding: Finding, loaded: Loaded, trials: ConfigTrials, table: str) -> Finding:
    """A finding of a dataflow, with another value for its option as help."""
    value = _other_value(finding)
    if value is None:
        return finding
    fields = (*islice(deciding_fields(finding, loaded, table), 1), *option_fields(finding, loaded))
    return trials.helped(finding, [SetField(field, value) for field in fields])


def require_clean(reports: Sequence[Report]) -> None:
    """Refuse a run whose reports have an error.

    Raises:
        CheckError: with the first report that has an error.
    """
    for report in reports:
        if not report.ok:
            raise CheckError(report)


@dataclass(frozen=True, slots=True)
class ConfigNumbers:
    """Edits of sizes and meshes at the keys of a configuration; ``table`` names the dataflow."""

    loaded: Loaded
    table: str

    def size(self, dim: type[Dim], number: int) -> Edit | None:
        """Another size of a dim."""
        field = size_fields(self.loaded.config, self.table).get(dim.__name__)
        return None if field is None else self._edit(field, number)

    def axis(self, role: str, axis: str, number: int) -> Edit | None:
        """Another size of an axis of a role's mesh, even if other roles share it."""
        placed = f"roles.{role}" if role in self.loaded.config.deployment.roles else "default"
        return self._edit(f"deployment.{placed}.mesh.{axis}", number)

    def _edit(self, field: str, number: int) -> Edit | None:
        if not isinstance(self.loaded.places, Places):
            return None
        return next(iter(self.loaded.places.edits(SetField(field, number))), None)
