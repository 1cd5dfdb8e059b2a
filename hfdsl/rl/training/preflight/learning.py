"""Checks that the training of a run trains, and that its evaluation does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hfdsl.check.dependences import declares_training
from hfdsl.check.findings import Finding, Label
from hfdsl.graph.program import RoleCall
from hfdsl.rl.training.config_names import READY_ROOM
from hfdsl.rl.training.preflight.subject import Subject


def evaluations_train_nothing(subject: Subject) -> Iterator[Finding]:
    """HF781: no call of the evaluation writes a state of a role that the training uses, such as the policy."""
    graph = subject.graphs.get("evaluation")
    used = {role for table, other in subject.graphs.items() if table != "evaluation" for role in other.roles}
    for node in graph.calls if graph is not None else ():
        if isinstance(node.op, RoleCall) and node.op.role in used and declares_training(node):
            finding = subject.finding(
                "HF781",
                f"the evaluation calls '{node.label}', which trains: the run would learn from the rows that it is "
                "evaluated on",
                "evaluation.algorithm",
                notes=("an evaluation samples and scores, as hfdsl.rl.training.evaluation:evaluate does",),
            )
            yield replace(finding, related=(*finding.related, Label(node.span, "trains")))
            return


def training_trains(subject: Subject) -> Iterator[Finding]:
    """HF780: a ready-made dataflow, with its update, writes a state; a user's own may be there to score."""
    calls = [node for table, graph in subject.graphs.items() if table != "evaluation" for node in graph.calls]
    if subject.config.algorithm.startswith(READY_ROOM) and not any(map(declares_training, calls)):
        yield subject.finding(
            "HF780",
            f"'{subject.graphs[''].name}' trains no role: the run would end with the weights that it begins with",
            "algorithm",
            notes=("name the dataflow that learns from its rows: [update] with algorithm and rows",),
        )
