"""NeMo-RL's configurations put together: a file, those that it names as its ``defaults``, and overrides.

Files are merged from the first ancestor to the file itself: tables key by key, anything else as a whole. A table with
``_override_: true`` at the top takes the place of its ancestors'. An ancestor that is not on disk is known where it is
one of the library's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from os.path import realpath
from pathlib import Path
from typing import Any

from hfdsl.check.findings import Finding, Label
from hfdsl.graph.spans import Span
from hfdsl.interop.hydra import HydraArguments, Override
from hfdsl.interop.library_tables import LibraryTable
from hfdsl.interop.misspelled_keys import added_again, nearest_key, renamed
from hfdsl.interop.settings import MISSING, Setting
from hfdsl.interop.text import ReadError, Unread, is_file, read_source
from hfdsl.interop.yaml_text import read_yaml

MAX_ANCESTORS = 20
MARK = "_override_"


@dataclass
class Composition:
    """A configuration while files and overrides are merged into it.

    ``defaults`` are values of the library's own files that are not on disk, ``explicit`` all others.
    """

    known: LibraryTable
    defaults: dict[str, Any] = field(default_factory=dict)
    explicit: dict[str, Setting] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    unknown_below: dict[str, Unread] = field(default_factory=dict)

    # -- files

    def add_file(self, path: Path, ancestors: tuple[Path, ...] = ()) -> None:
        """Merge a file after those that it names.

        Raises:
            ReadError: HF970 if one of them cannot be read, or where they name each other.
        """
        place = Path(realpath(path))  # resolve() raises for links that go round
        if place in ancestors or len(ancestors) > MAX_ANCESTORS:
            raise ReadError(f"'{path}' is among its own defaults", Span(str(path), 1))
        settings = list(read_yaml(read_source(path)))
        for setting in settings:
            if setting.key == "defaults":
                self._add_parents(setting, path, (*ancestors, place))
        self.merge([setting for setting in settings if setting.key.partition(".")[0] != "defaults"])

    def _add_parents(self, setting: Setting, path: Path, ancestors: tuple[Path, ...]) -> None:
        names = setting.value if isinstance(setting.value, list) else [setting.value]
        for name in names:
            parent = path.parent / str(name)
            if "${" in str(name) or not isinstance(name, str):
                self._unknown_parent(setting, f"'{name}' is not a file's name")
            elif is_file(parent):
                self.add_file(parent, ancestors)
            elif parent.stem in self.known.engines:
                self.add_library_file(parent.stem)
                self.unread.append(
                    Unread(f"'{name}' is not there, and taken as that of NeMo-RL {self.known.version}", setting.span)
                )
            else:
                self._unknown_parent(setting, f"'{name}' is not there to be read")

    def _unknown_parent(self, setting: Setting, reason: str) -> None:
        unread = Unread(reason, setting.span)
        self.unread.append(unread)
        self.unknown_below[""] = unread

    def add_library_file(self, name: str) -> None:
        """Merge one of the library's own files."""
        self.defaults |= self.known.engines[name]

    def merge(self, settings: list[Setting]) -> None:
        """Merge the leaves of a file."""
        for setting in settings:
            top, dot, last = setting.key.partition(".")
            if dot and last == MARK and setting.value is True:
                self._remove(top)
        for setting in settings:
            if setting.key.endswith(f".{MARK}") and setting.key.count(".") == 1:
                continue
            if not (setting.value in (MISSING, {}) and self.exists(setting.key)):  # neither changes an ancestor's value
                self._set(setting)

    def _set(self, setting: Setting) -> None:
        self._remove(setting.key)
        above = setting.key.rpartition(".")[0]
        while above:
            self.explicit.pop(above, None)
            self.defaults.pop(above, None)
            above = above.rpartition(".")[0]
        self.explicit[setting.key] = setting

    def _remove(self, key: str) -> None:
        for names in (self.explicit, self.defaults):
            for name in [name for name in names if name == key or name.startswith(f"{key}.")]:
                del names[name]

    def exists(self, key: str) -> bool:
        """Whether there is a value or a table of this name."""
        return any(
            key in names or any(name.startswith(f"{key}.") for name in names)
            for names in (self.explicit, self.defaults)
        )

    # -- overrides

    def override(self, arguments: HydraArguments) -> None:
        """Apply what follows the file on the command line."""
        for override in arguments.overrides:
            self._apply(override)
        for flag, value in arguments.flags:
            if flag != "--config":
                text = f"{flag} {value}".strip()
                self.findings.append(
                    Finding("HF971", f"'{text}' is not an override: key=value", Label(self._place(arguments)))
                )
        for message, span in arguments.refused:
            self.findings.append(Finding("HF972", message, Label(span)))
        self.unread += arguments.unread

    def _place(self, arguments: HydraArguments) -> Span:
        return next((override.setting.span for override in arguments.overrides), Span("<command line>", 1))

    def _apply(self, override: Override) -> None:
        setting, key = override.setting, override.setting.key
        is_there = self.exists(key)
        if not is_there and override.sign in ("", "~") and not self._is_open(key):
            self.findings.append(self._unknown(setting, override.sign))
            if override.sign == "~":
                return
        elif is_there and override.sign == "+" and not isinstance(setting.value, dict | list):
            self.findings.append(added_again(setting))
        if override.sign == "~":
            self._remove(key)
        elif isinstance(setting.value, dict) and setting.value:
            for name, value in setting.value.items():
                self._apply(Override("++", replace(setting, key=f"{key}.{name}", value=value, text=None)))
        else:
            self._set(setting)

    def _is_open(self, key: str) -> bool:
        """Whether a table above the key has unknown keys."""
        if "" in self.unknown_below:
            return True
        above = key.rpartition(".")[0]
        while above:
            value = self.explicit[above].value if above in self.explicit else self.defaults.get(above)
            if isinstance(value, str) and "${" in value:
                return True
            above = above.rpartition(".")[0]
        return False

    def _unknown(self, setting: Setting, sign: str) -> Finding:
        near = nearest_key(setting.key, (*self.explicit, *self.defaults))
        fixes = renamed(setting, near, skipped=len(sign)) if near else ()
        return Finding(
            "HF971",
            f"the configuration has no key '{setting.key}'",
            Label(setting.span, "Hydra refuses an override of a key that is not there"),
            notes=(f"did you mean {near}?",) if near else (f"'+{setting.key}=...' adds a key",),
            fixes=fixes,
        )

    # -- keys that nothing reads

    def misspelled(self) -> Iterator[Finding]:
        """Keys of files that no version of a table has, and that look like one that it has."""
        names = self.known.fields[""]
        tables = {name.rpartition(".")[0] for name in names}
        for key, setting in self.explicit.items():
            above, _, last = key.rpartition(".")
            if key in names or setting.span.file.startswith("<") or above not in tables or key in tables:
                continue
            if any(name.startswith(f"{key}.") for name in names):
                continue
            siblings = {name.rpartition(".")[2] for name in names if name.rpartition(".")[0] == above}
            near = get_close_matches(last, siblings, n=1, cutoff=0.85)
            correct = self.explicit.get(f"{above}.{near[0]}".lstrip(".")) if near else None
            # an ancestor may have the right key, too
            if near and (correct is None or correct.span.file != setting.span.file):
                yield Finding(
                    "HF973",
                    f"NeMo-RL {self.known.version} has no key '{key}'",
                    Label(setting.span, "nothing reads it"),
                    notes=(f"did you mean {near[0]}?",),
                    fixes=renamed(replace(setting, key=last), near[0]),
                )


RESOLVERS: Mapping[str, Any] = {"mul": lambda a, b: a * b, "div": lambda a, b: a / b, "max": max}
"""The resolvers that the library's ``register_omegaconf_resolvers`` registers."""
