"""A run, stopped and resumed, is the run that was not stopped; what goes wrong leaves the last checkpoint good."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray
from safetensors.torch import load_file

from hfdsl.check.report import CheckError
from hfdsl.errors import CheckpointError, ConfigError, DataError, HfError, HfWarning
from hfdsl.rl.training.config import from_table, load
from hfdsl.rl.training.loop import Ended, prepare, train
from hfdsl.rl.training.metrics import Record
from hfdsl.rl.training.preflight import first_rows
from hfdsl.rl.training.run_folder import checkpoints
from hfdsl.runtime.ray.backend import RayBackend
from hfdsl.runtime.saving import state_files
from hfdsl.testing import replay
from tests.rl.training.test_config import SEVERAL
from tests.rl.training.toy import table

ROOT = Path(__file__).parents[3]


def run(folder: Path, *changes: str, resume: bool = False, **values: Any) -> Ended:
    return train(from_table(table(folder, **values), [f"output={folder}/run", *changes]), resume=resume)


def lines(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """What was written, less what differs from run to run."""
    records = [json.loads(line) for line in (folder / "run" / name).read_text().splitlines()]
    return [{key: value for key, value in record.items() if key != "time"} for record in records]


def weights(folder: Path) -> dict[str, bytes]:
    last = checkpoints.latest(folder / "run/checkpoints")
    return {file.name: file.read_bytes() for file in last.glob("*.safetensors")}


def fresh(folder: Path, name: str) -> Path:
    """A folder beside, with the data of the first."""
    table(folder)
    other = folder / name
    other.mkdir()
    return other


def both(folder: Path, name: str, changes: Sequence[str] = ()) -> Path:
    """A run in a folder of its own, of the same data."""
    other_folder = fresh(folder, name)
    train(from_table(table(folder), [f"output={other_folder}/run", *changes]))
    return other_folder


@pytest.fixture
def straight(tmp_path: Path) -> Path:
    return both(tmp_path, "straight")


def test_a_run_leaves_what_it_made(straight: Path) -> None:
    metrics = lines(straight)
    assert [record["step"] for record in metrics] == list(range(7))
    assert [record["step"] for record in metrics if "held_out/score" in record] == [0, 2, 4, 6]
    assert {"policy/loss", "policy/weight", "outcome/score", "outcome/length"} <= metrics[1].keys()
    samples = lines(straight, "samples.jsonl")
    assert [(record["step"], record["prompt"]) for record in samples[:5]] == [
        (0, "a"),
        (0, "b"),
        (0, "c"),
        (0, "d"),
        (2, "a"),
    ]
    assert {"response", "score"} <= samples[0].keys()
    saved = checkpoints.complete(straight / "run/checkpoints")
    assert [path.name for path in saved] == ["step-00000003", "step-00000006"]
    assert sorted(path.name for path in saved[0].iterdir()) == [
        "checkpoint.json",
        "policy-rank-0.safetensors",
        "state.json",
    ]
    stated = json.loads((saved[0] / "checkpoint.json").read_text())
    assert stated["cursor"]["position"] >= 18
    assert stated["versions"].keys() >= {"hfdsl", "torch", "python"}
    assert from_table(stated["config"]).table() == stated["config"]
    assert (straight / "run/config.toml").exists()


@pytest.mark.parametrize("stop", [3, 4])
def test_a_resumed_run_is_the_run_that_was_not_stopped(tmp_path: Path, straight: Path, stop: int) -> None:
    other_folder = both(tmp_path, "stopped", [f"steps={stop}"])
    loaded = from_table(table(tmp_path), [f"output={other_folder}/run"])
    assert train(loaded, resume=True) == Ended(6, stopped=False)
    assert [record for record in lines(other_folder) if record["step"] > stop] == [
        record for record in lines(straight) if record["step"] > stop
    ]
    assert lines(other_folder)[-1] == lines(straight)[-1]
    assert weights(other_folder) == weights(straight)
    assert lines(other_folder, "samples.jsonl")[-4:] == lines(straight, "samples.jsonl")[-4:]


def test_a_run_that_was_killed_after_its_checkpoint_is_the_same(tmp_path: Path, straight: Path) -> None:
    """Lines of steps that come again, and half a line, are dropped."""
    other_folder = both(tmp_path, "killed", ["checkpoints.every=2", "steps=5"])
    shutil.rmtree(checkpoints.latest(other_folder / "run/checkpoints"))
    with (other_folder / "run/metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "pol')
    train(from_table(table(tmp_path), [f"output={other_folder}/run"]), resume=True)
    assert lines(other_folder) == lines(straight)
    assert weights(other_folder) == weights(straight)


@pytest.mark.nightly
def test_a_resumed_run_is_the_same_on_ray_and_other_pools(tmp_path: Path, straight: Path, ray_cluster: Any) -> None:
    other_folder = both(tmp_path, "stopped", ["steps=3"])
    apart = {**SEVERAL, "default": {"pool": "left"}, "roles": {"policy": {"pool": "both", "colocate": False}}}
    train(from_table(table(tmp_path, deployment=apart), [f"output={other_folder}/run", "backend=ray"]), resume=True)
    assert lines(other_folder)[-3:] == lines(straight)[-3:]
    assert weights(other_folder) == weights(straight)


@pytest.mark.nightly
@pytest.mark.parametrize("copy_every", [None, 2])
def test_a_run_on_ray_that_loses_processes_is_the_same(
    tmp_path: Path, straight: Path, ray_cluster: Any, copy_every: int | None
) -> None:
    other_folder = fresh(tmp_path, "loses")
    killed = list[int]()

    def show(record: Record) -> None:
        if record.nodes and record.step in {2, 4} - set(killed):  # after a step, not an evaluation
            killed.append(record.step)
            (backend,) = (backend for backend in RayBackend.launched if backend._groups)
            worker = next(iter(backend._groups.values())).workers[-1]
            os.kill(ray.get(worker.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)

    changes = [f"output={other_folder}/run", "backend=ray", "checkpoints.every=2"]
    if copy_every is not None:
        changes.append(f"faults.copy_every={copy_every}")
    with pytest.warns(HfWarning, match="HF840"):
        train(from_table(table(tmp_path), changes), show=show)
    assert killed == [2, 4]
    assert (lines(other_folder), weights(other_folder)) == (lines(straight), weights(straight))


PLACES = {
    "split": {
        "pools": {"one": {"processes": [2], "gpu": False}, "two": {"processes": [1, 1], "gpu": False}},
        "default": {"pool": "two"},
        "roles": {"policy": {"pool": "one"}},
    },
    "merged": {**SEVERAL, "roles": {"policy": {"pool": "both", "colocate": False}}},
}


@pytest.mark.parametrize("place", PLACES)
def test_other_places_give_the_same_bits(tmp_path: Path, straight: Path, place: str) -> None:
    other_folder = fresh(tmp_path, place)
    train(from_table(table(tmp_path, deployment=PLACES[place]), [f"output={other_folder}/run"]))
    assert lines(other_folder) == lines(straight)
    assert weights(other_folder) == weights(straight)


# -- what goes wrong


def test_a_run_is_not_written_over(tmp_path: Path, straight: Path) -> None:
    with pytest.raises(ConfigError, match=r"HF901: 'output': there is a run in '.*'; .*--set output=FOLDER"):
        train(from_table(table(tmp_path), [f"output={straight}/run"]))
    with pytest.raises(CheckpointError, match=r"HF906: there is no run in '.*/none' to continue; --auto-resume"):
        train(from_table(table(tmp_path), [f"output={tmp_path}/none"]), resume=True)
    assert not (tmp_path / "none").exists()


def test_a_metric_that_is_no_number_leaves_the_last_checkpoint_good(tmp_path: Path, straight: Path) -> None:
    other_folder = fresh(tmp_path, "poisoned")
    poisoned = from_table(table(tmp_path), [f"output={other_folder}/run", "policy.poison=5"])
    with pytest.raises(HfError, match=r"HF907: in step 5 of 'following' 'policy.update' gives loss = nan"):
        train(poisoned)
    assert [record["step"] for record in lines(other_folder)] == [0, 1, 2, 3, 4]
    assert checkpoints.latest(other_folder / "run/checkpoints").name == "step-00000003"
    mended = from_table(table(tmp_path), [f"output={other_folder}/run"])
    with pytest.warns(
        HfWarning, match=r"HF905: .* is of another configuration:\n  policy.poison: 5 in the checkpoint, \(absent\) now"
    ):
        train(mended, resume=True, accept=["policy.poison"])
    assert weights(other_folder) == weights(straight)


def test_a_bad_row_ends_the_run_or_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table(tmp_path)
    rows = (tmp_path / "letters.jsonl").read_text().splitlines()
    (tmp_path / "letters.jsonl").write_text("\n".join([*rows[:4], '{"word": "abcd"}', "{"]))
    monkeypatch.setattr(first_rows, "FIRST_ROWS", 4)  # the check knows the good ones
    with pytest.raises(DataError, match=r"letters.jsonl:[56]: (its prompt has 4 tokens|not JSON)"):
        run(tmp_path)
    (tmp_path / "run/metrics.jsonl").unlink()
    run(tmp_path, "data.on_bad=skip")
    assert lines(tmp_path)[-1]["data/skipped"] > 2


def test_rows_that_are_evaluated_are_not_trained_on(tmp_path: Path) -> None:
    table(tmp_path)
    (tmp_path / "unseen.jsonl").write_text("".join((tmp_path / "letters.jsonl").read_text().splitlines(True)[:8]))
    run(tmp_path, "steps=12")
    assert lines(tmp_path)[-1]["data/held_out"] >= 8


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            "actor.model.config.vocab_size=29",
            r"error\[HF904\]: the tokenizer has 30 tokens, and the model of 'actor' has vocab_size",
        ),
        (
            "actor.model.config.eos_token_id=2",
            r"error\[HF904\]: the tokenizer ends a response with token 1, and the model of",
        ),
        (
            "actor.model.config.max_position_embeddings=9",
            r"error\[HF903\]: P \+ R = 12 tokens are more than the 9 that the model",
        ),
    ],
)
def test_models_and_tokenizers_that_do_not_go_together_are_reported(
    change: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(CheckError, match=text):
        prepare(load("examples/spelling_supervised.toml", [change]))


# -- stopping and killing

SCRIPT = """
import sys, time
from pathlib import Path
from hfdsl.rl.training.config import from_table
from hfdsl.rl.training.loop import train
from hfdsl.runtime.saving import state_files
from hfdsl.runtime.ray.backend import RayBackend
from tests.rl.training.toy import table

folder, *changes = sys.argv[1:]
{before}
ended = train(from_table(table(Path(folder)), changes), show=lambda record: print(record.step, flush=True))
print(ended, flush=True)
"""


@contextmanager
def started(folder: Path, before: str, *changes: str) -> Iterator[subprocess.Popen[str]]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-c", SCRIPT.format(before=before), str(folder), f"output={folder}/run", *changes]
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()  # leaving a process waits for it, and after a failure it would continue


def until(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    for text in process.stdout:
        if text.startswith(line):
            return
    raise AssertionError(f"ended before it said {line!r}")


@pytest.mark.nightly_besides("15")
@pytest.mark.parametrize("signaled", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_after_its_step_with_a_checkpoint(
    tmp_path: Path, straight: Path, signaled: signal.Signals
) -> None:
    other_folder = tmp_path / "asked"
    other_folder.mkdir()
    for name in ("letters.jsonl", "unseen.jsonl"):
        (other_folder / name).write_text((tmp_path / name).read_text())
    with started(other_folder, "", "steps=100000", "checkpoints.every=100000") as process:
        until(process, "3")
        process.send_signal(signaled)
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
        assert process.wait(60) == 0
    last = int(lines[-1].partition("step=")[2].partition(",")[0])
    assert lines[-1] == f"Ended(step={last}, stopped=True)"
    assert checkpoints.latest(other_folder / "run/checkpoints").name == f"step-{last:08d}"
    assert train(from_table(table(other_folder), [f"steps={last + 1}"]), resume=True) == Ended(last + 1, stopped=False)


SLOW = """
def slow(path):
    if sys.argv and "00000004" in str(path):
        print("writing", flush=True)
        time.sleep(600)
state_files.sync_to_disk = slow
"""


def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(tmp_path: Path, straight: Path) -> None:
    other_folder = tmp_path / "killed"
    other_folder.mkdir()
    for name in ("letters.jsonl", "unseen.jsonl"):
        (other_folder / name).write_text((tmp_path / name).read_text())
    with started(other_folder, SLOW, "checkpoints.every=2") as process:
        until(process, "writing")
        process.kill()
        process.wait(60)
    checkpoint_folder = other_folder / "run/checkpoints"
    assert [record.name for record in checkpoint_folder.glob(".*.part")] == [".step-00000004.part"]
    assert checkpoints.latest(checkpoint_folder).name == "step-00000002"
    loaded = from_table(table(other_folder), ["checkpoints.every=2"])
    assert train(loaded, resume=True) == Ended(6, stopped=False)
    assert not list(checkpoint_folder.glob(".*"))
    assert [record["policy/weight"] for record in lines(other_folder)[1:]] == [
        record["policy/weight"] for record in lines(straight)[1:]
    ]


def test_steps_go_on_while_a_checkpoint_is_written(
    tmp_path: Path, straight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, seen, write = threading.Event(), list[int](), state_files.write

    def slow(folder: str, role: str, apart: state_files.FlatState) -> dict[str, str]:
        if "00000002" in folder:
            assert written.wait(60)
        return write(folder, role, apart)

    def show(record: Record) -> None:
        seen.append(len(checkpoints.complete(other_folder / "run/checkpoints")))
        if record.step == 4:  # two steps later: the state must be that of step 2 all the same
            written.set()

    other_folder = fresh(tmp_path, "behind")
    monkeypatch.setattr(state_files, "write", slow)
    train(
        from_table(table(tmp_path), [f"output={other_folder}/run", "checkpoints.every=2", "checkpoints.keep=9"]),
        show=show,
    )
    assert seen[:5] == [0, 0, 0, 0, 0]
    names = [name.name for name in checkpoints.complete(other_folder / "run/checkpoints")]
    assert names == ["step-00000002", "step-00000004", "step-00000006"]
    for name in names[1:]:
        shutil.rmtree(other_folder / "run/checkpoints" / name)
    train(from_table(table(tmp_path), [f"output={other_folder}/run"]), resume=True)
    assert weights(other_folder) == weights(straight)


def test_a_checkpoint_that_is_not_behind_is_whole_before_the_next_step(tmp_path: Path) -> None:
    seen: list[int] = []
    checkpoint_folder = tmp_path / "run/checkpoints"
    changes = ["checkpoints.every=1", "checkpoints.keep=9", "checkpoints.behind=false"]
    train(
        from_table(table(tmp_path), [f"output={tmp_path}/run", *changes]),
        show=lambda record: seen.append(len(checkpoints.complete(checkpoint_folder))),
    )
    assert seen == [0, 0, 1, 2, 3, 4, 5]


def test_a_failure_leaves_the_checkpoint_that_is_under_way(tmp_path: Path) -> None:
    with pytest.raises(HfError, match="HF907: in step 5"):
        run(tmp_path, "policy.poison=5", "checkpoints.every=4")
    assert checkpoints.latest(tmp_path / "run/checkpoints").name == "step-00000004"


def test_a_file_that_cannot_be_written_is_reported_at_a_later_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = state_files.sync_to_disk

    def full(path: Path) -> None:
        if "00000004" in str(path):
            raise OSError(28, "No space left on device")
        write(path)

    monkeypatch.setattr(state_files, "sync_to_disk", full)
    message = (
        r"HF906: the checkpoint of step 4 cannot be written: the state of role 'policy' cannot be written to .*space"
    )
    with pytest.raises(CheckpointError, match=message):
        run(tmp_path, "checkpoints.every=2")
    checkpoint_folder = tmp_path / "run/checkpoints"
    assert [checkpoint.name for checkpoint in checkpoints.complete(checkpoint_folder)] == ["step-00000002"]


def test_a_checkpoint_that_cannot_be_written_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "sync_to_disk", full)
    with pytest.raises(CheckpointError, match=r"HF906: the checkpoint of step 3 cannot be written: .*No space left"):
        run(tmp_path)
    assert checkpoints.complete(tmp_path / "run/checkpoints") == []


def test_every_record_is_shown(tmp_path: Path) -> None:
    shown: list[Record] = []
    train(from_table(table(tmp_path), ["steps=2"]), show=shown.append)
    assert [record.step for record in shown] == [0, 1, 2]
    assert shown[1].nodes.keys() >= {"policy.generate", "reward.score", "policy.update"}
    assert shown[1].tokens_per_second is not None
    assert shown[1].seconds > 0


def test_steps_that_are_asked_for_are_recorded(straight: Path, tmp_path: Path) -> None:
    recorded = both(tmp_path, "recorded", ["record=[2, 5]"])
    assert lines(recorded) == lines(straight)  # recording changes nothing
    assert sorted(folder.name for folder in (recorded / "run/recorded").iterdir()) == ["step-2", "step-5"]
    calls = json.loads((recorded / "run/recorded/step-5/recording.json").read_text())["calls"]
    for call in calls:
        replayed = replay(recorded / "run/recorded/step-5", call["label"])
        assert replayed.same, str(replayed)


def test_recordings_and_checkpoints_of_one_step_do_not_meet(straight: Path, tmp_path: Path) -> None:
    changes = ["record=[3, 4, 5]", "checkpoints.keep=9"]
    recorded = both(tmp_path, "recorded", changes)
    saved = checkpoints.complete(recorded / "run/checkpoints")
    assert [checkpoint.name for checkpoint in saved] == ["step-00000003", "step-00000006"]
    for file in (file for checkpoint in saved for file in checkpoint.glob("*.safetensors")):
        assert load_file(file)
    shutil.rmtree(saved[-1])
    output = [f"output={recorded}/run", *changes]
    train(from_table(table(tmp_path), output), resume=True)  # over steps that have a recording
    assert lines(recorded) == lines(straight)
