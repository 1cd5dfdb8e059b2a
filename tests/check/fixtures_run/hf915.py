"""A recording with an object that is no data."""

from contextlib import chdir
from tempfile import TemporaryDirectory

import hfdsl as hf
from hfdsl.testing import replay


class B(hf.Dim): ...


class Tree:
    def __init__(self, height: int) -> None:
        self.height = height

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tree) and self.height == other.height

    __hash__ = None  # type: ignore[assignment]  # it grows


class Trees(hf.Batch):
    tree: hf.Obj[Tree, B]


@hf.function
def grown(trees: Trees) -> Trees:
    return Trees(tree=[Tree(tree.height + 1) for tree in trees.tree.objects])


@hf.dataflow
def program(trees: Trees) -> Trees:
    return grown(trees)


with TemporaryDirectory() as place, chdir(place), program.compile(hf.Deployment()).launch() as running:
    with running.record("step"):
        running.step(Trees(tree=[Tree(1), Tree(2)]))
    # good: replay("step", "grown", trust=True)
    replay("step", "grown")  # <- bad
