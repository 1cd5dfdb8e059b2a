"""Replay: a recorded call gives the same bits alone, on any rank, with its state and what its peers said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hfdsl.errors import CheckpointError, RoleError
from hfdsl.protocols.collectives import record_collective, recorded_collectives
from hfdsl.runtime.running import Running
from hfdsl.runtime.saving.recording import COLLECTIVES, call_folder
from hfdsl.runtime.saving.value_reading import read_value
from hfdsl.testing.replaying import replay
from hfdsl.tools.cli import main
from tests.runtime.renamed import renamed
from tests.testing import replay_programs as p


def recorded(folder: Path) -> Path:
    with p.plan().launch(seed=5) as running:
        return one_of_three(folder, running)


def one_of_three(folder: Path, running: Running) -> Path:
    """The recording of the second step."""
    running.step(p.batch())
    with running.record(folder / "r"):
        running.step(p.batch())
    running.step(p.batch())
    return folder / "r"


@pytest.fixture(scope="module", params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def launched(request: pytest.FixtureRequest) -> Iterator[Running]:
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    with p.program.compile(p.both(), {p.B: 8}).launch(request.param, seed=5) as running:
        yield running


@pytest.mark.parametrize("written", [None, 1, 2, 3, 5])
def test_a_recording_of_another_format_is_refused(tmp_path: Path, written: int | None) -> None:
    folder = recorded(tmp_path)
    header = json.loads((folder / "recording.json").read_text())
    changed = {key: value for key, value in header.items() if key != "format"}
    changed |= {} if written is None else {"format": written}
    (folder / "recording.json").write_text(json.dumps(changed))
    message = (
        rf"HF906: the recording in '.*' has format {written or 1}, and this version of hfdsl reads format 4; record"
    )
    with pytest.raises(CheckpointError, match=message):
        replay(folder, "halved")
    assert main(["replay", str(folder)]) == 2


def test_a_recording_names_what_its_files_hold(tmp_path: Path) -> None:
    folders = [
        call_folder(folder, "actor.update#2", 0) for folder in (recorded(tmp_path), failing(tmp_path / "failed"))
    ]
    files = {"arguments.json", "arguments.safetensors", "collectives.json", "collectives.safetensors"}
    assert [{file.name for file in folder.iterdir()} for folder in folders] == [files | {"result.json"}] * 2
    failed = call_folder(tmp_path / "failed/r", "actor.update#2", 1)
    assert {file.name for file in failed.iterdir()} == files


@pytest.mark.nightly_cases("ray")
def test_every_call_gives_what_it_gave(launched: Running, tmp_path: Path) -> None:
    recording = one_of_three(tmp_path, launched)
    for node in ("actor.generate", "halved", "actor.update#1", "actor.update#2"):
        for rank in (0, 1):
            replayed = replay(recording, node, rank)
            assert replayed.same, str(replayed)
            assert not replayed.failed_then
    text = "'actor.update#2' on rank 1, after actor.update#1, gives what it gave then, bit for bit"
    assert str(replay(recording, "actor.update#2", 1)) == text
    assert json.loads((recording / "recording.json").read_text())["step"] == 1


@pytest.mark.nightly_cases("ray")
def test_collectives_in_another_thread_are_recorded(launched: Running, tmp_path: Path) -> None:
    flow = renamed(p.program, "in_threads", actor="threaded")
    folder = one_of_three(tmp_path, launched.also(flow.compile(launched.plan.deployment, {p.B: 8})))
    for node in ("threaded.update#1", "threaded.update#2"):
        for rank in (0, 1):
            heard = collectives(folder, node, rank)
            assert [how for how, _ in heard] == ["gathered"]
            replayed = replay(folder, node, rank)
            assert replayed.same, str(replayed)
    assert collectives(folder, "threaded.generate", 0) == []


def collectives(folder: Path, node: str, rank: int) -> Any:
    return read_value(call_folder(folder, node, rank) / COLLECTIVES, "collectives", trust=False, main=lambda: None)


class OnDevice:
    """A stand-in for a tensor on a GPU."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def detach(self) -> OnDevice:
        return self

    def to(self, device: str, *, copy: bool = False) -> str:
        self.asked.append((device, copy))
        return "on the host"


def test_recorded_collectives_are_on_the_host_and_of_their_own_rank() -> None:
    class Nobody:
        def group(self, ranks: tuple[int, ...], rank: int) -> Any: ...

    role, second_role, tensor = Nobody(), Nobody(), OnDevice()
    with recorded_collectives((role, 1)) as heard:
        assert record_collective((role, 1), "reduced", tensor) is tensor
        for endpoint in ((role, 0), (second_role, 1)):
            record_collective(endpoint, "reduced", OnDevice())
        record_collective((role, 1), "gathered", [tensor, {"an": "object"}])
    record_collective((role, 1), "reduced", tensor)
    assert heard == [("reduced", "on the host"), ("gathered", ["on the host", {"an": "object"}])]
    assert tensor.asked == [("cpu", True)] * 2


def test_another_body_gives_another_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = recorded(tmp_path)
    monkeypatch.setattr(p.Actor.update, "__code__", (lambda self, rows: p.Loss(loss=7.0)).__code__)
    monkeypatch.setitem(p.Actor.update.__globals__, "p", p)
    replayed = replay(folder, "actor.update#1")
    assert not replayed.same
    assert str(replayed).startswith(
        "'actor.update#1' on rank 0 gives another result, first in column 'loss':\n  then  0."
    )
    assert str(replayed).endswith("  now   7.0")


def failing(folder: Path) -> Path:
    with p.plan(fails=True).launch(seed=5) as running, pytest.raises(RoleError), running.record(folder / "r"):
        running.step(p.batch())
    return folder / "r"


def test_a_call_that_failed_fails_again(tmp_path: Path) -> None:
    replayed = replay(failing(tmp_path), "actor.update#2")  # the rank that failed
    assert (replayed.rank, replayed.same, replayed.failed_then) == (1, True, True)
    assert isinstance(replayed.error, FloatingPointError)
    text = str(replayed)
    assert text.startswith(
        "'actor.update#2' on rank 1, after actor.update#1, as it failed then: FloatingPointError: gra"
    )
    assert 'raise FloatingPointError(f"gradient' in text
    assert "testing/replaying.py" not in text


def test_what_is_not_there_is_reported(tmp_path: Path) -> None:
    folder = recorded(tmp_path)
    for arguments, message in (
        (
            ("actor.update", None),
            "HF906: the recorded step has no call 'actor.update'; there are actor.update#1, actor.u",
        ),
        (
            ("actor.generat", None),
            "HF906: the recorded step has no call 'actor.generat'; did you mean 'actor.generate'?",
        ),
        (("halved", 5), "HF906: 'halved' was recorded on ranks 0, 1, not 5"),
    ):
        with pytest.raises(CheckpointError) as failure:
            replay(folder, *arguments)
        assert str(failure.value).startswith(message)
    with pytest.raises(CheckpointError, match=r"HF906: .*recording.json cannot be read: FileNotFoundError"):
        replay(tmp_path, "halved")
    again = pytest.raises(CheckpointError, match="HF906: there is a recording in")
    with p.plan().launch() as running, again, running.record(folder):
        pass


def test_a_folder_that_cannot_be_made_ends_no_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    text = rf"HF906: the recording cannot be written to '{tmp_path}/file/sub': .*Not a directory"
    with p.plan().launch() as running:
        with pytest.raises(CheckpointError, match=text), running.record(tmp_path / "file/sub"):
            pass
        with running.record(tmp_path / "other"):
            running.step(p.batch())
    assert replay(tmp_path / "other", "halved", 0).same


def test_a_changed_byte_is_reported_with_its_call_rank_and_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = recorded(tmp_path)
    for file, named in (
        ("roles/actor.json", "role 'actor'"),
        ("calls/actor.update#2/signature.json", "'actor.update#2'"),
        ("calls/actor.update#1/rank-1/collectives.safetensors", "the collectives of 'actor.update#1' on rank 1"),
        ("calls/actor.update#2/rank-1/arguments.safetensors", "the arguments of 'actor.update#2' on rank 1"),
        ("calls/actor.update#2/rank-1/result.json", "the result of 'actor.update#2' on rank 1"),
    ):
        before = (folder / file).read_bytes()
        (folder / file).write_bytes(before[:-5] + bytes([before[-5] ^ 1]) + before[-4:])
        assert main(["replay", str(folder), "--node", "actor.update#2", "--rank", "1"]) == 2
        message = capsys.readouterr().err
        assert f"hfdsl replay: {named} cannot be read: {folder / file}" in message
        assert "changed after it was written" in message
        (folder / file).write_bytes(before)
    assert main(["replay", str(folder), "--node", "actor.update#2", "--rank", "1"]) == 0


def test_what_a_recording_would_run_waits_until_it_is_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the list of calls, nor a call that is not there, nor a call without ``--trust`` loads a pickle."""
    with p.objects.compile(p.both(), {p.B: 8}).launch(seed=5) as running, running.record(tmp_path / "r"):
        running.step(p.batch())
    folder = str(tmp_path / "r")
    assert main(["replay", folder]) == 0
    assert capsys.readouterr().out == (
        "planted  ranks 0  (with pickles: needs --trust)\ngrown    ranks 0  (with pickles: needs --trust)\n"
    )
    assert main(["replay", folder, "--node", "grown"]) == 2
    assert (
        "hfdsl replay: HF915: the result of 'grown' on rank 0: 'tree[0]' is of type "
        "tests.testing.replay_programs.Tree (and 7 more), which is not plain data"
    ) in capsys.readouterr().err
    assert main(["replay", folder, "--node", "grown", "--trust"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "'grown' on rank 0 gives what it gave then, bit for bit\n"
    assert f", and what the pickles in '{folder}' say" in printed.err
    (tmp_path / "r/calls/grown/rank-0/arguments.pkl").write_bytes(b"cos\n_exit\n(I3\ntR.")  # it would end this process
    for arguments in ([], ["--node", "critic.values"], ["--node", "grown"]):
        main(["replay", folder, *arguments])


def test_the_command_lists_calls_and_repeats_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(failing(tmp_path))
    assert main(["replay", folder]) == 0
    assert capsys.readouterr().out == (
        "actor.generate  ranks 0, 1\n"
        "halved          ranks 0, 1\n"
        "actor.update#1  ranks 0, 1\n"
        "actor.update#2  ranks 0, 1  (no result on 1)\n"
    )
    assert main(["replay", folder, "--node", "actor.update#2"]) == 0
    printed = capsys.readouterr()
    assert "as it failed then: FloatingPointError" in printed.out
    ran = "hfdsl replay: this runs 'Actor.update' of the module 'tests.testing.replay_programs'\n"
    assert printed.err == ran
    assert main(["replay", folder, "--node", "halved", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["same"] is True
    assert main(["replay", folder, "--step", "3"]) == 2
    assert "has not recorded step 3; it has 0" in capsys.readouterr().err
    assert main(["replay", folder, "--node", "actor.update"]) == 2
    message = "hfdsl replay: the recorded step has no call 'actor.update'; there are actor.update#1, actor.update#2\n"
    assert capsys.readouterr().err == message
    assert main(["replay", str(tmp_path)]) == 2
    assert "is not a recording and contains none: a run writes one with" in capsys.readouterr().err
    typed = iter(["p rows.name.objects[0]", "c"])
    monkeypatch.setattr("builtins.input", lambda prompt="": next(typed))
    assert main(["replay", folder, "--node", "halved", "--rank", "1", "--pdb"]) == 0
    assert "'row 4'" in capsys.readouterr().out


# -- scripts, whose classes are pickled by value

SCRIPT = (Path(__file__).parent / "replay_script.py").read_text("utf-8")
ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["guarded", "bare"])
def script(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A script that has run; a bare one would run again where it is imported."""
    file = tmp_path / "script.py"
    file.write_text(SCRIPT if request.param == "guarded" else SCRIPT.replace('if __name__ == "__main__":', "if True:"))
    command = [sys.executable, str(file), str(tmp_path / "r")]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    return file


@pytest.mark.nightly_besides("bare")
def test_of_a_script_the_body_that_it_has_now_is_replayed(script: Path) -> None:
    folder, text = script.parent / "r", script.read_text()
    replayed = replay(folder, "role.scaled", 1)
    assert str(replayed) == (
        "'role.scaled' on rank 1 (the body that script.py has now) gives what it gave then, bit for bit"
    )
    script.write_text(text.replace("return x + 1", "return x + 2").replace("tensor / 2", "tensor / 4"))
    assert str(replay(folder, "role.scaled", 1)) == (
        "'role.scaled' on rank 1 (the body that script.py has now) gives another result, first in column 'x', row 0:\n"
        "  then  6.0\n  now   8.0 (and 1 more of 2 values)"
    )
    assert str(replay(folder, "halved", 1)).endswith("  then  3.0\n  now   1.5 (and 1 more of 2 values)")


@pytest.mark.nightly_besides("bare")
def test_of_a_script_that_cannot_be_loaded_the_recorded_body_is_replayed(script: Path) -> None:
    folder, text = script.parent / "r", script.read_text()
    for now, why in (
        (text.replace("halved(", "halves("), "has no 'halved' now"),
        (
            f"{text.partition('import sys')[0]}raise SystemExit(3)",
            "cannot be loaded again: loading it raises SystemExit: 3",
        ),
        ("1 +", "cannot be loaded again: loading it raises SyntaxError: "),
    ):
        script.write_text(now)
        with pytest.raises(CheckpointError, match=f"HF915: script.py {why}.*; if you trust the copy of it in '.*/r'"):
            replay(folder, "halved")
        replayed = replay(folder, "halved", trust=True)
        assert replayed.same
        assert str(replayed).startswith(f"'halved' on rank 0 (the recorded body: script.py {why}")
    (folder / "script.py").write_text(text + "\n")
    with pytest.raises(CheckpointError, match=r"HF906: .*/r/script.py was changed after it was written"):
        replay(folder, "halved", trust=True)
