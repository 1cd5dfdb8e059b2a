"""Another plan of a run that trains what a queue counts."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import hfdsl as hf
from hfdsl.errors import HfWarning
from tests.runtime.queue_programs import Actor, B, Scored, Trained, deployment, flow, look


@hf.dataflow
def tune(batch: Scored, actor: Actor) -> Trained:
    """An update on rows of the caller."""
    return actor.update(batch)


@pytest.mark.parametrize(("first", "second"), [(flow, tune), (tune, flow)])
def test_updates_that_no_queue_counts_are_warned_of(first: Any, second: Any) -> None:
    place = deployment()
    text = "HF746: 'tune' trains 'actor.policy', whose updates the queues of 'flow' count"
    with first.compile(place, dims={B: 4}).launch() as running, pytest.warns(HfWarning, match=text):
        running.also(second.compile(place, dims={B: 4}))


@pytest.mark.parametrize(("first", "second"), [(flow, look), (flow.given(lag=None, late=None), tune)])
def test_plans_that_train_nothing_or_have_no_queue_are_not(first: Any, second: Any) -> None:
    place = deployment()
    with first.compile(place, dims={B: 4}).launch() as running, warnings.catch_warnings():
        warnings.simplefilter("error")
        running.also(second.compile(place, dims={B: 4}))
