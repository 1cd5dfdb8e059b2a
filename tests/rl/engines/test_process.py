"""An engine's process: what it answers, and that nothing is left of one that dies, hangs or fails."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from hfdsl.errors import DeadlineError, HfError, ResourceError
from hfdsl.rl.engines.process import EngineProcess
from hfdsl.rl.engines.server import Reply, serve
from tests.rl.engines.fake import DIE, HANG, RAISE, Keeping, Refusing, Sharing, Stuck, start

pytestmark = pytest.mark.usefixtures("forked_engines")


@pytest.fixture
def engine() -> Iterator[EngineProcess]:
    """An engine that a test may end."""
    engine = EngineProcess(start(), deadline=60)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def lasting() -> Iterator[EngineProcess]:
    """One for all tests that do not end it."""
    engine = EngineProcess(start(), deadline=60)
    yield engine
    engine.close()


def loaded(engine: EngineProcess, weight: float, version: int) -> None:
    engine.load([("a", torch.tensor([0.0])), ("b", torch.tensor([weight]))], version)


def tokens(engine: EngineProcess, *prompt: int) -> list[int]:
    [completion] = engine.generate([list(prompt)], None)
    return completion.tokens


def test_an_engine_answers_by_the_weights_of_its_version(lasting: EngineProcess) -> None:
    loaded(lasting, 10, version=1)
    assert tokens(lasting, 1) == [11, 12, 13]
    loaded(lasting, 48, version=2)
    assert (lasting.versions, tokens(lasting, 1)) == ({"weights": 2}, [49, 50])
    [completion] = lasting.generate([[1]], [8])
    assert (completion.tokens, completion.log_probs) == ([50], [-50.0])


@contextmanager
def served(implementation: type, folder: Path) -> Iterator[Connection[Any, Any]]:
    """The caller's end of an engine that a thread serves, without the process that its caller would end."""
    ours, theirs = Pipe()
    folder.mkdir()

    def serve_until_closed() -> None:
        with suppress(EOFError, ConnectionResetError):
            serve(theirs, folder)

    server = threading.Thread(target=serve_until_closed, daemon=True)
    server.start()
    try:
        [started] = answers(ours, start(implementation))
        assert isinstance(started, Reply)
        yield ours
    finally:
        ours.close()
    server.join(60)
    assert not server.is_alive()


def answers(connection: Connection[Any, Any], *calls: Any) -> list[Any]:
    for call in calls:
        connection.send(call)
    received = []
    for _ in calls:
        assert connection.poll(60), "no answer"
        received.append(connection.recv())
    return received


@pytest.mark.parametrize("implementation", [Sharing, Stuck])
def test_an_engine_has_written_weights_if_it_dropped_what_old_ones_left(implementation: type, tmp_path: Path) -> None:
    """Its caller reads no answer before it sends the version."""
    drops = implementation is Sharing
    generate = ("generate", [[1]], None, {"weights": 4})
    with served(implementation, tmp_path / "engine") as connection:
        for _ in range(2):
            write, written, sampled = answers(connection, ("write",), ("written", 4), generate)
            assert [isinstance(answer, Reply) for answer in (write, written, sampled)] == [drops] * 3
            if not drops:
                assert "the cache is in use" in write.text
                assert written.problem == "the engine still has what it computed with the weights that were replaced"
                assert sampled.problem == "the engine has no weights since it let its caller write them"


def test_an_engine_takes_no_version_that_nobody_wrote(tmp_path: Path) -> None:
    with served(Sharing, tmp_path / "engine") as connection:
        first, _, second, third = answers(connection, ("written", 1), ("write",), ("written", 1), ("written", 2))
    assert [isinstance(answer, Reply) for answer in (first, second, third)] == [False, True, False]


def test_a_call_for_another_version_is_refused(engine: EngineProcess) -> None:
    loaded(engine, 10, version=1)
    engine.versions["weights"] = 2
    with pytest.raises(ResourceError, match=r"HF954.*versions .*1}, and the call is for .*2}"):
        tokens(engine, 1)


@pytest.mark.parametrize("sleeps", [True, False])
def test_an_engine_without_weights_does_not_sample(engine: EngineProcess, sleeps: bool) -> None:
    if sleeps:
        loaded(engine, 10, version=1)
        engine.sleep(keep_weights=False)
        engine.wake("weights")
        engine.wake("cache")
    why = "slept without them" if sleeps else "started"
    with pytest.raises(ResourceError, match=f"HF954.*no weights since it {why}"):
        tokens(engine, 1)


def test_an_engine_that_slept_without_weights_samples_with_new_ones(lasting: EngineProcess) -> None:
    loaded(lasting, 10, version=1)
    lasting.sleep(keep_weights=False)
    lasting.wake("weights")
    loaded(lasting, 20, version=1)
    lasting.wake("cache")
    assert tokens(lasting, 1) == [21, 22, 23]


def test_weights_in_many_parts_arrive(lasting: EngineProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hfdsl.rl.engines.process.MAX_PART", 4)
    lasting.load(((f"w{i}", torch.tensor([float(i)])) for i in range(20)), 1)
    assert tokens(lasting, 1) == [20, 21, 22]


def test_lent_weights_are_read_where_the_caller_writes_them(
    lasting: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second load sends no weight, the third another tensor; after ``release`` the memory is the caller's alone."""
    monkeypatch.setattr("hfdsl.rl.engines.process.LENT_FROM", {"cpu"})
    sent: list[object] = []

    def send(message: object) -> None:
        sent.append(message)
        EngineProcess._send(lasting, message)

    monkeypatch.setattr(lasting, "_send", send)
    weight, second = torch.tensor([10.0]), torch.tensor([40.0])
    lasting.load([("a", weight)], 1, place=object())
    assert tokens(lasting, 1) == [11, 12, 13]
    weight.fill_(20)
    assert tokens(lasting, 1) == [11, 12, 13]
    lasting.load([("a", weight)], 2, place=object())
    assert tokens(lasting, 1) == [21, 22, 23]
    lasting.load([("a", second)], 3, place=object())
    assert tokens(lasting, 1) == [41, 42, 43]
    lasting.release()
    lasting.load([("a", second.mul_(-1).add_(45))], 4, place=object())
    assert tokens(lasting, 1) == [6, 7, 8]
    pieces = [type(message).__name__ for message in sent if not isinstance(message, tuple) and message is not None]
    assert pieces == ["Lent", "str", "Lent", "Lent"]
    lasting.release()


def test_lent_weights_are_listed_where_their_place_is_another(
    lasting: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hfdsl.rl.engines.process.LENT_FROM", {"cpu"})
    weight, listed = torch.tensor([10.0]), list[int]()

    def load(version: int, place: object) -> list[int]:  # an ``object()`` is unlike any other place
        def weights() -> Iterator[tuple[str, torch.Tensor]]:
            listed.append(version)
            yield "a", weight

        lasting.load(weights(), version, place=place)
        first = int(weight) + 1
        assert tokens(lasting, 1) == [first, first + 1, first + 2]
        return listed

    assert load(1, ["here"]) == [1]
    weight.fill_(20)
    assert load(2, ["here"]) == [1]
    weight = torch.tensor([30.0])
    assert load(3, ["there"]) == [1, 3]
    assert load(4, object()) == [1, 3, 4]
    assert load(5, object()) == [1, 3, 4, 5]
    lasting.release()
    assert load(6, object()) == [1, 3, 4, 5, 6]
    assert load(7, ["there"]) == [1, 3, 4, 5, 6, 7]
    lasting.release()
    assert load(8, ["there"]) == [1, 3, 4, 5, 6, 7, 8]
    lasting.load([("a", weight)], 9)  # a copy
    assert load(10, ["there"]) == [1, 3, 4, 5, 6, 7, 8, 10]
    lasting.release()


def test_an_engine_that_keeps_weights_gets_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hfdsl.rl.engines.process.LENT_FROM", {"cpu"})
    engine, weight = EngineProcess(start(Keeping), deadline=60), torch.tensor([10.0])
    engine.load([("a", weight)], 1, place=object())
    weight.fill_(20)
    assert tokens(engine, 1) == [11, 12, 13]
    engine.close()


@pytest.mark.parametrize(
    ("first", "error", "says"),
    [
        (DIE, ResourceError, r"HF954.*died in 'generate', by signal SIGKILL(.|\n)*something went wrong below"),
        (RAISE, ResourceError, r"HF954(.|\n)*LookupError: no such token"),
    ],
)
def test_an_engine_that_dies_or_fails_is_an_error(
    engine: EngineProcess, first: int, error: type[HfError], says: str
) -> None:
    loaded(engine, 1, version=1)
    process = engine.pid
    with pytest.raises(error, match=says):
        tokens(engine, first)
    assert ended(process)
    assert not engine.alive
    with pytest.raises(ResourceError, match=r"HF954.*has been ended"):
        tokens(engine, 1)


def test_an_engine_that_hangs_is_ended_at_its_deadline(engine: EngineProcess) -> None:
    loaded(engine, 1, version=1)
    engine.deadline = 0.5
    with pytest.raises(DeadlineError, match=r"HF955.*did not answer 'generate' within 0.5 s"):
        tokens(engine, HANG)
    assert ended(engine.pid)


def nan_as_second(engine: EngineProcess) -> None:
    engine.load([("a", torch.ones(1)), ("b", torch.tensor([torch.nan]))], 2)


def interrupted(engine: EngineProcess) -> None:
    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        yield "a", torch.ones(1)
        raise KeyError("b")

    engine.load(weights(), 2)


@pytest.mark.parametrize("load", [nan_as_second, interrupted])
def test_an_engine_with_a_part_of_the_new_weights_is_ended(
    engine: EngineProcess, load: Callable[[EngineProcess], None]
) -> None:
    loaded(engine, 1, version=1)
    with pytest.raises((ResourceError, KeyError)):
        load(engine)
    assert not engine.alive
    assert engine.versions == {}


def test_an_engine_that_refuses_its_model_says_why(folder: Path) -> None:
    with pytest.raises(ResourceError, match=r"HF951.*does not start with this model: ValueError: a head width of 24"):
        EngineProcess(start(Refusing), deadline=60)
    assert not list(folder.iterdir())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


OWNER = """
from hfdsl.rl.engines.process import EngineProcess
from tests.rl.engines.fake import Slow, start
EngineProcess(start(Slow), deadline=600)
"""


def test_a_killed_owner_leaves_no_folder(folder: Path) -> None:
    """As an actor of Ray is killed, here while its engine starts: after that the folder is gone anyway."""
    with subprocess.Popen([sys.executable, "-c", OWNER]) as owner:
        wait_until(lambda: any(folder.glob("*/config.json")))
        owner.kill()
    wait_until(lambda: not any(folder.iterdir()))


def wait_until(condition: Callable[[], bool]) -> None:
    """The deadline is that of the test."""
    while not condition():
        time.sleep(0.1)


def test_a_cache_that_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(ResourceError, match=r"HF952.*0.00 GiB for its weights and 1048576.00 GiB for its cache"):
        EngineProcess(start(cache_bytes=2**50), deadline=60)


def test_an_engine_ends_with_its_owner(folder: Path) -> None:
    engine = EngineProcess(start(), deadline=60)
    process = engine.pid
    assert not ended(process)
    assert not list(folder.iterdir())
    del engine
    gc.collect()
    assert ended(process)


def test_the_variables_of_a_trainer_do_not_reach_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setenv("HFDSL_SEEN", "yes")
    monkeypatch.setattr("hfdsl.rl.engines.process.Popen", subprocess.Popen)  # the system shows no other change of them
    engine = EngineProcess(start(), deadline=60)
    with open(f"/proc/{engine.pid}/environ", "rb") as file:  # noqa: PTH123  # a file of the kernel's
        names = {entry.partition(b"=")[0] for entry in file.read().split(b"\0")}
    engine.close()
    assert b"HFDSL_SEEN" in names
    assert b"MASTER_PORT" not in names


def ended(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def test_an_engine_may_be_called_from_another_thread(lasting: EngineProcess) -> None:
    thread = threading.Thread(target=loaded, args=(lasting, 5, 1))
    thread.start()
    thread.join()
    assert tokens(lasting, 1) == [6, 7, 8]
