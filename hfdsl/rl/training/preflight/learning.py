"""Checks that the training of a run trains, and that its evaluation does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hfdsl.check.dependences import trains
from hfdsl.check.findings import Finding, Label
from hfdsl.graph.program import RoleCall
from hfdsl.rl.training.preflight.subject import Subject
from hfdsl.rl.training.ready import is_ready


def evaluations_train_nothing(subject: Subject) -> Iterator[Finding]:
    """HF706: no call of the evaluation writes a state, such as the policy."""
    graph = subject.graphs.get("evaluation")
    for node in graph.calls if graph is not None else ():
        if trains(node):
            finding = subject.finding(
                "HF706",
                f"the evaluation calls '{node.label}', which trains: the run would learn from the rows that it is "
                "evaluated on",
                "evaluation.algorithm",
                notes=("an evaluation samples and scores, as hfdsl.rl.training.evaluation:evaluate does",),
            )
            yield replace(finding, related=(*finding.related, Label(node.span, "trains")))
            return


def training_trains(subject: Subject) -> Iterator[Finding]:
    """HF705: a call of the training writes a state; of roles that declare nothing nobody knows."""
    graphs = [graph for table, graph in subject.graphs.items() if table != "evaluation"]
    calls = [node for graph in graphs for node in graph.calls]
    roles = {op.role for node in calls if isinstance(op := node.op, RoleCall)}
    if not any(map(trains, calls)) and all(is_ready(subject.loaded.roles[role]) for role in roles):
        yield subject.finding(
            "HF705",
            f"'{subject.graphs[''].name}' trains no role: the run would end with the weights that it begins with",
            "algorithm",
            notes=("name the dataflow that learns from its rows: [update] with algorithm and rows",)
            * (subject.config.update is None),
        )
