"""Plain Python values between calls: a type with parameters, such as ``dict[str, int]``, is compared with them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import pytest

from hfdsl.graph.fits import fits_static
from hfdsl.graph.signatures import StaticType
from tests.check.loading import loaded


class Weights(TypedDict):
    table: list[float]


FIT = (
    (dict[str, int], dict[str, int]),
    (dict[str, int], dict[str, float]),
    (dict[str, int], dict),
    (dict[str, int], dict[str, Any]),
    (dict[str, list[int]], dict[str, list[Any]]),
    (OrderedDict[str, int], dict[str, int]),
    (Mapping[str, int], dict[str, int]),
    (dict[str, int], Mapping[str, int]),
    (Sequence[int], list[int]),
    (tuple[int, ...], tuple[int, int]),
    (dict[str, int], Weights),
    (list[int], object),
    (list[int], Any),
    (list[int], list[int] | None),
    (list[int] | None, list[int]),
    (Annotated[int, "seconds"], float),
    (Literal["a"], str),
    (type[int], type),
)
DIFFER = (
    (dict[str, int], list[int]),
    (dict[str, int], str),
    (dict[str, int], dict[str, str]),
    (dict[str, int], dict[int, int]),
    (dict[str, list[int]], dict[str, dict[str, int]]),
    (Sequence[int], dict[str, int]),
    (Annotated[int, "seconds"], str),
    (list[int], None),
    (list[int], dict[str, int] | None),
)


@pytest.mark.parametrize(("given", "declared"), FIT)
def test_a_value_that_may_be_of_a_type_fits(given: Any, declared: Any) -> None:
    assert fits_static(StaticType(given), declared)


@pytest.mark.parametrize(("given", "declared"), DIFFER)
def test_a_value_of_another_type_does_not(given: Any, declared: Any) -> None:
    assert not fits_static(StaticType(given), declared)


MODULE = """
from __future__ import annotations
import hfdsl as hf
from hfdsl import Dispatch, register

class Trainer(hf.Worker):
    @register(Dispatch.ONE_TO_ALL)
    @hf.writes("policy")
    def update(self) -> None: ...

    @register(Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> {exported}: ...

class Engine(hf.Worker):
    @register(Dispatch.ONE_TO_ALL)
    @hf.reads("policy")
    def sample(self) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, parts: {loaded}) -> None: ...

@hf.dataflow
def step(trainer: Trainer, engine: Engine) -> None:
    engine.sample()
    trainer.update()
    hf.sync(trainer, engine)
"""


def test_a_sync_whose_sides_differ_is_reported_where_it_is_called(tmp_path: Path) -> None:
    module = loaded(tmp_path, MODULE.format(exported="dict[str, float]", loaded="list[float]"))
    [finding] = module.step.check().findings
    assert finding.code == "HF206"
    assert finding.message == "port 'parts' of 'engine.load' takes list[float] but is wired to dict[str, float]"
    place = finding.primary.span
    line = Path(place.file).read_text(encoding="utf-8").splitlines()[place.line - 1]
    assert line[place.column : place.end_column] == "hf.sync(trainer, engine)"


@pytest.mark.parametrize("exported", ["dict[str, float]", "dict", "Mapping[str, float]", "dict[str, float] | None"])
def test_a_sync_whose_sides_agree_is_not(tmp_path: Path, exported: str) -> None:
    text = MODULE.format(exported=exported, loaded="dict[str, float]")
    module = loaded(
        tmp_path, "from collections.abc import Mapping\n" + text.replace("from __future__ import annotations\n", "")
    )
    assert module.step.check().codes == ()
