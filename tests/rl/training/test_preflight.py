"""What a configuration names in the world: files of data, modules, folders of models and tokenizers."""

from __future__ import annotations

import gzip
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hfdsl.check.findings import Finding
from hfdsl.errors import ConfigError, PackageError
from hfdsl.rl.hub import cached_snapshot, fetched, local_folder
from hfdsl.rl.training.check import ConfigCheck
from hfdsl.rl.training.config import load
from hfdsl.rl.training.loop import train
from hfdsl.rl.training.preflight import packages, requirements
from hfdsl.rl.training.preflight.names import near_target, problem_of
from hfdsl.rl.training.toml.tables import read_toml
from tests.tools.test_fixing_config import RUN

MODEL = RUN[RUN.index("[actor.model.config]") : RUN.index("[reference]")]
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(packages, "is_installed", lambda package: True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    Path("words.jsonl").write_text('{"word": "abc"}\n' * 4)
    Path("my_rewards.py").write_text("def score(response, row):\n    return 1.0\n")


def findings(text: str, *, elsewhere: bool = False) -> list[Finding]:
    Path("run.toml").write_text(text)
    reports = ConfigCheck(elsewhere=elsewhere).reports(load("run.toml"))
    return [finding for report in reports for finding in report]


def only(text: str) -> tuple[str, int, str]:
    [finding] = findings(text)
    return finding.code, finding.primary.span.line, finding.message


def line(text: str, key: str) -> int:
    return next(number for number, written in enumerate(text.splitlines(), 1) if key in written)


def source(kind: str, path: str) -> str:
    return RUN.replace('kind = "JsonLines", path = "words.jsonl"', f'kind = "{kind}", path = "{path}"')


def test_the_configuration_is_clean_before_it_is_changed() -> None:
    assert findings(RUN) == []


# -- data


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("rows.jsonl", b"", "has no rows"),
        ("rows.jsonl", b"\n \n", "has no rows"),
        ("rows.jsonl", LFS, "is a Git LFS pointer"),
        ("rows.jsonl.gz", gzip.compress(b'{"word": "a"}\n', mtime=0), "is compressed with gzip"),
        ("rows.jsonl", b"[1]\n", "a row must be a JSON object"),
        ("rows.jsonl", b'{"word": \n', "not JSON"),
    ],
)
def test_json_lines_that_hold_no_rows(name: str, content: bytes, problem: str) -> None:
    Path(name).write_bytes(content)
    text = source("JsonLines", name)
    code, place, message = only(text)
    assert (code, place, problem in message) == ("HF902", line(text, "source ="), True)


@pytest.mark.parametrize(("rows", "codes"), [(3, ["HF361"]), (4, []), (5, [])])
def test_a_step_takes_each_prompt_once(rows: int, codes: list[str]) -> None:
    """Blank lines are no rows."""
    Path("words.jsonl").write_text('{"word": "abc"}\n\n' * rows)
    assert [finding.code for finding in findings(RUN)] == codes


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("rows.parquet", LFS, "is a Git LFS pointer"),
        ("rows.parquet", b"", "is empty"),
        ("rows.parquet", b"PAR", "is not a parquet file"),
        ("rows.parquet", b"PAR1 cut off", "is not a parquet file, or not a complete one"),
        ("rows.csv", b"wort,answer\n", "no field 'word'; did you mean 'wort'?"),
        ("rows.jsonl", b'{"wort": 1}\n', "no field 'word'; did you mean 'wort'?"),
        ("rows.txt", b"word\n", "is neither one of .parquet"),
    ],
)
def test_data_sets_that_do_not_fit(name: str, content: bytes, problem: str) -> None:
    Path(name).write_bytes(content)
    code, _, message = only(source("Dataset", name))
    assert (code, problem in message) == ("HF902", True)


class ArrowFile:
    """A stand-in for a file that pyarrow reads: its columns, and its first rows."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.schema_arrow = SimpleNamespace(names=list(rows[0]) if rows else [])

    def __enter__(self) -> ArrowFile:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def iter_batches(self, count: int) -> Iterator[Any]:
        if self.rows:
            yield SimpleNamespace(to_pylist=lambda: self.rows[:count])


def arrow(monkeypatch: pytest.MonkeyPatch, read: Any) -> None:
    parquet = ModuleType("pyarrow.parquet")
    parquet.ParquetFile = read  # type: ignore[attr-defined]  # a stand-in
    monkeypatch.setitem(sys.modules, "pyarrow", ModuleType("pyarrow"))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([{"words": "ab"}], "has no field 'word'; did you mean 'words'?"),
        ([{"word": None}], "its field 'word' is None, expected a text"),
        ([{"word": [{"role": "user"}]}], "set prompt.messages = 'word'"),
        ([], "has no rows"),
    ],
)
def test_the_first_rows_of_a_parquet_file_are_read(
    rows: list[dict[str, Any]], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("rows.parquet").write_bytes(b"PAR1 PAR1")
    arrow(monkeypatch, lambda path: ArrowFile(rows))
    assert problem in only(source("Dataset", "rows.parquet"))[2]
    arrow(monkeypatch, lambda path: ArrowFile([{"word": None}, {"word": "ab"}]))
    assert findings(source("Dataset", "rows.parquet")) == []


def test_files_of_one_data_set_have_the_same_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rows-0.parquet", "rows-1.parquet"):
        Path(name).write_bytes(b"PAR1 PAR1")
    arrow(monkeypatch, lambda path: ArrowFile([{"word": "ab", **({"answer": "b"} if "1" in path.name else {})}]))
    assert (
        "'rows-0.parquet' and 'rows-1.parquet' differ in field 'answer'" in only(source("Dataset", "rows-*.parquet"))[2]
    )
    assert "there is no 'other-*.parquet'" in only(source("Dataset", "other-*.parquet"))[2]


def test_a_parquet_file_that_its_reader_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise OSError("footer")

    Path("rows.parquet").write_bytes(b"PAR1 PAR1")
    arrow(monkeypatch, refuse)
    assert "'rows.parquet' cannot be read: OSError: footer" in only(source("Dataset", "rows.parquet"))[2]


def test_parquet_itself_is_read(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    messages = [[{"role": "user", "content": "a"}], [{"role": "user", "content": None}]]
    parquet.write_table(pyarrow.table({"word": ["ab", None], "messages": messages}), "rows.parquet")
    text = source("Dataset", "rows.parquet")
    assert findings(text) == []
    assert "the row has no field 'wort'; did you mean 'word'?" in only(text.replace("{word}", "{wort}"))[2]
    parquet.write_table(pyarrow.table({"word": pyarrow.array([None, None], pyarrow.string())}), "rows.parquet")
    assert "rows.parquet, row 0: its field 'word' is None" in only(text)[2]


def test_rows_that_nothing_reads_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("rows.parquet").write_bytes(b"PAR1 PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setattr(packages, "is_installed", lambda package: package not in ("datasets", "pyarrow"))
    [finding] = findings(source("Dataset", "rows.parquet"))
    assert finding.code == "HF710"
    assert finding.notes[-1] == "not checked: the rows of 'rows.parquet', which pyarrow reads"


def test_a_missing_package_comes_with_an_extra_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    extras = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8"))["project"]
    monkeypatch.setattr(packages, "is_installed", lambda package: False)
    gym = RUN.replace('{ kind = "JsonLines", path = "words.jsonl" }', '{ kind = "ReasoningGym", name = "a", size = 9 }')
    top = 'tensorboard = true\nwandb = { project = "a", mode = "offline" }\nmlflow = { experiment = "a" }\n'
    lora = "[actor]\nlora = { rank = 2 }\n"
    missing = [
        finding
        for text in (top + gym.replace("[actor]\n", lora), source("Dataset", "a/b"))
        for finding in findings(text)
        if finding.code == "HF710"
    ]
    named = dict[str, str]()
    for finding in missing:
        [package], [extra] = re.findall(r"package (\w+),", finding.message), re.findall(r"\[(\w+)\]", finding.notes[0])
        named[package.replace("_", "-")] = extra
    assert named.keys() == {"reasoning-gym", "tensorboardX", "wandb", "mlflow", "peft", "datasets"}
    for name, extra_name in named.items():
        assert any(needed.startswith(name) for needed in extras["optional-dependencies"][extra_name]), name


@pytest.mark.parametrize("absent", ["torch", "transformers"])
def test_a_run_without_a_package_that_every_role_needs(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "is_installed", lambda package: package != absent)
    Path("run.toml").write_text(RUN)
    with pytest.raises(PackageError, match=rf"HF990: the ready roles need {absent}, .*'hfdsl\[rl\]'"):
        train(load("run.toml"))


def test_a_parquet_file_without_a_reader_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("rows.parquet").write_bytes(b"PAR1 PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert findings(source("Dataset", "rows.parquet")) == []


def test_files_of_this_machine_are_not_asked_for_elsewhere() -> None:
    assert findings(source("JsonLines", "nowhere.jsonl"), elsewhere=True) == []


# -- models and tokenizers


def saved(path: str, **files: bytes) -> str:
    folder = Path(path)
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_bytes(content)
    return RUN.replace("[actor]\n", f'[actor]\nmodel = {{ path = "{path}" }}\n').replace(MODEL, "")


SAVED = {"model_type": "qwen2", "vocab_size": 11, "max_position_embeddings": 16, "pad_token_id": 0}
CONFIG = json.dumps(SAVED).encode()


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "there is no model in 'models/a': no config.json in it"),
        ({"config__json": CONFIG}, "there are no weights in 'models/a'"),
        ({"config__json": CONFIG, "model__safetensors": LFS}, "'models/a/model.safetensors' is a Git LFS pointer"),
        ({"config__json": CONFIG, "pytorch_model__bin": LFS}, "'models/a/pytorch_model.bin' is a Git LFS pointer"),
        (
            {
                "config__json": CONFIG,
                "model-1-of-2__safetensors": b"weights",
                "model__safetensors__index__json": json.dumps(
                    {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
                ).encode(),
            },
            "'models/a' has 1 of the 2 files of weights that its index names: model-2-of-2.safetensors is missing",
        ),
        (
            {"config__json": CONFIG.replace(b"11", b"8"), "model__safetensors": b"weights"},
            "the tokenizer has 11 tokens, and the model of 'actor' has vocab_size = 8",
        ),
    ],
)
def test_folders_without_a_model_that_fits(files: dict[str, bytes], problem: str) -> None:
    text = saved("models/a", **files)
    code, place, message = only(text)
    assert (code[:3], place, problem in message) == ("HF8" if code == "HF812" else "HF9", line(text, "model ="), True)


def test_a_saved_policy_needs_a_pad_token() -> None:
    config = json.dumps({name: value for name, value in SAVED.items() if name != "pad_token_id"}).encode()
    text = saved("models/a", config__json=config, model__safetensors=b"weights")
    problem = "the model 'models/a' has no pad token, and responses of different lengths need one"
    assert only(text)[2] == f"'actor': {problem}"
    Path("models/a/generation_config.json").write_text('{"pad_token_id": 0}')
    assert findings(text) == []


def test_a_model_in_a_folder_is_not_blamed() -> None:
    assert findings(saved("models/a", config__json=CONFIG, model__safetensors=b"weights")) == []
    index = json.dumps({"weight_map": {"a": "one.safetensors"}}).encode()
    files = {"config__json": CONFIG, "one__safetensors": b"weights", "model__safetensors__index__json": index}
    files["pytorch_model__bin__index__json"] = index.replace(b"one.safetensors", b"one.bin")  # the other format
    assert findings(saved("models/b", **files)) == []


SIZED = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


@pytest.mark.parametrize(
    ("shape", "changes", "is_blamed"),
    [
        ([8, 16], {}, False),
        ([16, 16], {}, True),
        ([16, 16], {"num_key_value_heads": 2}, False),
        ([16, 16], {"model_type": "starcoder2"}, False),
        ([64, 1], {"quantization_config": {"load_in_4bit": True}}, False),
    ],
)
def test_files_have_the_shapes_of_the_configuration(shape: list[int], changes: dict[str, Any], is_blamed: bool) -> None:
    name = "model.layers.0.self_attn.k_proj.weight"
    header = json.dumps({name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    config = json.dumps({**json.loads(CONFIG), **SIZED, **changes}).encode()
    text = saved("models/a", config__json=config, model__safetensors=len(header).to_bytes(8, "little") + header)
    says = f"the files of the model of 'actor' have '{name}' of shape (16, 16), but its configuration has (8, 16)"
    wanted = [("HF964", line(text, "model ="), says)] if is_blamed else []
    assert [(finding.code, finding.primary.span.line, finding.message) for finding in findings(text)] == wanted


@pytest.mark.parametrize(
    ("eos", "ends", "missed"),
    [
        ("</s>", None, ("the tokenizer", 2)),
        ({"content": "</s>"}, None, ("the tokenizer", 2)),
        ("b", None, ("the tokenizer", 4)),
        ("<end>", None, None),
        ("</s>", [2, 1], None),
        ("</s>", [2], None),
        ("</s>", [3], ("its model", 1)),
        (None, None, None),
        ("unknown", None, None),
    ],
)
def test_the_end_token_of_a_saved_tokenizer_ends_responses(
    eos: Any, ends: list[int] | None, missed: tuple[str, int] | None
) -> None:
    Path("tokenizer").mkdir()
    added = [{"id": 1, "content": "<end>"}, {"id": 2, "content": "</s>"}]
    words = {"model": {"vocab": {"a": 3, "b": 4}}, "added_tokens": added}
    Path("tokenizer/tokenizer.json").write_text(json.dumps(words))
    Path("tokenizer/tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    Path("saved").mkdir()
    Path("saved/config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 1}))
    text = re.sub(r"tokenizer = \{.*", 'tokenizer = { kind = "Pretrained", path = "tokenizer" }', RUN, count=1)
    chosen = "" if ends is None else f"end_tokens = {ends}\n"
    text = text.replace(MODEL, f'[actor.model]\npath = "saved"\n{chosen}\n')
    about_ends = [found for found in findings(text, elsewhere=True) if found.code == "HF909"]
    named = [re.search(r"after token (\d+), with which (.*) ends a text", found.message) for found in about_ends]
    assert [(match[2], int(match[1])) for match in named if match] == ([] if missed is None else [missed])


def test_a_name_on_the_hub_is_recognized(tmp_path: Path) -> None:
    text = RUN.replace("[actor]\n", '[actor]\nmodel = { path = "Qwen/Qwen3-0.6B" }\n').replace(MODEL, "")
    [finding] = findings(text)
    assert (finding.code, finding.primary.span.line) == ("HF723", line(text, "model ="))
    assert any("hf download Qwen/Qwen3-0.6B" in note for note in finding.notes)
    snapshot = tmp_path / "cache" / "models--Qwen--Qwen3-0.6B" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_bytes(CONFIG)
    assert [finding.code for finding in findings(text)] == ["HF723"]
    (snapshot / "model.safetensors").write_bytes(bytes(9))
    assert findings(text) == []


def hub_cache(tmp_path: Path, repository: str, commit: str, refs: tuple[str, ...] = ()) -> Path:
    """A snapshot in a cache as huggingface_hub lays it out: links to blobs, and refs that name commits."""
    root = tmp_path / "cache" / repository
    snapshot = root / "snapshots" / commit
    for folder in (root / "blobs", root / "refs", snapshot):
        folder.mkdir(parents=True, exist_ok=True)
    (root / "blobs" / commit).write_bytes(CONFIG)
    (root / "blobs" / f"{commit}-weights").write_bytes(bytes(2_500_000))
    (snapshot / "config.json").symlink_to(root / "blobs" / commit)
    (snapshot / "model.safetensors").symlink_to(root / "blobs" / f"{commit}-weights")
    for name in refs:
        (root / "refs" / name).write_text(commit)
    return snapshot


@pytest.mark.parametrize(
    ("revision", "found"), [("", "1111"), ("@main", "1111"), ("@v2", "2222"), ("@2222", "2222"), ("@22", "2222")]
)
def test_revisions_on_the_hub_are_found_in_its_cache(revision: str, found: str, tmp_path: Path) -> None:
    snapshots = {
        commit: hub_cache(tmp_path, "models--Qwen--Qwen3-0.6B", commit, refs)
        for commit, refs in {"1111": ("main",), "2222": ("v2",)}.items()
    }
    text = RUN.replace("[actor]\n", f'[actor]\nmodel = {{ path = "Qwen/Qwen3-0.6B{revision}" }}\n').replace(MODEL, "")
    assert findings(text) == []
    assert local_folder(f"Qwen/Qwen3-0.6B{revision}") == snapshots[found]
    assert str(cached_snapshot("model", "Qwen/Qwen3-0.6B", revision[1:] or None)) == str(snapshots[found])


def test_a_cached_snapshot_is_the_one_that_huggingface_hub_takes(tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    hub_cache(tmp_path, "models--a--b", "1" * 40, ("main",))
    hub_cache(tmp_path, "datasets--a--b", "2" * 40, ("main", "v1"))
    cache = tmp_path / "cache"
    for kind, revision in (("model", None), ("dataset", None), ("dataset", "v1")):
        folder = hub.snapshot_download("a/b", repo_type=kind, revision=revision, cache_dir=cache, local_files_only=True)
        assert Path(folder) == cached_snapshot(kind, "a/b", revision)  # type: ignore[arg-type]  # one of the two
    assert cached_snapshot("model", "a/c") is None
    assert cached_snapshot("model", "a/b", "v1") is None


def test_a_revision_that_is_not_cached_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    text = RUN.replace("[actor]\n", '[actor]\nmodel = { path = "a/b@v1" }\n').replace(MODEL, "")
    [finding] = findings(text)
    assert (finding.code, finding.primary.span.line) == ("HF723", line(text, "model ="))
    assert "hf download a/b --revision v1" in finding.notes[0]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    [finding] = findings(text)
    assert finding.code == "HF812"
    assert "hf download a/b --revision v1" in finding.notes[0]


def test_a_snapshot_without_weights_is_downloaded(tmp_path: Path) -> None:
    snapshot = hub_cache(tmp_path, "models--a--b", "1111", ("main",))
    (snapshot / "model.safetensors").unlink()
    text = RUN.replace("[actor]\n", '[actor]\nmodel = { path = "a/b" }\n').replace(MODEL, "")
    assert [finding.code for finding in findings(text)] == ["HF723"]


def test_a_folder_comes_before_a_name_on_the_hub(tmp_path: Path) -> None:
    hub_cache(tmp_path, "models--a--b", "1111", ("main",))
    assert local_folder("a/b") != Path("a/b")
    Path("a").mkdir()
    assert local_folder("a/b") == fetched("a/b", weights=True) == Path("a/b")


def test_a_run_takes_what_the_cache_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    snapshot = hub_cache(tmp_path, "models--a--b", "1" * 40, ("main",))
    assert fetched("a/b", weights=True) == local_folder("a/b") == snapshot


def dataset_cache(tmp_path: Path, files: dict[str, str]) -> Path:
    """A snapshot of the data set a/b in a cache, of its branch main."""
    root = tmp_path / "cache" / "datasets--a--b"
    for name, text in {
        "refs/main": "1" * 40,
        **{f"snapshots/{'1' * 40}/{file}": files[file] for file in files},
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root / "snapshots" / ("1" * 40)


@pytest.fixture
def has_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "is_installed", lambda package: True)


@pytest.mark.usefixtures("has_datasets")
def test_a_data_set_on_the_hub_is_recognized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, options in (("a/b", ""), ("a/b@v1", " --revision v1")):
        [finding] = findings(source("Dataset", path))
        assert finding.code == "HF724"
        assert finding.notes == (f"download it first: hf download a/b --repo-type dataset{options}",)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    [finding] = findings(source("Dataset", "a/b"))
    assert (finding.code, finding.notes) == ("HF902", ("hf download a/b --repo-type dataset",))
    dataset_cache(tmp_path, {"train.jsonl": '{"word": "a"}'})
    assert findings(source("Dataset", "a/b")) == []


@pytest.mark.usefixtures("has_datasets")
@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"train.jsonl": '{"word": "a"}', "test.csv": "word\n"}, None),
        ({"train.jsonl": '{"text": "a"}', "test.csv": "text\n"}, "the rows have no field 'word'"),
        ({"train.jsonl": '{"text": "a"}', "test.csv": "word\n"}, None),  # nobody knows which of them a split is
        ({"train.jsonl": '{"text": "a"}', "odd.json": "[]"}, None),
        ({"train.jsonl": '{"text": "a"}', "dataset_infos.json": "{}"}, "the rows have no field 'word'"),
        ({"train.jsonl": '{"word": "a"}', "test.jsonl": LFS.decode()}, None),
        ({"train.jsonl": LFS.decode()}, "is a Git LFS pointer"),
        ({"README.md": "rows to come"}, None),
    ],
)
def test_the_fields_of_a_data_set_on_the_hub(files: dict[str, str], problem: str | None, tmp_path: Path) -> None:
    folder = dataset_cache(tmp_path, files)
    for path in ("a/b", str(folder)):  # a copy of a data set is checked like the cache's
        blamed = findings(source("Dataset", path))
        assert [finding.code for finding in blamed] == ([] if problem is None else ["HF902"])
        assert all(problem is not None and problem in finding.message for finding in blamed)


@pytest.mark.usefixtures("has_datasets")
def test_files_have_no_configurations() -> None:
    Path("rows.jsonl").write_text('{"word": "a"}\n')
    text = source("Dataset", "rows.jsonl").replace('path = "rows.jsonl"', 'path = "rows.jsonl", config = "main"')
    code, place, message = only(text)
    assert (code, place) == ("HF902", line(text, "source ="))
    assert message == "'rows.jsonl' has no configurations: only data sets on the hub have them"


@pytest.mark.usefixtures("has_datasets")
def test_a_path_that_may_be_of_another_run_is_no_name_on_the_hub() -> None:
    output = RUN.split("output = ")[1].split('"')[1].split("/")[0]
    [finding] = findings(source("Dataset", f"{output}/rows"))
    assert (finding.code, "there is no" in finding.message) == ("HF902", True)


@pytest.mark.parametrize("key", ["rope_theta", "head_dim", "torch_dtype", "output_attentions", "my_own_note"])
def test_keys_that_a_model_may_have_are_not_blamed(key: str) -> None:
    assert findings(RUN.replace("hidden_size = 16\n", f"hidden_size = 16\n{key} = 1\n")) == []


def test_a_key_of_an_unknown_type_of_model_is_not_blamed() -> None:
    assert findings(RUN.replace('"qwen2"', '"nobody_knows"').replace("hidden_size", "hiden_size")) == []


# -- modules


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("my_rewards:scoer", "my_rewards:score"),
        ("my_reward:score", "my_rewards:score"),
        ("my_reward.py:score", "my_rewards.py:score"),
        ("my_rewards.py:scoer", "my_rewards.py:score"),
        ("package/rule.py:score", "package/rules.py:score"),
        ("nowhere/rules.py:score", None),
        ("package.rule:score", "package.rules:score"),
        ("nothing_like_it:score", None),
        ("my_rewards", None),
        ("my rewards:score", None),
    ],
)
def test_a_function_that_is_not_there(text: str, near: str | None) -> None:
    Path("package").mkdir()
    Path("package/__init__.py").touch()
    Path("package/rules.py").write_text("def score(response, row): ...\n")
    problem = problem_of(text, 2)
    assert problem is not None
    assert problem.near == near


@pytest.mark.parametrize(
    "body",
    [
        "from os.path import *\n",
        "def __getattr__(name): ...\n",
        "globals()['score'] = 1\n",
        "try:\n    from fast import score\nexcept ImportError:\n    score = None\n",
        "import functools\nscore = functools.partial(print)\n",
        "class score:\n    def __init__(self, a, b, c): ...\n",
        "class Score:\n    def __call__(self, response, row): ...\nscore = Score()\n",
        "score = lambda response, row: 1.0\n",
        "def score(response, row):\n    def inner(): yield 1\n    return sum(inner(), sum(x for x in [0]))\n",
        "def wrapped(f): return f\n@wrapped\nasync def score(response, row): ...\n",
        "score = None\nfor score in [print]: pass\n",
        "def score(*arguments): ...\n",
        "def score(response, row, extra=None): ...\n",
        "def wrapped(f): return f\n@wrapped\ndef score(): ...\n",
        "syntax error here\n",
    ],
)
def test_what_a_module_may_make_while_it_runs_is_not_blamed(body: str) -> None:
    Path("open_module.py").write_text(body)
    assert problem_of("open_module:score", 2) is None
    assert problem_of("open_module.py:score", 2) is None


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("score = 3\n", "is no function, but 3"),
        ("score = {'a': 1}\n", "is no function, but {'a': 1}"),
        ("async def score(response, row): return 1.0\n", "is an async function: a call returns a coroutine"),
        ("def score(response, row):\n    if row:\n        yield 1.0\n", "is a generator: a call returns an iterator"),
    ],
)
def test_a_name_of_something_that_returns_no_score(body: str, problem: str) -> None:
    Path("plain.py").write_text(body)
    found = problem_of("plain.py:score", 2)
    assert found is not None
    assert found.message.startswith(f"'plain.py:score' {problem}")
    text = RUN.replace("my_rewards:score", "plain.py:score")
    assert only(text)[:2] == ("HF812", line(text, "plain.py:score"))


@pytest.mark.parametrize("folder", ["scoring", "scoring/inner", "scoring/inner/deep"])
def test_a_function_below_folders_that_are_no_packages(folder: str) -> None:
    Path(folder).mkdir(parents=True)
    Path(folder, "rules.py").write_text("def score(response, row): ...\n")
    dotted = folder.replace("/", ".")
    assert problem_of(f"{dotted}.rules:score", 2) is None
    problem = problem_of(f"{dotted}.rule:score", 2)
    assert problem is not None
    assert problem.near == f"{dotted}.rules:score"


@pytest.mark.parametrize("signature", ["response", "response, row, extra", "response, row, *, more", ""])
def test_a_function_of_other_arguments(signature: str) -> None:
    Path("fixed.py").write_text(f"def score({signature}): ...\n")
    for text in ("fixed:score", "fixed.py:score"):
        problem = problem_of(text, 2)
        assert problem is not None
        assert "is called with 2 arguments" in problem.message


def test_no_target_is_near_a_name_of_the_users() -> None:
    assert near_target("flows.py:grpo", ["hfdsl.rl.dataflows.grpo:grpo"]) is None


# -- texts that are no TOML


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("a = True\n", 1, "TOML writes true and false"),
        ("a = null\n", 1, "TOML has no null"),
        ("a = 1\nb = x/y\n", 2, "a string has quotes"),
        ("a: 1\n", 1, "TOML writes KEY = VALUE"),
        ("a = \u201cx\u201d\n", 1, "a string has straight quotes"),
        ('a = "x\n', 1, "the string has no end"),
        ("a = 1\nb = 2\na = 3\n", 3, "'a' is there twice, already in line 1"),
        ("[a]\nx = 1\n[b]\n[a]\n", 4, "'a' is there twice, already in line 1"),
    ],
)
def test_a_text_that_is_no_toml_says_what_to_write(text: str, place: int, problem: str) -> None:
    Path("run.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_toml("run.toml")
    span: Any = caught.value.span
    assert (span.line, problem in caught.value.message) == (place, True)


def test_a_file_in_another_encoding_has_the_line_of_its_first_other_byte() -> None:
    Path("run.toml").write_bytes("a = 1\n# naïve\n".encode("latin-1"))
    with pytest.raises(ConfigError, match="it is not UTF-8") as caught:
        read_toml("run.toml")
    assert str(caught.value.span) == "run.toml:2"


def test_a_byte_order_mark_is_passed_over() -> None:
    Path("run.toml").write_bytes(b"\xef\xbb\xbfa = 1\r\n")
    assert read_toml("run.toml") == {"a": 1}


# -- meshes


@pytest.mark.parametrize("placed", ["default", "roles.actor"])
def test_pipeline_stages_of_a_model_are_one_of_the_mesh(placed: str) -> None:
    default = "" if placed == "default" else 'default = { pool = "all" }\n'
    mesh = f'{default}{placed} = {{ pool = "all", mesh = {{ pp = 2, dp = 2 }} }}\n'
    text = RUN.replace("processes = [2]", "processes = [4]").replace('default = { pool = "all" }\n', mesh)
    found = [finding for finding in findings(text) if finding.code == "HF813"]
    assert {finding.primary.span.line for finding in found} == {line(text, "pp = 2")}
    assert found[0].message.startswith("'actor': pp = 2 does not divide the model")


# -- steps


def test_a_step_that_a_run_does_not_take_is_not_recorded() -> None:
    text = RUN.replace("steps = 2\n", "steps = 2\nrecord = [1, 2, 3]\n")
    message = "step 3 is to be recorded, and the run ends after step 2"
    assert only(text) == ("HF722", line(text, "record = "), message)
    assert ConfigCheck().reports(load("run.toml", ["steps=1"]))[0].codes == ()  # a trial
    assert findings(text.replace("[1, 2, 3]", "[2]")) == []
