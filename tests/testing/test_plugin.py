"""The plugin, as a user's project has it: pytest runs small test files in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PLUGIN = "hfdsl.testing.plugin"


def run(folder: Path, tests: str, *options: str) -> str:
    """What pytest prints."""
    (folder / "test_it.py").write_text(textwrap.dedent(tests))
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    plugins = entry_points(group="pytest11", name=PLUGIN)  # of an installed hfdsl; a bare checkout has none
    installed = [] if plugins else ["-p", PLUGIN]
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *installed, *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return process.stdout + process.stderr


def test_a_failure_tells_its_seed(tmp_path: Path) -> None:
    tests = """
        import pytest

        def test_a(hf_seed):
            print("drawn", hf_seed)
            assert hf_seed % 2 == 3

        def test_b(hf_seed):
            assert hf_seed >= 0
        """
    printed = run(tmp_path, tests)
    seeds = re.search(r"hf_seed was (\d+); the same again: pytest --hf-seed (\d+) 'test_it.py::test_a'", printed)
    assert seeds is not None
    assert f"drawn {seeds[1]}" in printed
    assert f"hf_seed was {seeds[1]}" in run(tmp_path, tests, "--hf-seed", seeds[2], "-k", "test_a")
    assert "1 failed, 1 passed" in printed


def test_a_test_that_needs_more_gpus_is_skipped(tmp_path: Path) -> None:
    tests = """
        import pytest

        @pytest.mark.gpu(count=99)
        def test_many(): ...
        """
    printed = run(tmp_path, tests, "-rs")
    assert re.search(r"SKIPPED .*(no CUDA device|of 99 CUDA devices)", printed)
    assert "1 skipped" in printed


def test_a_failure_shows_the_lines_of_the_test_and_none_of_hfdsl(tmp_path: Path) -> None:
    tests = """
        import torch
        import hfdsl as hf
        from hfdsl.testing import check_laws, check_placements, check_rows, check_worker

        class B(hf.Dim): ...

        class Rows(hf.Batch):
            x: hf.f32[B]

        class Role(hf.Worker):
            @hf.register(hf.Dispatch.DP_PROTO)
            def numbered(self, rows: Rows) -> Rows:
                return Rows(x=torch.arange(float(len(rows))))

            @hf.register(hf.Dispatch.DP_PROTO)
            def raises(self, rows: Rows) -> Rows:
                raise KeyError("no model")

        @hf.function
        def numbered(rows: Rows) -> Rows:
            return Rows(x=torch.arange(float(len(rows))))

        @hf.dataflow
        def program(rows: Rows, role: Role) -> Rows:
            return role.numbered(rows)

        four, two = Rows(x=torch.arange(4.0)), [hf.Mesh(dp=2)]
        copies = hf.Protocol("COPIES", split=("dp",), collect={"dp": "join", "tp": "join", "pp": "last"})

        def placed(n):
            return hf.Deployment(role=hf.place(Role, pool=hf.ResourcePool([n], use_gpu=False)))

        def test_laws(): check_laws(copies, only="L3")
        def test_rows(): check_rows(numbered)
        def test_worker(): check_worker(Role, "numbered", four, meshes=two)
        def test_body(): check_worker(Role, "raises", four, meshes=two)
        def test_argument(): check_worker(Role, "numbered", four, meshes=two[0])
        def test_places(): check_placements(program, [placed(1), placed(2)], four, on="local")
        """
    printed = run(tmp_path, tests)
    assert "6 failed" in printed
    assert "hfdsl/" not in printed.replace(str(tmp_path), "")
    assert printed.count("\n>") == 6  # the line of the test itself
    assert "KeyError: 'no model'" in printed


def test_a_size_that_is_none_is_reported(tmp_path: Path) -> None:
    tests = "def test_a(ray_cluster): ..."
    printed = run(tmp_path, tests, "--hf-nodes", "0")
    assert "hf_nodes is a whole number of at least 1, got 0" in printed


@pytest.mark.nightly
@pytest.mark.ray
def test_leaks_of_a_test_on_the_cluster_are_reported_with_their_names(tmp_path: Path) -> None:
    tests = """
        import pytest
        import hfdsl.testing.plugin

        hfdsl.testing.plugin.CLEANUP_SECONDS = 0.5
        kept = []

        def test_nodes(ray_cluster):
            assert len(ray_cluster.nodes()) == 2
            assert ray_cluster.cluster_resources()["GPU"] == 6

        @pytest.fixture(scope="module")
        def shared(ray_cluster):
            class Shared: ...
            yield ray_cluster.remote(Shared).options(name="shared").remote()

        def test_a_shared_actor_is_no_leak(shared): ...

        def test_leaves_much(ray_cluster, shared):
            class Stays: ...
            pool = ray_cluster.util.placement_group([{"CPU": 1}], name="my pool")
            kept.extend([ray_cluster.remote(Stays).options(name="me").remote(), ray_cluster.put("x" * 10), pool])

        def test_earlier_leaks_are_not_reported_again(ray_cluster): ...

        def test_fails(ray_cluster):
            here = ray_cluster.put(1)
            assert here is None
        """
    printed = run(tmp_path, tests, "--hf-nodes", "2", "--hf-gpus", "3", "--hf-store", "80")
    assert "5 passed" not in printed
    assert "1 failed, 4 passed, 1 error" in printed
    assert "the test leaves on the Ray cluster, 0.5 s after its end:" in printed
    for leak in ("actor Stays 'me', ", "placement group 'my pool' of 1 bundles", "(1 reference in this process)"):
        assert leak in printed
    assert "Shared" not in printed.partition("the test leaves")[2]
