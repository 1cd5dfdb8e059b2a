"""Several queues that decide, behind and beside each other, against a model of plain lists."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings

from hfdsl.testing import check_decisions
from tests.nightly import examples
from tests.runtime.network_model import Network, Row, modeled, networks
from tests.runtime.stage_model import decisions


def rows_of(result: Any) -> list[Row]:
    """The rows that an update has trained."""
    parts = result if isinstance(result, tuple) else (result,)
    rows = list[Row]()
    for part in parts:
        numbers, versions, updates = part.number.tensor, part.version.tensor, part.update.tensor
        rows += zip(numbers.tolist(), versions.tolist(), updates.tolist(), strict=True)
    return rows


def bits(results: list[Any]) -> list[Any]:
    """Everything in results."""
    parts = [part for result in results for part in (result if isinstance(result, tuple) else (result,))]
    return [(part.number.tensor.tolist(), part.noise.tensor.tolist()) for part in parts]


@settings(max_examples=examples(20), deadline=None)
@given(networks())
def test_a_run_trains_on_the_rows_of_the_model_and_its_log_repeats_it(case: Network) -> None:
    with TemporaryDirectory() as folder:
        log, again = Path(folder, "log"), Path(folder, "again")
        with case.launched() as running:
            results = list(running.stream(case.loader(), log=log, seconds=case.seconds))
            assert running.decisions == len(decisions(log))
            assert running.steps == len(results)
            assert [queue.spec for queue in running.queues] == list(case.specs) or not results
        expected = modeled(case)
        if case.shape == "joined":
            expected = [rows[: len(rows) // 2] for rows in expected]
            pages = [[page for page, *_ in rows[len(rows) // 2 :]] for rows in modeled(case)]
            assert [result.unmasked.tensor.tolist() for result in results] == pages
        assert [rows_of(result) for result in results] == expected
        for spec in case.specs:
            check_decisions(spec, decisions(log))
        with case.launched() as running:
            assert bits(list(running.stream(case.loader(), replay=log, log=again))) == bits(results)
        assert again.read_text() == log.read_text()
