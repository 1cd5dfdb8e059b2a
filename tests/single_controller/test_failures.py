"""What goes wrong in a worker: its type, its deadline, its death, and its restart."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from hfdsl.errors import DeadlineError, HfError, LostProcessError, ResourceError, RoleError, WiringError
from hfdsl.protocols.raised import MESSAGE_CHARACTERS, TRACE_CHARACTERS
from hfdsl.single_controller import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker, register
from hfdsl.single_controller.stacks import grouped, parse
from tests.faults.hostile_programs import HOSTILE, end
from tests.single_controller import roles

# -- the type of the error ---------------------------------------------------------------------------------------------


def test_an_error_is_of_the_type_that_the_body_raised(methods: RayWorkerGroup) -> None:
    with pytest.raises(KeyError, match=r"(?s)HF806: Methods.fail_on raised KeyError on rank 2 of 4.*raise KeyError"):
        methods.fail_on([1, 2, 3, 4])


def test_an_error_of_a_class_with_odd_arguments_has_its_attributes(failing: RayWorkerGroup) -> None:
    with pytest.raises(roles.QuotaError, match=r"HF806: Failing.quota raised QuotaError on rank [01] of 2") as caught:
        failing.quota()
    assert isinstance(caught.value, RoleError)
    assert (caught.value.user, caught.value.limit) == ("alice", 3)
    assert not hasattr(caught.value, "lock"), "which does not pickle"
    with pytest.raises(FileNotFoundError) as missing:
        failing.missing_file()
    assert missing.value.filename == "/nowhere/file"
    with pytest.raises(ZeroDivisionError, match=r"LocalError on rank [01]"):
        failing.local_error()
    with pytest.raises(LookupError, match=r"raised LookupError on rank 0") as from_function:
        failing.execute_func_rank_zero(_raise_lookup)
    assert isinstance(from_function.value, HfError)


def _raise_lookup() -> None:
    raise LookupError("here")


def test_what_would_end_a_process_is_an_error_of_its_rank(failing: RayWorkerGroup) -> None:
    for how, (described, _) in enumerate(HOSTILE):
        kind, _, message = described.partition(": ")
        with pytest.raises(RoleError) as caught:
            failing.execute_func_rank_zero(end, how)
        assert caught.value.message.startswith(f"Failing.end raised {kind} on rank 0 of 2: {message}")
        assert len(caught.value.message) < MESSAGE_CHARACTERS + TRACE_CHARACTERS + 500
        assert not isinstance(caught.value, LostProcessError)
    with pytest.raises(RoleError, match=r"HF806: Failing.quit raised SystemExit on rank [01] of 2: 3"):
        failing.quit()
    assert failing.echo([1, 2]) == [1, 2]


def test_sigterm_ends_a_process_and_is_no_error_of_its_body(pair: RayResourcePool) -> None:
    with (
        RayWorkerGroup(pair, RayClassWithInitArgs(roles.Failing)) as group,
        pytest.raises(LostProcessError, match=r"SIGTERM"),
    ):
        group.execute_func_rank_zero(_terminate)


def _terminate() -> None:
    signal.raise_signal(signal.SIGTERM)


def test_a_reference_raises_the_type_too(failing: RayWorkerGroup, ray_cluster: Any) -> None:
    with pytest.raises(roles.QuotaError):
        ray_cluster.get(failing.execute_rank_zero_async("quota"))


# -- deadlines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deadline", [0, -1, "3", True, float("nan"), float("inf")])
def test_a_deadline_is_a_positive_number(failing: RayWorkerGroup, deadline: Any) -> None:
    with pytest.raises(ResourceError, match=r"HF931: a deadline must be a positive number of seconds, or None"):
        failing.with_deadline(deadline)
    with pytest.raises(ResourceError, match=r"HF931"):
        RayWorkerGroup(RayResourcePool([1], use_gpu=False), RayClassWithInitArgs(roles.Failing), deadline=deadline)


def test_a_call_that_is_late_says_what_every_rank_does(pair: RayResourcePool) -> None:
    with RayWorkerGroup(pair, RayClassWithInitArgs(roles.Failing), deadline=120) as group:
        assert group.hang([]) == [0, 1]
        with pytest.raises(DeadlineError) as caught:
            group.with_deadline(0.5).hang([1])
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.code == "HF807"
        text = str(caught.value)
        assert "Failing.hang was not done after 0.5 s on 1 of 2 ranks" in text
        assert "rank 0: has answered" in text
        assert "rank 1: runs hang (" in text
        assert "in wait_for_peers (" in text
        assert "roles.py:" in text
        with pytest.raises(DeadlineError) as behind:
            group.with_deadline(0.5).echo([1, 2])
        assert "Failing.echo was not done after 0.5 s" in str(behind.value)
        assert "rank 1: has not begun: it still runs hang (" in str(behind.value)
        with pytest.raises(DeadlineError, match=r"(?s)Failing.count was not done after 0.5 s.*still runs hang"):
            group.with_deadline(0.5).execute_all_sync("count")


def test_futures_have_the_deadline_of_their_group_or_their_own(pair: RayResourcePool) -> None:
    with RayWorkerGroup(pair, RayClassWithInitArgs(roles.Failing), deadline=0.5) as group:
        future = group.hang_later([1, 2])
        with pytest.raises(DeadlineError, match=r"(?s)Failing.hang_later was not done after 0.5 s.*rank 1: runs"):
            future.get()
        with pytest.raises(DeadlineError, match=r"not done after 0.1 s"):
            future.get(timeout=0.1)
        waits = r"(?s)Failing.echo was.*rank 0: waits: an argument of the call is not there yet"
        with pytest.raises(DeadlineError, match=waits):
            group.echo(future)


def test_a_constructor_has_the_deadline_too(pair: RayResourcePool) -> None:
    late = r"(?s)HF807: StuckStart.__init__ was not done after 0.5 s on 1 of 2 ranks.*rank 1: runs __init__"
    with pytest.raises(DeadlineError, match=late):
        RayWorkerGroup(pair, RayClassWithInitArgs(roles.StuckStart), deadline=0.5)


def test_stacks_are_read_for_one_thread_of_many() -> None:
    text = (
        'Thread 0x00000b (most recent call first):\n  File "a.py", line 1 in other\n\n'
        "Current thread 0x00000a [main] (most recent call first):\n"
        '  File "b.py", line 2 in f\n  File "c.py", line 3 in g\n'
    )
    assert [str(frame) for frame in parse(text, 10)] == ["f (b.py:2)", "g (c.py:3)"]
    assert [str(frame) for frame in parse(text, 11)] == ["other (a.py:1)"]
    assert parse(text, 12) == parse("", 10) == ()
    assert grouped({0: "waits", 2: "runs", 3: "waits", 1: "waits"}) == ["ranks 0-1, 3: waits", "rank 2: runs"]


# -- deaths and restarts -----------------------------------------------------------------------------------------------


def test_a_death_ends_the_wait_for_ranks_that_hang(pair: RayResourcePool) -> None:
    with RayWorkerGroup(pair, RayClassWithInitArgs(roles.Failing), deadline=None) as group:
        with pytest.raises(RoleError, match=r"HF806: in Failing.die rank 1 died: a worker's process is gone"):
            group.die([1])
        with pytest.raises(RoleError, match=r"HF806: in Failing.die rank 1 died"):
            group.die([])


def test_a_worker_that_ray_restarts_has_its_rank_again(pair: RayResourcePool, ray_cluster: Any) -> None:
    restarted = RayClassWithInitArgs(ray_cluster.remote(max_restarts=-1)(roles.Failing))
    with RayWorkerGroup(pair, restarted, deadline=60) as group:
        port = group.master_port
        assert group.count() == [(1, 0, 2, port), (1, 1, 2, port)]
        assert group.count() == [(2, 0, 2, port), (2, 1, 2, port)]
        for rank in (0, 1):
            with pytest.raises(RoleError, match=rf"HF806: in Failing.exit_alone rank {rank} died"):
                group.exit_alone(rank)
        assert group.count() == [(1, 0, 2, port), (1, 1, 2, port)], "the constructor has run again"
        assert ray_cluster.get(group.workers[1].count.remote()) == (2, 1, 2, port)
        attached = RayWorkerGroup.from_detached(group.worker_names, restarted)
        assert attached.echo([1, 2]) == [1, 2]


def test_protocol_functions_that_cannot_be_sent_are_refused(pair: RayResourcePool) -> None:
    lock = threading.Lock()

    def dispatch(group: Any, x: int) -> Any:
        with lock:
            return ([x] * group.world_size,), {}

    class Locked(Worker):
        @register({"dispatch_fn": dispatch, "collect_fn": lambda group, outputs: outputs})
        def give(self, x: int) -> int:
            return x

    with pytest.raises(
        WiringError, match=r"(?s)HF802: class Locked, or a function that its methods are registered with"
    ):
        RayWorkerGroup(pair, RayClassWithInitArgs(Locked))
    with pytest.raises(WiringError, match=r"HF802: an argument of Accumulator"):
        RayWorkerGroup(pair, RayClassWithInitArgs(roles.Accumulator, lock))
