"""Cluster descriptions: what they hold, what a file may say, and every mistake in one."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hfdsl as hf
from hfdsl.errors import ResourceError

BIG = """
[[nodes]]                # trainers
count = 2048
gpus = 8
gpu_memory_gib = 141
cpus = 192
memory_gib = 2048

[[nodes]]
count = 4
cpus = 64
"""


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        file = tmp_path / "big.toml"
        file.write_text(text)
        return file

    return write


def test_a_cluster_is_kinds_of_nodes() -> None:
    cluster = hf.Cluster(hf.Nodes(2, gpus=8, gpu_memory_gib=80, cpus=96), hf.Nodes(1, cpus=0.5))
    assert (cluster.gpus, cluster.cpus) == (16, 192.5)
    assert str(cluster) == "2 nodes of 8 GPUs (80 GiB) and 96 CPUs, 1 node of 0.5 CPU"
    assert cluster.span.file == __file__
    assert cluster == hf.Cluster(*cluster.kinds)
    assert pickle.loads(pickle.dumps(cluster)) == cluster


def test_a_file_says_the_same(written: Callable[[str], Path]) -> None:
    file = written(BIG)
    cluster = hf.Cluster.read(file)
    trainers = hf.Nodes(2048, gpus=8, gpu_memory_gib=141, cpus=192, memory_gib=2048)
    assert cluster == hf.Cluster(trainers, hf.Nodes(4, cpus=64)) == hf.Cluster.read(str(file))
    assert (cluster.span.file, cluster.span.line) == (str(file), 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BIG.replace("gpus", "gpu"), "table 1 of [[nodes]]: unknown key 'gpu'; did you mean 'gpus'?"),
        (BIG.replace("cpus = 64", "cpu = 64"), "table 2 of [[nodes]]: unknown key 'cpu'; did you mean 'cpus'?"),
        (BIG.replace("cpus = 64", ""), "table 2 of [[nodes]]: the key 'cpus' is missing"),
        (BIG.replace("count = 4", ""), "table 2 of [[nodes]]: the key 'count' is missing"),
        (BIG.replace("8\n", '"8"\n', 1), None),
        (BIG.replace("gpus = 8", "gpus = 8.0"), "table 1 of [[nodes]]: gpus is a whole number of at least 0, got 8.0"),
        (BIG.replace("2048\ngpus", "0\ngpus"), "table 1 of [[nodes]]: count is a whole number of at least 1, got 0"),
        (BIG.replace("192", "true"), "table 1 of [[nodes]]: cpus is a number above 0, got True"),
        (BIG.replace("192", "nan"), "table 1 of [[nodes]]: cpus is a number above 0, got nan"),
        (
            BIG.replace("gpu_memory_gib = 141", ""),
            "table 1 of [[nodes]]: nodes with gpus = 8 need gpu_memory_gib, the memory of one GPU",
        ),
        (BIG.replace("gpus = 8", ""), "table 1 of [[nodes]]: gpu_memory_gib = 141 is given for nodes without gpus"),
        (BIG.replace("[[nodes]]", "[[node]]"), "unknown key 'node' at the top; did you mean 'nodes'?"),
        ("[nodes]\ncount = 1\ncpus = 1\n", "nodes is a list of tables, each under [[nodes]] with two brackets"),
        ("nodes = [3]\n", "table 1 of [[nodes]]: a table is needed, got 3"),
        ("", "there is no [[nodes]] table"),
    ],
)
def test_a_mistake_in_a_file_names_file_table_and_key(
    written: Callable[[str], Path], text: str, message: str | None
) -> None:
    file = written(text)
    with pytest.raises(ResourceError) as error:
        hf.Cluster.read(file)
    assert error.value.code == "HF523"
    if message is not None:
        assert error.value.message == f"{file}: {message}"


MISTAKES = {
    "count = 2048": ("count = 0", "table 1 of [[nodes]]: count is a whole number of at least 1, got 0"),
    "gpu_memory_gib = 141\n": (
        "",
        "table 1 of [[nodes]]: nodes with gpus = 8 need gpu_memory_gib, the memory of one GPU",
    ),
    "cpus = 192": ("cpu = 192", "table 1 of [[nodes]]: unknown key 'cpu'; did you mean 'cpus'?"),
    "memory_gib = 2048": ("memory_gib = -1", "table 1 of [[nodes]]: memory_gib is a number above 0, got -1"),
    "count = 4\n": ("", "table 2 of [[nodes]]: the key 'count' is missing"),
    "cpus = 64": ('cpus = "64"', "table 2 of [[nodes]]: cpus is a number above 0, got '64'"),
}
"""Independent mistakes: a line of the file, what replaces it, and the message."""


@pytest.mark.parametrize("chosen", range(1, 2 ** len(MISTAKES)))
def test_all_mistakes_in_a_file_are_reported(written: Callable[[str], Path], chosen: int) -> None:
    text, messages = BIG, []
    for i, (line, (wrong, message)) in enumerate(MISTAKES.items()):
        if chosen >> i & 1:
            assert text.count(f"\n{line}") == 1
            text = text.replace(f"\n{line}", f"\n{wrong}")
            messages.append(message)
    file = written(text)
    with pytest.raises(ResourceError) as error:
        hf.Cluster.read(file)
    assert sorted(error.value.message.splitlines()) == sorted(f"{file}: {message}" for message in messages)


def test_all_mistakes_in_the_numbers_of_nodes_are_reported() -> None:
    with pytest.raises(ResourceError, match=r"HF523: count is .*, got 0; gpus is .*, got -1; cpus is .*, got 0$"):
        hf.Nodes(0, gpus=-1, gpu_memory_gib=80, cpus=0)


def test_a_file_that_cannot_be_read(written: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"HF523: .*missing\.toml: No such file or directory"):
        hf.Cluster.read(tmp_path / "missing.toml")
    with pytest.raises(ResourceError, match=r"HF523: .*big\.toml: .*line 1, column 3"):
        hf.Cluster.read(written("a b"))
    file = tmp_path / "latin.toml"
    file.write_bytes(b"# \xe9\n")
    with pytest.raises(ResourceError, match=r"HF523: .*latin\.toml: .*UTF-8"):
        hf.Cluster.read(file)


def test_what_is_no_cluster() -> None:
    wrong: Any = [hf.Nodes(1, cpus=4)]
    flow: Any = hf.dataflow(lambda: None)
    deployment = hf.Deployment()
    mistakes: list[tuple[Callable[[], object], str]] = [
        (hf.Cluster, "a cluster needs nodes: hf.Cluster(hf.Nodes("),
        (lambda: hf.Cluster(wrong), "a cluster is made of hf.Nodes(...), got [Nodes("),
        (lambda: hf.Nodes(1, cpus=4, domain=0), "domain is a whole number of at least 1, got 0"),
        (lambda: flow.check(deployment, {}, wrong), "'<lambda>' is checked against an hf.Cluster, got [Nodes("),
        (lambda: flow.compile(deployment, {}, wrong), "'<lambda>' is checked against an hf.Cluster, got [Nodes("),
        (lambda: hf.Experiment(flow, deployment, cluster=wrong), "an experiment takes an hf.Cluster, got [Nodes("),
    ]
    for make, text in mistakes:
        with pytest.raises(ResourceError) as error:
            make()
        assert str(error.value).startswith(f"HF523: {text}")
