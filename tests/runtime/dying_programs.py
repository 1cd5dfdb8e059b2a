"""The program of ``saving_programs``, with roles whose processes die where a file says so."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.runtime import saving_programs
from tests.runtime.saving_programs import Result, Rows, Scores, Trained

FOLDER = "DYING_FOLDER"


def death(folder: Path, label: str, rank: int, step: int, times: int = 1, sent: int = signal.SIGKILL) -> None:
    """Have a rank die at a call, this many times."""
    for number in range(times):
        (folder / f"{label} {rank} {step} {number}").write_text(str(int(sent)))


def die(label: str, worker: hf.Worker) -> None:
    """Die here if a file says so, which is then gone."""
    step = hf.current_call().step
    for file in sorted(Path(os.environ[FOLDER]).glob(f"{label} {worker.rank} {step} *")):
        sent = int(file.read_text())
        file.unlink()
        os.kill(os.getpid(), sent)


class Actor(saving_programs.Actor):
    @register(Dispatch.DP_PROTO)
    def draw(self, rows: Rows) -> Rows:
        die("actor.draw", self)
        return super().draw(rows)

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, trained: Trained) -> Result:
        die("actor.update", self)
        result = super().update(trained)
        die("after actor.update", self)
        return result


class Critic(saving_programs.Critic):
    @register(Dispatch.DP_PROTO)
    def score(self, rows: Rows) -> Scores:
        die("critic.score", self)
        return super().score(rows)


class Sieve(saving_programs.Sieve):
    @register(Dispatch.DP_PROTO)
    def keep(self, rows: Rows) -> Rows:
        die("sieve.keep", self)
        return rows


@hf.dataflow
def learn(rows: Rows, actor: Actor, critic: Critic, sieve: Sieve) -> Result:
    drawn = actor.draw(sieve.keep(rows))
    return actor.update(hf.merge(Trained, drawn, critic.score(drawn)))


@hf.dataflow
def look(rows: Rows, actor: Actor, critic: Critic, sieve: Sieve) -> Rows:
    return actor.draw(sieve.keep(rows))


def deployment(*, own_pools: bool) -> hf.Deployment:
    first = hf.ResourcePool([2], use_gpu=False, name="first")
    second = hf.ResourcePool([2], use_gpu=False, name="second") if own_pools else first
    return hf.Deployment(
        actor=hf.place(Actor, pool=first), critic=hf.place(Critic, pool=second), sieve=hf.place(Sieve, pool=second)
    )
