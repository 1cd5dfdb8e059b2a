"""The commands that a script runs, and what a reader says of a script in which it sees no run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hfdsl.graph.spans import Span
from hfdsl.interop.shell_text import Items, TextPiece, WordText, text_of
from hfdsl.interop.text import ReadError, SourceText, Unread

SHELLS = frozenset(["bash", "sh", "zsh", "dash", "ksh"])
INHERITING = frozenset(["env", "nice", "nohup", "numactl", "setsid", "srun", "stdbuf", "time", "timeout", "torchrun"])
"""Commands that start another one with their own environment."""


IGNORED = frozenset(["[", "test", "set", ":", "true", "echo", "printf", "mkdir", "cd", "pwd", "rm", "ls", "cat",
                     "sleep", "wait", "trap", "ulimit", "module", "date", "which", "nvidia-smi", "pip", "pip3", "wandb",
                     "huggingface-cli", "hf", "ray", "curl", "wget", "git", "cp", "ln", "chmod", "kill",
                     "pkill", "clear", "touch", "tee"])  # fmt: skip
"""Commands that assign no variable and start no training."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A command that a script runs: its words, and where it stands. ``certain`` is false of one in an open branch.

    ``variables`` are those that the script gives a text before it, as far as it is known.
    """

    words: Items
    span: Span
    certain: bool
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShellScript:
    """A script as far as it is followed: the commands that may start a training, and what was left out."""

    source: SourceText
    launches: tuple[Launch, ...]
    unread: tuple[Unread, ...]
    assumed_unset: tuple[str, ...]

    def without_run(self, wanted: str, names: Sequence[str]) -> ReadError:
        """The error of a script in which no command starts a program with one of these names.

        It stands at a text that names the program, else at another script or at what is not followed, else at line 1.
        """
        for launch in self.launches:
            for word in launch.words:
                if any(name in _known_text(word) for name in names):
                    return ReadError(f"the script starts {wanted} by a text within quotes, which this reader does not "
                                     "follow", launch.span)  # fmt: skip
        start = self._mentioned(names)
        if start is not None:
            span = self.source.span(start, start)
            return ReadError(f"the script names {wanted} in line {span.line}, and no command that this reader follows "
                             "starts it", span)  # fmt: skip
        for launch in self.launches:
            if (script := other_script(launch)) is not None:
                return ReadError(f"the script starts no {wanted} itself: it runs '{script}', which this reader does "
                                 "not follow", launch.span)  # fmt: skip
        if self.unread:
            first = self.unread[0]
            return ReadError(f"the script starts no {wanted} that this reader sees: line {first.span.line} is not "
                             f"followed: {first.reason}", first.span)  # fmt: skip
        return ReadError(f"the script starts no {wanted}", Span(self.source.file, 1))

    def _mentioned(self, names: Sequence[str]) -> int | None:
        """Where the script first has one of these names outside of comments."""
        start = 0
        for line in self.source.text.split("\n"):
            if not line.lstrip().startswith("#"):
                places = [place for name in names if (place := line.find(name)) >= 0]
                if places:
                    return start + min(places)
            start += len(line) + 1
        return None


def starts_nothing(name: str, words: Sequence[WordText]) -> bool:
    """Whether a command starts no training; ``ray job submit -- COMMAND`` may."""
    return name in IGNORED and not (name == "ray" and any(text_of(word) == "--" for word in words))


def shell_argument(words: Sequence[WordText]) -> int | None:
    """Where a command has the text that it gives to a shell, as in ``bash -c TEXT`` and ``srun bash -lc TEXT``."""
    texts = [text_of(word) or "" for word in words]
    for i, text in enumerate(texts[:-2]):
        if text.rpartition("/")[2] in SHELLS:
            for j in range(i + 1, len(texts) - 1):
                if not texts[j].startswith("-"):
                    break
                if not texts[j].startswith("--") and texts[j].endswith("c"):
                    return j + 1
    return None


def inherits_environment(words: Sequence[WordText]) -> bool:
    """Whether the shell of a command has the variables that the script exports; one in a container has its own."""
    name = (text_of(words[0]) or "").rpartition("/")[2]
    return name in SHELLS or name in INHERITING


def other_script(launch: Launch) -> str | None:
    """The script that a command runs, as in ``bash train.sh``."""
    texts = [text_of(word) or "" for word in launch.words]
    return next((text for text in texts if text.endswith(".sh") and "=" not in text), None)


def _known_text(word: WordText) -> str:
    return "".join(piece.text for piece in word if isinstance(piece, TextPiece))
