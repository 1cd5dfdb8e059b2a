"""The Ray backend: the same bits as the local one wherever the roles are put, and failures reported once, at once."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.check.capacity import capacity_for, claims
from hfdsl.errors import HfError, ResourceError, RoleError, WiringError
from hfdsl.protocols.bin_packing import CPU_UNITS
from hfdsl.runtime.running import Running
from hfdsl.runtime.saving.recording import begin
from hfdsl.single_controller import RayResourcePool
from tests.runtime import ray_programs as p
from tests.runtime.renamed import renamed

MESH = hf.Mesh(dp=2)


def pool(*sizes: int) -> hf.ResourcePool:
    return hf.ResourcePool(list(sizes), use_gpu=False)


def shared(mesh: hf.Mesh = MESH) -> hf.Deployment:
    slots = pool(mesh.world_size)
    return hf.Deployment(
        actor=hf.place(p.Actor, p.Config(), pool=slots, mesh=mesh),
        reward=hf.place(p.Reward, pool=slots),
        swapped=hf.place(p.Custom, pool=slots),
    )


def own_processes() -> hf.Deployment:
    merged = pool(1).merge(pool(1))
    return hf.Deployment(
        actor=hf.place(p.Actor, p.Config(), pool=merged), reward=hf.place(p.Reward, pool=merged, colocate=False)
    )


def split() -> hf.Deployment:
    left, right = pool(3).split([2, 1])
    return hf.Deployment(actor=hf.place(p.Actor, p.Config(), pool=left), reward=hf.place(p.Reward, pool=right))


def launched(deployment: hf.Deployment, backend: Any = "ray") -> Running:
    return p.train.compile(deployment, {p.B: 4, p.P: 2, p.R: 3}).launch(backend, seed=3)


@pytest.fixture(scope="module")
def one_pool(ray_cluster: Any) -> Iterator[Running]:
    """A launch for all tests whose roles share processes, which take long to start."""
    with launched(shared()) as running:
        yield running


@pytest.fixture(scope="module")
def two_pools(ray_cluster: Any) -> Iterator[Running]:
    """One for those whose roles are on two pools."""
    pair, single = pool(2), pool(1)
    deployment = hf.Deployment(
        actor=hf.place(p.Actor, p.Config(), pool=pair),
        reward=hf.place(p.Reward, pool=single),
        judge=hf.place(p.Sieve, pool=single),
        other=hf.place(p.Sieve, pool=pair),
    )
    with launched(deployment) as running:
        yield running


def same_bits(left: Any, right: Any) -> bool:
    (a, x, weights), (b, y, others) = left, right
    columns = zip(a.__hf_columns__.values(), b.__hf_columns__.values(), strict=True)
    return all(torch.equal(i, j) for i, j in columns) and x.__hf_columns__ == y.__hf_columns__ and weights == others


def trains_as_one_process_does(running: Running, processes: int) -> None:
    """The same bits, in so many processes; another plan runs in the same ones."""
    pids = running.also(p.processes.compile(running.plan.deployment))
    before = pids.step()
    actors, rewards = before
    assert len({*actors, *rewards}) == processes
    with launched(shared(), "local") as reference:
        for _ in range(2):
            assert same_bits(running.step(p.batch(4)), reference.step(p.batch(4)))
    assert pids.step() == before


def test_the_same_bits_where_roles_share_processes(one_pool: Running) -> None:
    trains_as_one_process_does(one_pool, 2)


def test_the_same_bits_on_two_pools(two_pools: Running) -> None:
    trains_as_one_process_does(two_pools, 3)


@pytest.mark.nightly
@pytest.mark.parametrize(("deploy", "processes"), [(own_processes, 4), (split, 3)])
def test_the_same_bits_wherever_roles_are_put(ray_cluster: Any, deploy: Any, processes: int) -> None:
    with launched(deploy()) as running:
        trains_as_one_process_does(running, processes)


def test_a_slot_has_room_for_every_role_that_wants_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked_for(pool: RayResourcePool, *_: object, **__: object) -> None:
        raise RoleError("HF806", f"{pool.max_colocate_count} processes a slot, {pool.bundle['CPU']} CPUs")

    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("hfdsl.runtime.ray.groups.RayWorkerGroup", asked_for)
    slot = pool(1)
    roles: dict[str, Any] = {f"reward{i}": hf.place(p.Reward, pool=slot, colocate=False) for i in range(10)}
    actor, reward = hf.place(p.Actor, p.Config(), pool=slot), hf.place(p.Reward, pool=slot)
    deployment = hf.Deployment(actor=actor, reward=reward, **roles)
    plan = p.train.compile(deployment, {p.B: 4, p.P: 2, p.R: 3})
    with pytest.raises(RoleError, match=r"11 processes a slot, 0\.11 CPUs"):
        plan.launch("ray")
    cluster = hf.Cluster(hf.Nodes(1, cpus=1))
    assert capacity_for(deployment, cluster).parts(claims(deployment)) == {(0, round(0.11 * CPU_UNITS)): 1}


def test_a_check_refuses_what_a_launch_refuses(ray_cluster: Any) -> None:
    actor, reward = hf.place(p.Actor, p.Config(), pool=pool(44)), hf.place(p.Reward, pool=pool(1))
    deployment, dims = hf.Deployment(actor=actor, reward=reward), {p.B: 44, p.P: 2, p.R: 3}
    assert p.train.check(deployment, dims, hf.Cluster(hf.Nodes(1, cpus=4))).codes == ("HF505",)
    with pytest.raises(ResourceError, match="HF505"):
        p.train.compile(deployment, dims).launch("ray")


@pytest.mark.nightly
def test_another_mesh_changes_no_row_and_sums_only_in_their_order(ray_cluster: Any) -> None:
    with launched(shared(), "local") as running:
        rollout, metrics, weights = running.step(p.batch(4))
    with launched(shared(hf.Mesh(dp=1, tp=2))) as running:
        second_rollout, others, other_weights = running.step(p.batch(4))
    assert torch.equal(rollout.ids.tensor, second_rollout.ids.tensor)
    assert torch.equal(rollout.log_probs.tensor, second_rollout.log_probs.tensor)
    # float64 sums of a few numbers in another order: a few units in the last place
    assert others.loss.value == pytest.approx(metrics.loss.value, rel=1e-14)
    for mine, theirs in zip(weights, other_weights, strict=True):
        assert theirs == pytest.approx(mine, rel=1e-14)


def test_random_streams_are_those_of_the_local_backend(one_pool: Running) -> None:
    plan = p.noises.compile(one_pool.plan.deployment, {p.B: 4, p.P: 2, p.R: 3})
    with plan.launch("local", seed=3) as reference:
        expected = [reference.step(p.batch(4)) for _ in range(2)]
    running = one_pool.also(plan)
    assert [running.step(p.batch(4)) for _ in range(2)] == expected
    first, second = expected
    assert first != second
    assert first[0] != first[1]  # ranks differ


def test_custom_functions_get_whole_values_in_the_driver(one_pool: Running) -> None:
    flow = renamed(p.custom, "custom", reward="swapped")
    plan = flow.compile(one_pool.plan.deployment, {p.B: 4, p.P: 2, p.R: 3})
    with plan.launch("local", seed=3) as reference:
        expected = reference.step(p.batch(4)).reward.tensor
    assert torch.equal(one_pool.also(plan).step(p.batch(4)).reward.tensor, expected)


def test_filtered_rows_are_those_of_the_local_backend(two_pools: Running) -> None:
    plan = p.sift.compile(two_pools.plan.deployment)
    with plan.launch("local") as reference:
        for running in (reference, two_pools.also(plan)):
            texts = [[rows.text.objects for rows in running.step(p.numbers(*x))] for x in ((4, 1, 6, 2, 3), (1, 0))]
            assert texts == [[["4'", "6'", "2'"], ["4", "6", "2", "4"]], [["0'"], ["0", "0", "0", "0"]]]


def test_another_deployment_is_refused(one_pool: Running) -> None:
    with pytest.raises(ResourceError, match="HF519"):
        one_pool.also(p.train.compile(shared(), {p.B: 4, p.P: 2, p.R: 3}))


# -- what goes wrong


def faulty(fault: str, ranks: int = 2) -> hf.Deployment:
    """The last rank goes wrong."""
    slots = pool(ranks)
    return hf.Deployment(
        actor=hf.place(p.Actor, p.Config(), pool=slots), reward=hf.place(p.Faulty, fault, ranks - 1, pool=slots)
    )


def launch_fault(fault: str, ranks: int = 2, **options: Any) -> None:
    plan = p.fails.compile(faulty(fault, ranks), {p.B: 4, p.P: 2, p.R: 3})
    with plan.launch("ray", **options) as running:
        try:
            running.step(p.batch(4))
        finally:
            with pytest.raises(HfError, match="HF808"):
                running.step(p.batch(4))


def test_an_exception_in_a_body_is_reported_once_while_its_peers_wait(ray_cluster: Any) -> None:
    with pytest.raises(RoleError) as failure:
        launch_fault("raise")
    text = str(failure.value)
    assert text.startswith("HF806: 'reward.score' raised on rank 1 in step 0: ValueError: bad rollout")
    assert 'raise ValueError("bad rollout")' in text  # the worker's own traceback
    assert text.count("Traceback") == 1


def test_the_trace_of_hfdsls_own_error_ends_at_the_users_line(ray_cluster: Any) -> None:
    with pytest.raises(RoleError, match=r"HF806: 'reward\.score' raised on rank 1 in step 0: ") as failure:
        launch_fault("dtype")
    [frame] = [line for line in str(failure.value).splitlines() if line.startswith("  File ")]
    assert frame.endswith(", in score")


def test_a_dead_process_is_reported(ray_cluster: Any) -> None:
    with pytest.raises(RoleError, match="died"):
        launch_fault("die")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fault", "message"), [("rows", "3 rows of"), ("record", "declares Scores and returned Rollout")]
)
def test_a_wrong_result_is_reported(ray_cluster: Any, fault: str, message: str) -> None:
    with pytest.raises(HfError, match="HF805") as error:
        launch_fault(fault, ranks=1)
    assert message in str(error.value)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_an_error_of_several_ranks_is_printed_once() -> None:
    """Ray prints the error of every result that nobody looks at."""
    disciplines = ["drop"] * 4  # it depends on when each rank raises
    program = [sys.executable, "-m", "tests.runtime.failing_programs", *disciplines]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=800, check=True)
    assert ended.stdout.count("HF806: 'actor.update' raised on rank") == len(disciplines)
    assert "Unhandled error" not in ended.stderr


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_an_export_that_fails_is_printed_once() -> None:
    """The exchange behind it fails with it."""
    program = [sys.executable, "-m", "tests.runtime.failing_programs", "exports"]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=800, check=True)
    assert ended.stdout.count("HF773: 'actor.weights' returned 'qkv', a meta tensor") == 1
    assert "Unhandled error" not in ended.stderr


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_calls_of_a_step_that_is_repeated_print_no_error() -> None:
    """All calls behind a lost process fail with it."""
    program = [sys.executable, "-m", "tests.runtime.failing_programs", "dies"]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=800, check=True)
    assert ended.stdout.splitlines()[-1] == "1 recovery"
    assert "Unhandled error" not in ended.stderr


def test_a_constructor_that_raises_is_reported_and_leaves_nothing(ray_cluster: Any) -> None:
    plan = p.fails.compile(faulty("constructor"), {p.B: 4, p.P: 2, p.R: 3})
    with releases_everything(ray_cluster), pytest.raises(RoleError) as failure:
        plan.launch("ray")
    assert str(failure.value).startswith(
        "HF806: 'reward.__init__ (Faulty)' raised on rank 1: ValueError: no weights here"
    )


def test_a_step_has_a_deadline(ray_cluster: Any) -> None:
    with pytest.raises(HfError, match="HF807"):
        launch_fault("slow", ranks=1, deadline=2.0)


def test_a_pool_that_does_not_fit_fails_at_once_and_names_the_numbers(ray_cluster: Any) -> None:
    big = hf.ResourcePool([64], use_gpu=True)
    deployment = hf.Deployment(actor=hf.place(p.Actor, p.Config(), pool=big), reward=hf.place(p.Reward, pool=big))
    with releases_everything(ray_cluster), pytest.raises(ResourceError) as failure:
        p.train.compile(deployment, {p.B: 64, p.P: 2, p.R: 3}).launch("ray", timeout=30)
    assert failure.value.code == "HF502"
    assert "64" in str(failure.value)


def test_unequal_nodes_are_filled_and_released(ray_cluster: Any) -> None:
    three = pool(2, 1)
    deployment = hf.Deployment(actor=hf.place(p.Actor, p.Config(), pool=three), reward=hf.place(p.Reward, pool=three))
    with releases_everything(ray_cluster), p.processes.compile(deployment).launch("ray") as running:
        actors, rewards = running.step()
    assert len(set(actors)) == 3
    assert actors == rewards
    running.close()  # a second time does nothing
    with pytest.raises(HfError, match="HF808"):
        running.step()


@contextmanager
def releases_everything(ray: Any) -> Iterator[None]:
    """A moment after the block there are no placement groups but those from before it, and no more CPUs are taken."""
    from ray.util.placement_group import placement_group_table

    def held() -> dict[str, Any]:
        return {key: group for key, group in placement_group_table().items() if group["state"] != "REMOVED"}

    before = held().keys()
    yield
    until = time.monotonic() + 5
    while True:
        now, free = held(), ray.available_resources().get("CPU", 0)
        cpus = sum(bundle.get("CPU", 0) for group in now.values() for bundle in group["bundles"].values())
        if now.keys() == before and free == pytest.approx(ray.cluster_resources()["CPU"] - cpus):
            return
        assert time.monotonic() < until, f"still held: {now}, free CPUs {free}"
        time.sleep(0.1)


SCRIPT = """
    import os, sys, time
    import hfdsl as hf
    from hfdsl import Dispatch, register

    class Sleeper(hf.Worker):  # defined in __main__: travels by value
        @register(Dispatch.ONE_TO_ALL)
        def doze(self, folder: str, seconds: int) -> int:
            open(f"{folder}/{os.getpid()}.pid", "w").close()
            time.sleep(seconds)
            return 1

    @hf.dataflow
    def sleep(sleeper: Sleeper) -> hf.PerRank[int]:
        return sleeper.doze(sys.argv[1], 60)

    plan = sleep.compile(hf.Deployment(sleeper=hf.place(Sleeper, pool=hf.ResourcePool([2], use_gpu=False))))
    with plan.launch("ray") as running:
        print("ready", flush=True)
        running.step()
"""


@pytest.mark.nightly
def test_work_between_steps_has_a_deadline(ray_cluster: Any, tmp_path: Path) -> None:
    plan = p.fails.compile(faulty("none"), {p.B: 4, p.P: 2, p.R: 3})
    evaluation = renamed(p.fails, "evaluation").compile(plan.deployment, {p.B: 4, p.P: 2, p.R: 3})
    with plan.launch("ray", deadline=120.0) as running:
        backend: Any = running._processes.backend
        backend._calls.seconds = 5.0
        next(iter(backend._groups.values())).workers[0].__ray_call__.remote(lambda self: time.sleep(60))
        late = r"HF807: taking another plan was not done after 5 s on 1 of 2 ranks of 'actor\+reward'; (?s:.*)launch\("
        with pytest.raises(HfError, match=late):
            running.also(evaluation)
        begin(tmp_path, plan, 0, 0, lambda folder: None)
        with pytest.raises(HfError, match=late):
            backend.record(str(tmp_path))


@pytest.mark.nightly
def test_ctrl_c_ends_every_process(tmp_path: Path) -> None:
    """A program with a cluster of its own, interrupted as a terminal does it: the signal goes to the whole group."""
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(SCRIPT))
    path = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": path}
    environment.pop("RAY_ADDRESS", None)
    program = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=environment,
    )
    workers: list[int] = []
    try:
        deadline = time.monotonic() + 60
        while len(workers) < 2 and program.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
            workers = [int(path.stem) for path in tmp_path.glob("*.pid")]
        assert program.poll() is None, program.communicate()[0]
        os.killpg(program.pid, signal.SIGINT)
        printed, _ = program.communicate(timeout=60)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
    assert len(workers) == 2, printed
    assert program.returncode != 0, printed
    deadline = time.monotonic() + 20
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not any(map(alive, workers))


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


def test_a_value_that_cannot_be_sent_is_reported_with_its_path(ray_cluster: Any) -> None:
    slot = pool(1)
    placed = hf.Deployment(
        actor=hf.place(p.Actor, p.Config(), pool=slot),
        reward=hf.place(p.Holder, {"lock": threading.Lock()}, pool=slot),
    )
    plan = p.train.compile(placed, {p.B: 4, p.P: 2, p.R: 3})
    assert plan.report.codes == ("HF802",)
    text = r"HF802: role 'reward' is given tools\['lock'\], a lock, which cannot be sent to another process"
    with pytest.raises(WiringError, match=text):
        plan.launch("ray")
    with plan.launch("local") as running:  # one process: nothing is sent
        running.step(p.batch(4))


@pytest.mark.nightly
def test_a_module_that_workers_cannot_import_is_reported(ray_cluster: Any, tmp_path: Path) -> None:
    file = tmp_path / "only_the_driver.py"
    file.write_text("from tests.runtime import ray_programs as p\nclass Reward(p.Reward): ...\n", "utf-8")
    spec = importlib.util.spec_from_file_location("only_the_driver", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        slot = pool(1)
        placed = hf.Deployment(
            actor=hf.place(p.Actor, p.Config(), pool=slot), reward=hf.place(module.Reward, pool=slot)
        )
        plan = p.train.compile(placed, {p.B: 4, p.P: 2, p.R: 3})
        with pytest.raises(ResourceError, match=rf"HF801: a worker cannot import 'only_the_driver'.* from {file}"):
            plan.launch("ray")
        path = os.pathsep.join([str(tmp_path), *sys.path])
        with plan.launch("ray", worker_env={"PYTHONPATH": path}) as running:  # what the message says helps
            running.step(p.batch(4))
    finally:
        del sys.modules[spec.name]
