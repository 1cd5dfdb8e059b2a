"""Files that somebody else wrote, or that were damaged: every reader ends in a coded error, or reads what is there."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import DataError, HfError
from hfdsl.rl.data.feed import Feed
from hfdsl.rl.data.order import Cursor
from hfdsl.rl.data.prompts import Encoder, Prompt
from hfdsl.rl.data.sources import JsonLines
from hfdsl.rl.data.tokenizers import Characters, load_tokenizer
from hfdsl.rl.training.check import ConfigCheck
from hfdsl.rl.training.config import load
from hfdsl.rl.training.metrics import JsonLinesWriter, Record, drop_after
from hfdsl.rl.training.run_folder import checkpoints
from hfdsl.rl.training.sinks import SINKS_FILE, SinkRun
from hfdsl.rl.training.toml.tables import read_toml
from hfdsl.runtime.decisions import Decision
from hfdsl.runtime.queues.decision_log import DecisionLog
from hfdsl.runtime.saving.driver import read_manifest
from hfdsl.runtime.saving.recording import HEADER, read_header
from hfdsl.runtime.saving.sealed_json import digest, sealed
from hfdsl.runtime.saving.state_files import flatten_state, load_worker, write
from hfdsl.tools.importing import UsageError
from hfdsl.tools.target import discovered_files
from hfdsl.tools.training import Finder
from tests.nightly import examples
from tests.rl.training.toy import Policy, ToyConfig

DEPLOYMENT = hf.Deployment(policy=hf.place(Policy, ToyConfig(3), pool=hf.ResourcePool([2], use_gpu=False)))
INPUTS = checkpoints.RunInputs(config={}, rows=4, data={}, code={}, versions={})


def read_rows(file: Path) -> None:
    """All rows of a file, as a run takes them."""
    encoder = Encoder(Prompt("{word}"), load_tokenizer(Characters("abc")), 3)
    rows = JsonLines(str(file)).open()
    for i in range(min(len(rows), 50)):
        try:
            encoder.encoded(rows.row(i), rows.place(i))
        except DataError as error:
            assert f"{file}:" in str(error)  # noqa: PT017  # a row that is read is as good
    Feed(rows, encoder, 2, "skip").take(Cursor(0))


def read_checkpoint(file: Path) -> None:
    (file.parent / "state.json").write_text(sealed({}))
    checkpoints.read(file.parent, INPUTS)


VALID_CONFIG = b"""
algorithm = "tests.rl.training.toy:follow"
dims = { B = 6, P = 3 }
[data]
source = { kind = "JsonLines", path = "rows.jsonl" }
"""
VALID_CLUSTER = b"[[nodes]]\ncount = 2\ngpus = 8\ngpu_memory_gib = 80\ncpus = 96\n"
VALID_CHECKPOINT = sealed({"step": 1, "cursor": {"seed": 0}, "rows": 4, "config": {}, "versions": {}}).encode()
VALID_STATE = sealed(
    {"seed": 0, "steps": {"a": 1}, "roles": {"policy": {"mesh": "", "ranks": [{"file": "a", "sha256": ""}]}}}
).encode()
VALID_RECORDING = json.dumps({**(header := {"format": 4, "calls": []}), "sha256": digest(header)}).encode()

READERS: dict[str, tuple[str, bytes, Callable[[Path], object]]] = {
    "toml": ("run.toml", VALID_CONFIG, read_toml),
    "config": ("run.toml", VALID_CONFIG, load),
    "cluster": ("cluster.toml", VALID_CLUSTER, hf.Cluster.read),
    "rows": ("rows.jsonl", b'{"word": "ab"}\n{"word": "c"}\n', read_rows),
    "checkpoint": ("checkpoint.json", VALID_CHECKPOINT, read_checkpoint),
    "manifest": ("state.json", VALID_STATE, lambda file: read_manifest(file.parent, DEPLOYMENT, 0)),
    "recording": (HEADER, VALID_RECORDING, lambda file: read_header(file.parent)),
    "sinks": (
        SINKS_FILE,
        b'{"wandb": {"id": "a", "last": 3}}',
        lambda file: SinkRun.of(file.parent, "wandb", resume=True),
    ),
    "metrics": ("metrics.jsonl", b'{"step": 1}\n{"step": 2}\n', lambda file: drop_after(file, 1)),
    "discovery": ("found.toml", VALID_CONFIG, lambda file: list(discovered_files(str(file)))),
}

DEEP = 100_000
HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "null bytes": b"\0" * 100,
    "not utf-8": b"\xff\xfe\xfd word = 1",
    "cut in a character": '{"word": "é"}'.encode()[:11],
    "utf-16": '{"word": "a"}'.encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf" + b'{"word": "a"}',
    "two byte order marks": b"\xef\xbb\xbf" * 2 + b"a = 1",
    "deep list": b"[" * DEEP,
    "deep closed list": b'{"word": ' + b"[" * 900 + b"]" * 900 + b"}",
    "deep object": b'{"a":' * DEEP,
    "deep toml": b"a = " + b"[" * DEEP,
    "deep inline tables": b"a = " + b"{a=" * DEEP,
    "deep keys": b".".join([b"a"] * 5000) + b" = 1",
    "deep headers": b"[" + b".".join([b"a"] * 5000) + b"]",
    "a long number": b'{"word": ' + b"1" * 10_000 + b"}",
    "a long number in toml": b"steps = " + b"1" * 10_000,
    "no number": b'{"step": NaN, "rows": Infinity, "word": -Infinity}',
    "a huge number": b'{"step": 1e999, "word": 1e999}',
    "half a surrogate pair": rb'{"word": "\ud800", "step": 1}',
    "half a surrogate pair in toml": rb'word = "\ud800"',
    "line separators": '{"word": "a\u2028b\x85c"}\n'.encode(),
    "another value": b"[1, 2]",
    "null": b"null",
    "a text": b'"word"',
    "the wrong types": b'{"step": [], "cursor": 1, "rows": {}, "roles": [1], "steps": 3, "seed": null, "word": {}}',
    "repeated keys": b'{"word": 1, "word": [2]}',
    "carriage returns": b'{"word": "a"}\r{"word": "b"}\r',
}


def ends_in_a_code(reader: str, folder: Path, content: bytes) -> None:
    """Read a file with this content; an error has a code, and names the file."""
    name, _, read = READERS[reader]
    file = folder / name
    file.write_bytes(content)
    try:
        read(file)
    except (HfError, UsageError) as error:
        names_no_file = ("HF905", "none of the", "algorithm")  # of what was read, and does not fit
        assert str(folder) in str(error) or any(text in str(error) for text in names_no_file), str(error)  # noqa: PT017


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_reads_what_is_right(reader: str, tmp_path: Path) -> None:
    _, valid, _ = READERS[reader]
    for content in (valid, b"\xef\xbb\xbf" + valid):
        ends_in_a_code(reader, tmp_path, content)


@pytest.mark.parametrize("reader", READERS)
def test_a_hostile_file_ends_in_a_coded_error(reader: str, tmp_path: Path) -> None:
    for content in HOSTILE.values():
        ends_in_a_code(reader, tmp_path, content)


@pytest.mark.sampled
@pytest.mark.parametrize("reader", READERS)
def test_a_damaged_file_ends_in_a_coded_error(reader: str, tmp_path: Path) -> None:
    _, valid, _ = READERS[reader]
    draw = random.Random(reader)
    for _ in range(examples(120)):
        content = bytearray(valid)
        for _ in range(draw.randrange(1, 4)):
            position = draw.randrange(len(content))
            match draw.randrange(3):
                case 0:
                    content[position] = draw.randrange(256)
                case 1:
                    del content[position : position + draw.randrange(1, 20)]
                    content = content or bytearray(b"\n")
                case 2:
                    content[position:position] = draw.randbytes(draw.randrange(1, 5))
        ends_in_a_code(reader, tmp_path, bytes(content))


@pytest.mark.nightly
@pytest.mark.parametrize("reader", READERS)
def test_any_bytes_end_in_a_coded_error(reader: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("bytes")

    @given(st.one_of(st.binary(max_size=300), st.text(max_size=300).map(lambda text: text.encode("utf-8", "replace"))))
    def holds(content: bytes) -> None:
        ends_in_a_code(reader, folder, content)

    holds()


# -- what is not a file, or cannot be read


def not_files(folder: Path) -> Iterator[Path]:
    """Paths where no file can be read."""
    yield folder / "missing"
    yield folder
    yield Path("a\0b")
    yield Path("/dev/zero")
    os.mkfifo(folder / "pipe")
    yield folder / "pipe"


@pytest.mark.parametrize("read", [read_toml, hf.Cluster.read, read_rows], ids=["toml", "cluster", "rows"])
def test_what_is_not_a_file_ends_in_a_coded_error(read: Callable[[Path], object], tmp_path: Path) -> None:
    for place in not_files(tmp_path):
        if place.name == "pipe" and read is not read_rows:
            continue  # a shell's <(...) is a pipe
        with pytest.raises(HfError):
            read(place)


def test_the_path_of_a_configuration_may_be_anything(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_bytes(VALID_CONFIG.replace(b"rows.jsonl", rb"a\u0000b"))
    with pytest.raises(HfError):
        ConfigCheck().load(str(tmp_path / "run.toml"), (), Finder())
    for change in ("output=\udcff", "steps=" + "1" * 5000, "dims=" + "[" * DEEP, "dims=" + "{a=" * 500):
        with pytest.raises(HfError, match="HF901"):
            ConfigCheck().load(str(tmp_path / "run.toml"), [change], Finder())


# -- rows


def test_bad_rows_are_skipped_or_named_by_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hfdsl.rl.data.sources.MAX_LINE_BYTES", 4096)
    good = b'{"word": "a"}'
    bad = [line for line in HOSTILE.values() if b"\n" not in line and b"\r" not in line and line]
    bad = [line for line in bad if line not in (HOSTILE["byte order mark"], HOSTILE["utf-16"])]
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"\n".join(line for bad_line in bad for line in (bad_line, good)))
    encoder = Encoder(Prompt("{word}"), load_tokenizer(Characters("abc")), 3)
    rows = JsonLines(str(file)).open()
    assert len(rows) == 2 * len(bad)
    batch, cursor = Feed(rows, encoder, len(bad), "skip").take(Cursor(0))
    assert batch.ids.tensor.shape == (len(bad), 3)
    assert cursor.skipped <= len(bad)
    for i in range(0, len(rows), 2):
        with pytest.raises(DataError, match=rf"HF902: {file}:{i + 1}\b"):
            encoder.encoded(rows.row(i), rows.place(i))


# -- states


@pytest.mark.sampled
def test_a_damaged_state_ends_in_a_coded_error(tmp_path: Path) -> None:
    state = flatten_state({"weights": torch.arange(6.0), "steps": 3, "moments": (torch.ones(2),)}, "role")
    written = write(str(tmp_path), "policy", state)
    file = tmp_path / written["file"]
    valid, draw = file.read_bytes(), random.Random(3)

    class Holder:
        def state(self) -> None: ...
        def load_state(self, state: object) -> None:
            raise AssertionError("a damaged state was loaded")

    contents = [*HOSTILE.values(), valid[:-1], valid + b"a", (10**9).to_bytes(8, "little") + valid[8:]]
    for _ in range(examples(200)):
        content = bytearray(valid)
        content[draw.randrange(len(content))] ^= draw.randrange(1, 256)
        contents.append(bytes(content))
    for damaged in contents:
        file.write_bytes(damaged)
        with pytest.raises(HfError, match="HF906"):
            load_worker("policy", Holder(), str(tmp_path), written)


def test_no_json_is_kept_deeper_than_it_can_be_walked() -> None:
    from hfdsl.types.foreign_text import MAX_DEPTH, parse_json

    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert json.dumps(parse_json(deep)) == deep
    with pytest.raises(ValueError, match="nested more than"):
        parse_json(f"[{deep}]")
    assert parse_json("[" + "[]," * 1000 + "[]]") == [[]] * 1001


# -- a disk that is full


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file that a path opens takes no byte."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    opened = Path.open
    monkeypatch.setattr(Path, "open", lambda _, *args, **kinds: opened(Path("/dev/full"), *args, **kinds))


@pytest.mark.usefixtures("full_disk")
def test_metrics_on_a_full_disk_end_the_run_with_a_coded_error(tmp_path: Path) -> None:
    writer = JsonLinesWriter(tmp_path / "metrics.jsonl")
    with pytest.raises(HfError, match=r"HF901: 'output': '.*/metrics.jsonl' cannot be written: No space left"):
        writer.write(Record(1, {"actor/loss": 0.5}))
    writer.close()


@pytest.mark.usefixtures("full_disk")
def test_decisions_on_a_full_disk_end_the_run_with_a_coded_error(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "queues.jsonl", None)
    decision = Decision("dispatch", "queue", 0, (0,))
    with pytest.raises(HfError, match=r"HF906: the decisions of the queues cannot be written to .*No space left"):
        log.add([decision])
    log.close()
