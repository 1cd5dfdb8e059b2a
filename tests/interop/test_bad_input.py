"""Files that are no configurations: a coded finding, and no waiting."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hfdsl.interop.readers import LIBRARIES
from hfdsl.interop.reading import Inputs
from hfdsl.interop.text import ReadError


@pytest.mark.parametrize("library", sorted(LIBRARIES))
def test_a_pipe_and_links_that_go_round_are_refused(library: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.sh")
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    for name in ("pipe.sh", "loop.yaml", "long" * 100):
        with pytest.raises(ReadError, match="HF970"):
            LIBRARIES[library].read(Inputs(str(tmp_path / name)))


@pytest.mark.parametrize("text", ["if [[ $1 < b ]]; then :; fi\n", '"$(' * 3000])
def test_signs_between_words_and_deep_nesting_end(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(text)
    with pytest.raises(ReadError, match="HF970"):
        LIBRARIES["verl"].read(Inputs(str(tmp_path / "run.sh")))


def test_an_escape_that_is_no_character_is_refused(tmp_path: Path) -> None:
    (tmp_path / "grpo.yaml").write_text('num_generations: "\\U00110000"\n')
    with pytest.raises(ReadError, match="HF970"):
        LIBRARIES["trl"].read(Inputs(str(tmp_path / "grpo.yaml")))
