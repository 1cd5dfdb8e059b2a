"""The commands that a script runs, and the message about a script without a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile

from hfdsl.graph.spans import Span
from hfdsl.interop.shell_text import Items, ShellValue, TextPiece, WordText, text_of, without_prefix
from hfdsl.interop.text import ReadError, SourceText, Unread

SHELLS = frozenset(["bash", "sh", "zsh", "dash", "ksh"])
INHERITING = frozenset(
    ["env", "nice", "nohup", "numactl", "sbatch", "setsid", "srun", "stdbuf", "time", "timeout", "torchrun"]
)
"""Commands that start another one with their own environment."""

REMOTE_SHELLS = frozenset(["screen", "ssh", "su", "tmux"])
"""Commands whose arguments with blanks are texts for a shell."""


IGNORED = frozenset(["[", "test", "set", ":", "true", "echo", "printf", "mkdir", "cd", "pwd", "rm", "ls", "cat",
                     "sleep", "wait", "trap", "ulimit", "module", "date", "which", "nvidia-smi", "pip", "pip3", "wandb",
                     "huggingface-cli", "hf", "ray", "curl", "wget", "git", "cp", "ln", "chmod", "kill",
                     "pkill", "clear", "touch", "tee"])  # fmt: skip
"""Commands that assign no variable and start no training."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A command that a script runs: its words, and where it stands. ``certain`` is false of one in an open branch.

    ``variables`` are those that the script gives a text before it, as far as known.
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
            for name in names:
                if any(name in _known_text(word) for word in launch.words):
                    return ReadError(
                        f"this command has '{name}' in a text within quotes, which is not followed", launch.span
                    )
        for name in names:
            if (start := self._mentioned(name)) is not None:
                span = self.source.span(start, start + len(name))
                return ReadError(f"line {span.line} names '{name}', and no command that is followed starts it", span)
        for launch in self.launches:
            if (script := other_script(launch)) is not None:
                return ReadError(
                    f"the script starts {wanted} itself: it runs '{script}', which is not followed; check that script, "
                    "with its arguments after --",
                    launch.span,
                )
        if self.unread:
            first = self.unread[0]
            return ReadError(f"the script starts {wanted} as far as it is followed: {first.reason}", first.span)
        return ReadError(f"the script starts {wanted}", Span(self.source.file, 1))

    def _mentioned(self, name: str) -> int | None:
        """Where the script first has a name outside of comments."""
        start = 0
        for line in self.source.text.split("\n"):
            place = -1 if line.lstrip().startswith("#") else line.find(name)
            if place >= 0:
                return start + place
            start += len(line) + 1
        return None


def starts_nothing(name: str, words: Sequence[WordText]) -> bool:
    """Whether a command starts no training; ``ray job submit -- COMMAND`` may."""
    return name in IGNORED and not (name == "ray" and any(text_of(word) == "--" for word in words))


@dataclass(frozen=True, slots=True)
class ShellText:
    """A text that a command gives to a shell, and the arguments of that shell."""

    text: WordText
    arguments: Items = ()


def shell_texts(
    words: Sequence[WordText], document: WordText | None, variables: Mapping[str, ShellValue]
) -> list[ShellText]:
    """The texts that a command gives to shells.

    These are words of ``bash -c TEXT``, ``srun bash -lc TEXT``, ``sbatch --wrap=TEXT``, ``ssh HOST TEXT`` and ``tmux``,
    the here-document of ``bash`` and ``sbatch``, and the variable that NeMo-RL's ``ray.sub`` runs.
    """
    texts = [text_of(word) or "" for word in words]
    name = texts[0].rpartition("/")[2]
    for i, text in enumerate(texts):
        if text.rpartition("/")[2] in SHELLS:
            options = list(takewhile(lambda option: option.startswith("-"), texts[i + 1 :]))
            place = i + 1 + len(options)
            if any(option.endswith("c") and not option.startswith("--") for option in options):
                return [ShellText(words[place], tuple(words[place + 2 :]))] if place < len(words) else []
            if document is not None and (place == len(words) or "-s" in options):
                return [ShellText(document, tuple(words[place:]))]
    if name in REMOTE_SHELLS and document is None:
        return [ShellText(word) for word in words[1:] if " " in _known_text(word)]
    if name == "sbatch":
        command = variables.get("COMMAND")
        wrapped = [
            ShellText(without_prefix(word, "--wrap=")) for word in words if _known_text(word).startswith("--wrap=")
        ]
        wrapped += [ShellText(word) for option, word in pairwise(words) if text_of(option) == "--wrap"]
        wrapped += [ShellText(command)] if texts[-1].endswith("ray.sub") and isinstance(command, tuple) else []
        return wrapped or ([] if document is None else [ShellText(document)])
    return [ShellText(document)] if name == "ssh" and document is not None else []


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
