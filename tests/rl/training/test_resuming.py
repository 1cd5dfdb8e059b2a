"""One folder, one run: who may write to it, where a run begins in it, and what it is held against."""

from __future__ import annotations

import json
import random
import shutil
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from hfdsl.errors import CheckpointError, ConfigError, HfError, HfWarning
from hfdsl.rl.training.config import Loaded, from_table
from hfdsl.rl.training.loop import Ended, train
from hfdsl.rl.training.metrics import JsonLinesWriter, Record
from hfdsl.rl.training.run_folder import checkpoints
from hfdsl.rl.training.run_folder.fingerprints import code_fingerprints, files_digest
from hfdsl.rl.training.run_folder.lock import locked
from hfdsl.rl.training.run_folder.samples import json_line
from hfdsl.runtime.saving.sealed_json import digest
from tests.nightly import examples
from tests.rl.training.test_loop import lines, started, until, weights
from tests.rl.training.toy import table

pytestmark = pytest.mark.xdist_group("resuming")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, and a run of 6 steps that has checkpoints of steps 3 and 6."""
    folder = tmp_path_factory.mktemp("trained")
    train(from_table(table(folder)))
    return folder


@pytest.fixture
def stopped(trained: Path, tmp_path: Path) -> Path:
    """A copy that was stopped after step 3."""
    shutil.copytree(trained / "run", tmp_path / "run")
    shutil.rmtree(checkpoints.latest(tmp_path / "run/checkpoints"))
    return tmp_path


def loaded(folder: Path, *changes: str, data: Path | None = None) -> Loaded:
    """The run of a folder, with the data in another one."""
    return from_table(table(data or folder), [f"output={folder}/run", *changes])


# -- the lock


def test_a_second_run_in_a_folder_is_refused(tmp_path: Path) -> None:
    with started(tmp_path, "", "steps=100000", "checkpoints.every=2") as first:
        until(first, "3")
        for resume in (True, False):
            with pytest.raises(ConfigError) as caught:
                train(loaded(tmp_path), resume=resume)
            assert caught.value.code == "HF914"
            assert f"'output': process {first.pid} on '" in str(caught.value)
        first.kill()
        first.wait(60)
    assert train(loaded(tmp_path, "steps=1", "checkpoints.every=2"), resume=True).stopped is False


def test_a_second_run_in_the_same_process_is_refused(tmp_path: Path) -> None:
    inside, finished = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(tmp_path / "run"):
            inside.set()
            finished.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert inside.wait(60)
    with pytest.raises(ConfigError, match="HF914"), locked(tmp_path / "run"):
        pass
    with locked(tmp_path / "another"):
        finished.set()
        holder.join(60)
    with locked(tmp_path / "run"):
        pass


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"HF901: 'output': '.*/file/run' cannot be written: Not a directory"):
        train(loaded(tmp_path, f"output={tmp_path}/file/run"))


# -- before the first checkpoint


@pytest.mark.parametrize("resume", [True, False, "auto"])
def test_a_run_that_ended_before_its_first_checkpoint_starts_again(
    trained: Path, stopped: Path, resume: bool | Literal["auto"]
) -> None:
    shutil.rmtree(stopped / "run/checkpoints")
    (stopped / "run/checkpoints/.step-00000003.part").mkdir(parents=True)
    with pytest.warns(
        HfWarning, match=r"HF906: the run in '.*/run' ended before its first checkpoint: it starts again"
    ):
        assert train(loaded(stopped, data=trained), resume=resume) == Ended(6, stopped=False)
    assert lines(stopped) == lines(trained)
    assert lines(stopped, "samples.jsonl") == lines(trained, "samples.jsonl")
    assert weights(stopped) == weights(trained)


def test_a_run_of_another_configuration_is_not_started_over(trained: Path, stopped: Path) -> None:
    shutil.rmtree(stopped / "run/checkpoints")
    before = (stopped / "run/metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError) as caught:
        train(loaded(stopped, "data.on_bad=skip", data=trained))
    assert str(caught.value) == (
        f"HF901: 'output': there is a run in '{stopped}/run' of another configuration:\n"
        '  data.on_bad: "raise" in the checkpoint, "skip" now\nstart another: --set output=FOLDER'
    )
    assert (stopped / "run/metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("resume", [True, "auto"])
@pytest.mark.parametrize("missing", ["checkpoint", "checkpoint and configuration"])
def test_a_folder_whose_checkpoints_are_broken_is_not_started_over(
    trained: Path, stopped: Path, resume: bool | Literal["auto"], missing: str
) -> None:
    (checkpoints.latest(stopped / "run/checkpoints") / "checkpoint.json").unlink()
    if missing != "checkpoint":
        (stopped / "run/config.toml").unlink()
    with pytest.raises(CheckpointError, match=r"HF906: there is no complete checkpoint in .*, only step-00000003"):
        train(loaded(stopped, data=trained), resume=resume)


@pytest.mark.parametrize("began", ["no folder", "a folder", "a lock"])
def test_a_run_that_resumes_by_itself_starts_where_none_began(trained: Path, tmp_path: Path, began: str) -> None:
    if began != "no folder":
        (tmp_path / "run").mkdir()
    if began == "a lock":  # of a job that was killed before it wrote anything else
        (tmp_path / "run/run.lock").touch()
    assert train(loaded(tmp_path, "steps=3", data=trained), resume="auto") == Ended(3, stopped=False)
    assert train(loaded(tmp_path, data=trained), resume="auto") == Ended(6, stopped=False)
    after = [[record for record in lines(folder) if record["step"] > 3] for folder in (tmp_path, trained)]
    assert after[0] == after[1]
    assert weights(tmp_path) == weights(trained)


# -- what a checkpoint is held against


def test_a_checkpoint_of_another_configuration_is_refused(trained: Path, stopped: Path) -> None:
    changed = loaded(stopped, "policy.optimizer.learning_rate=1", "data.on_bad=skip", "steps=9", data=trained)
    with pytest.raises(CheckpointError) as caught:
        train(changed, resume=True, accept=["data.on_bad"])
    where = f"{stopped}/run/checkpoints/step-00000003"
    assert str(caught.value) == (
        f"HF905: '{where}' is of another configuration:\n"
        '  data.on_bad: "raise" in the checkpoint, "skip" now\n'
        "  policy.optimizer.learning_rate: 0.05 in the checkpoint, 1.0 now\n"
        "--accept config accepts the changes, --set does so for a field"
    )


def test_other_data_are_refused_or_accepted(tmp_path: Path) -> None:
    train(loaded(tmp_path, "steps=3"))
    rows = tmp_path / "letters.jsonl"
    text = rows.read_text()
    rows.write_text(text.replace('"word": "gh"', '"word": "ag"'))
    with pytest.raises(CheckpointError, match=r"HF905: .* is of other data:\n  data.source: the files have other cont"):
        train(loaded(tmp_path), resume=True)
    rows.write_text(text + '{"word": "aa"}\n')
    with pytest.raises(
        CheckpointError, match=r"of other data:\n  data.source: 64 rows in the checkpoint, 65 now\n"
    ) as caught:
        train(loaded(tmp_path), resume=True)
    assert "--accept data accepts the changes" in str(caught.value)
    with pytest.warns(HfWarning, match="HF905: .* continues although it is of other data"):
        assert train(loaded(tmp_path), resume=True, accept=["data"]) == Ended(6, stopped=False)
    stated = json.loads((checkpoints.latest(tmp_path / "run/checkpoints") / "checkpoint.json").read_text())
    assert (stated["rows"], stated["cursor"]["epoch"]) == (65, 1)


def test_other_code_and_versions_are_refused_or_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(loaded(tmp_path, "steps=3"))
    monkeypatch.setattr("hfdsl.rl.training.run_folder.resuming.versions", lambda: {"torch": "0.0"})
    monkeypatch.setattr("hfdsl.rl.training.run_folder.resuming.code_fingerprints", lambda table: {"flows.py": "other"})
    with pytest.raises(CheckpointError) as caught:
        train(loaded(tmp_path), resume=True, accept=["code"])
    assert "is of other code and other versions:\n" in str(caught.value)
    assert "--accept versions accepts" in str(caught.value)
    with pytest.raises(CheckpointError, match=r"\n  tests/rl/training/toy\.py: not here\n"):
        train(loaded(tmp_path), resume=True, accept=["versions"])
    with pytest.warns(HfWarning, match="HF905"):
        train(loaded(tmp_path), resume=True, accept=["versions", "code"])


def test_a_state_that_a_changed_role_cannot_load_names_the_change(tmp_path: Path) -> None:
    train(loaded(tmp_path, "steps=3"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", HfWarning)  # nothing says that the run continues
        with pytest.raises(
            CheckpointError,
            match=r"HF905: no role can continue .* configuration:\n  policy.size: 11 in the checkpoint, 12",
        ):
            train(loaded(tmp_path, "policy.size=12"), resume=True, accept=["policy.size"])


def test_the_code_of_a_run_is_its_files_and_what_they_import_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    (tmp_path / "flows.py").write_text("import json, torch\nfrom package import rewards\n")
    (tmp_path / "package/__init__.py").write_text("")
    (tmp_path / "package/rewards.py").write_text("from . import rules\nfrom .rules import rule\n")
    (tmp_path / "package/rules.py").write_text("import flows\n")
    (tmp_path / "beside.py").write_text("")
    config = {"algorithm": "flows.py:flow", "roles": {"reward": "hfdsl.rl.workers:Verifier"}, "steps": 3}
    before = code_fingerprints(config)
    assert list(before) == ["flows.py", "package/__init__.py", "package/rewards.py", "package/rules.py"]
    (tmp_path / "package/rules.py").write_text("import flows\nrule = 1\n")
    after = code_fingerprints(config)
    assert {name for name in before if before[name] != after[name]} == {"package/rules.py"}


def test_a_digest_of_a_large_file_reads_blocks_from_its_first_byte_to_its_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hfdsl.rl.training.run_folder.fingerprints.WHOLE_BYTES", 64)
    monkeypatch.setattr("hfdsl.rl.training.run_folder.fingerprints.BLOCK_BYTES", 8)
    file, digests = tmp_path / "file", set[str]()
    for text in (b"a" * 1000, b"b" + b"a" * 999, b"a" * 999 + b"b", b"a" * 1001):
        file.write_bytes(text)
        digests.add(files_digest([file]))
    assert len(digests) == 4


# -- digests


def fields_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every plain value in a JSON value."""
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from fields_of(inner, (*path, key))
    else:
        yield path


def changed(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "1"
        case _:
            return 0


@pytest.mark.parametrize("name", ["checkpoint.json", "state.json"])
def test_a_change_of_any_field_is_found(stopped: Path, name: str) -> None:
    checkpoint = checkpoints.latest(stopped / "run/checkpoints")
    text = (checkpoint / name).read_text()
    paths = list(fields_of(json.loads(text)))
    assert len(paths) > 8
    inputs = inputs_of(checkpoint)
    accept = ("config", "data", "code", "versions")
    assert checkpoints.read(checkpoint, inputs, accept).position.step == 3
    for path in paths:
        stated = json.loads(text)
        inner = stated
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = changed(inner[path[-1]])
        (checkpoint / name).write_text(json.dumps(stated))
        with pytest.raises(CheckpointError, match="HF906"):
            checkpoints.read(checkpoint, inputs, accept)


@pytest.mark.sampled
def test_a_change_of_any_character_is_found_or_changes_nothing(stopped: Path) -> None:
    checkpoint = checkpoints.latest(stopped / "run/checkpoints")
    file, inputs = checkpoint / "checkpoint.json", inputs_of(checkpoint)
    text, draw = file.read_text(), random.Random(7)
    good = checkpoints.read(checkpoint, inputs)
    for _ in range(examples(400)):
        position = draw.randrange(len(text))
        file.write_text(text[:position] + draw.choice('0123456789abcs"{}[],: \n') + text[position + 1 :])
        try:
            assert checkpoints.read(checkpoint, inputs) == good
        except CheckpointError as error:
            assert error.code == "HF906"  # noqa: PT017  # most changes are found, a space for a space is none


def inputs_of(checkpoint: Path) -> checkpoints.RunInputs:
    """What a checkpoint was written with."""
    stated = json.loads((checkpoint / "checkpoint.json").read_text())
    return checkpoints.RunInputs(**{name: stated[name] for name in ("config", "rows", "data", "code", "versions")})


def test_a_checkpoint_of_an_earlier_version_is_read_with_a_warning(tmp_path: Path) -> None:
    train(loaded(tmp_path, "steps=3"))
    checkpoint = checkpoints.latest(tmp_path / "run/checkpoints")
    for name in ("checkpoint.json", "state.json"):
        stated = json.loads((checkpoint / name).read_text())
        for field in ("format", "sha256", "state_sha256", "data", "code"):
            stated.pop(field, None)
        if "config" in stated:
            stated["config_sha256"] = digest(stated["config"])
        (checkpoint / name).write_text(json.dumps(stated))
    with pytest.warns(HfWarning, match=r"HF905: .* is of an earlier version, without digests"):
        train(loaded(tmp_path), resume=True)


def test_a_position_beyond_the_data_does_not_loop_for_ever(stopped: Path) -> None:
    checkpoint = checkpoints.latest(stopped / "run/checkpoints")
    stated = json.loads((checkpoint / "checkpoint.json").read_text())
    inputs = inputs_of(checkpoint)
    for field in ("format", "sha256"):
        del stated[field]
    stated["config_sha256"] = digest(stated["config"])
    for cursor in ({"position": 64}, {"position": -1}, {"position": True}, {"seed": "7"}, {"skipped": 0.5}):
        (checkpoint / "checkpoint.json").write_text(json.dumps({**stated, "cursor": {**stated["cursor"], **cursor}}))
        with pytest.raises(CheckpointError, match="HF906"):
            checkpoints.read(checkpoint, inputs)


# -- files that are read back

SEPARATORS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def test_samples_are_one_line_each_however_a_reader_splits_them() -> None:
    text = f"a{SEPARATORS}b\ud800\udc00\ud83d é\U0001f600"
    line = json_line({"response": text})
    assert line.splitlines(keepends=True) == [line]
    line.encode()
    assert json.loads(line)["response"] == text.replace("\ud800\udc00", "\U00010000")


def test_a_log_with_hostile_lines_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    good = [json.dumps({"step": n, "text": SEPARATORS}, ensure_ascii=False).encode() for n in (0, 1, 2)]
    hostile = [
        b"5", b"null", b"[]", b'"step"', b"{}", b'{"step": "1"}', b'{"step": true}', b'{"step": 1e999}', b"\xff\xfe",
        b"[" * 50_000, b'{"step": 1, "po', b'{"step": 3}', b"", b'{"step": ' + b"1" * 5000 + b"}",
    ]  # fmt: skip  # a list of lines
    for last in (b"", b"\n", b'\n{"step": 1, "a": "\xc3', b"\r\n"):
        file.write_bytes(b"\n".join([good[0], *hostile, good[1], *hostile, good[2]]) + last)
        writer = JsonLinesWriter(file, 2)
        writer.write(Record(3, {"loss": 1.0}))
        writer.close()
        written = [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]
        assert [record["step"] for record in written] == [0, 1, 2, 3]


def test_a_list_of_sinks_that_is_damaged_names_none(tmp_path: Path) -> None:
    from hfdsl.rl.training.sinks import SINKS_FILE, SinkRun

    for text in (b"", b"[]", b"\xff", b'{"wandb": 5}', b'{"wandb": {"id": "a"}}', b"[" * 50_000):
        (tmp_path / SINKS_FILE).write_bytes(text)
        assert SinkRun.of(tmp_path, "wandb", resume=True).continues is False


def test_an_error_of_a_run_leaves_the_folder_free(tmp_path: Path) -> None:
    with pytest.raises(HfError, match="HF907"):
        train(loaded(tmp_path, "policy.poison=2"))
    with locked(tmp_path / "run"):
        pass
