"""Every dataflow: clean wherever its roles are placed, with the same numbers; and it learns."""

from __future__ import annotations

import math
from typing import Any

import pytest

import hfdsl as hf
from hfdsl.rl.batches import ActorMetrics, B, P
from tests.rl.dataflows.programs import (
    PROGRAMS,
    ROLES,
    SIZES,
    Program,
    colocated,
    merged,
    numbers,
    run,
    sliced,
    split,
)
from tests.runtime.renamed import renamed

programs = pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)


@programs
def test_checked_clean(program: Program) -> None:
    places = (colocated(program), split(program), merged(program), sliced(program))
    for deployment in (*places, colocated(program, 1), split(program, 4)):
        assert program.flow.check(deployment, SIZES).codes == ()
    too_short = ("HF718",) if program.name == "dapo" else ()  # its default penalty is that of 20,480 tokens
    assert program.plain.check(split(program), {**SIZES, B: 512, P: 64}).codes == too_short


@pytest.mark.nightly_besides("grpo")
@programs
def test_the_same_numbers_wherever_roles_are_placed(program: Program) -> None:
    together, two = run(program, colocated(program), steps=2), run(program, split(program), steps=2)
    assert together == two
    assert run(program, merged(program), steps=1) == together[:1]
    [slices] = run(program, sliced(program), steps=1)
    assert slices == pytest.approx(together[0], rel=1e-3, abs=1e-4)  # its sums are rounded in another order
    assert together[0] != together[1]
    assert all(math.isfinite(number) for step in together for number in step)


@pytest.mark.parametrize("program", [PROGRAMS["ppo"], PROGRAMS["dapo"], PROGRAMS["mutual"]], ids=lambda p: p.name)
def test_the_same_numbers_eagerly(program: Program) -> None:
    [planned] = run(program, colocated(program, ranks=1), steps=1)
    instances = {role: kind(*args) for role, (kind, args) in ROLES.items() if role in program.roles}
    workers: Any = program.flow
    assert numbers(workers(*program.inputs(0), **instances)) == planned


def test_grpo_without_a_reference_learns_as_with_one_of_no_weight() -> None:
    alone = Program("grpo_without_reference", {"group": 4}, ("actor", "reward"), module="grpo")
    beside = Program("grpo", {"group": 4, "loss": alone.plain.options["loss"]}, ("actor", "reference", "reward"))
    assert alone.flow.check(split(alone), SIZES).codes == ()

    def learned(program: Program) -> list[list[float]]:
        flow = renamed(program.flow, "learn")  # a dataflow's name is part of its random streams
        with flow.compile(colocated(program, 1), SIZES).launch("local") as running:
            return [numbers(running.step(*program.inputs(step))) for step in range(2)]

    with_one, without = learned(beside), learned(alone)
    distance = list(ActorMetrics.__annotations__).index("reference_kl")
    assert all(step.pop(distance) > 0 for step in with_one)  # of the last of two updates
    assert [step.pop(distance) for step in without] == [0, 0]
    assert without == with_one


def test_every_dataflow_is_here() -> None:
    from pathlib import Path

    from hfdsl.rl import dataflows

    files = {path.stem for path in Path(dataflows.__path__[0]).glob("*.py")}
    assert files - {"__init__", "supervised", "reward_modeling", "asynchronous"} == set(PROGRAMS)


def test_options_go_with_check() -> None:
    grpo = PROGRAMS["grpo"]
    assert grpo.plain.given(group=3).check(colocated(grpo), {**SIZES, B: 1}).codes == ("HF310",)
    with pytest.raises(hf.WiringError, match="HF202"):
        grpo.plain.given(grup=3)
