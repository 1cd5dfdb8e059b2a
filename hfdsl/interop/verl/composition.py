"""The configuration of verl that Hydra composes from its defaults, files and overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from hfdsl.check.findings import Finding, Label
from hfdsl.graph.spans import Span
from hfdsl.interop.hydra import HydraArguments, Override
from hfdsl.interop.library_tables import LibraryTable
from hfdsl.interop.misspelled_keys import added_again, nearest_key, renamed
from hfdsl.interop.reading import RunReading
from hfdsl.interop.settings import Configuration, Setting
from hfdsl.interop.text import Unread
from hfdsl.interop.verl.legacy_rewards import moved

MAX_SEARCHES = 50  # for a key that was meant; each goes through a thousand keys
GROUPS = frozenset(
    [
        "actor",
        "algorithm",
        "critic",
        "data",
        "distillation",
        "engine",
        "model",
        "model_engine",
        "npu_profile",
        "optim",
        "profiler",
        "ref",
        "reward",
        "rollout",
        "transfer_queue",
    ]
)


@dataclass
class HydraComposition:
    """A configuration while overrides are applied to it, in order."""

    known: LibraryTable
    engine: str
    place: Span
    defaults: Mapping[str, Any] = field(default_factory=dict)
    explicit: dict[str, Setting] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    unknown_below: dict[str, Unread] = field(default_factory=dict)

    def configuration(self, unread: Sequence[Unread] = ()) -> Configuration:
        """The configuration so far."""
        return Configuration(
            library="verl",
            defaults=self.defaults,
            explicit=moved(self.explicit),
            place=self.place,
            unread=tuple(unread),
            unknown_below=self.unknown_below,
        )

    # -- overrides

    def choose(self, override: Override) -> None:
        """``group=choice`` and ``group@package=choice``."""
        setting = override.setting
        group, at, package = setting.key.partition("@")
        where = package if at else group.replace("/", ".")
        if group.startswith("hydra"):
            return  # Hydra's own: where it logs
        if setting.unknown:
            everything = group == "model_engine" and not at
            self.unknown_below["" if everything else where] = Unread(
                f"'{setting.key}' is not known: {setting.unknown}", setting.span
            )
        elif group == "model_engine" and not at:
            if setting.value in self.known.engines:
                self.engine = str(setting.value)
            else:
                names = ", ".join(self.known.engines)
                self.findings.append(
                    Finding("HF972", f"model_engine = {setting.value} is not one of {names}", Label(setting.span))
                )
        else:
            self.unknown_below[where] = Unread(f"'{setting.key}={setting.value}' brings keys of its own", setting.span)

    def apply(self, override: Override) -> None:
        """Set, add or delete a key."""
        setting, key = override.setting, override.setting.key
        if override.sign == "~":
            self.defaults = {k: v for k, v in self.defaults.items() if k != key and not k.startswith(f"{key}.")}
            self.explicit.pop(key, None)
            return
        is_known = self._is_known(key)
        if not override.sign and not is_known:
            self._unknown(setting)
        elif override.sign == "+" and is_known and not isinstance(setting.value, dict | list):
            if not setting.unknown and self._has_value(key):
                self.findings.append(added_again(setting))
        elif override.sign and not is_known:
            self._undeclared(setting)
        if isinstance(setting.value, dict) and any(k.startswith(f"{key}.") for k in self.defaults):
            for name, value in setting.value.items():
                self.apply(Override(override.sign, replace(setting, key=f"{key}.{name}", value=value, text=None)))
            return
        self.explicit[key] = setting

    def _is_known(self, key: str) -> bool:
        if key in self.defaults or any(k.startswith(f"{key}.") for k in self.defaults):
            return True
        above = key
        while above:
            if above in self.unknown_below or (above in self.explicit and above != key and self._is_open(above)):
                return True
            above = above.rpartition(".")[0]
        return "" in self.unknown_below or key in self.explicit

    def _is_open(self, key: str) -> bool:
        """Whether an earlier ``+`` has made the table, so that its keys are the user's own."""
        return key not in self.defaults

    def _has_value(self, key: str) -> bool:
        configuration = self.configuration()
        return any(k.startswith(f"{key}.") for k in self.defaults) or configuration.known(key) is not None

    def _unknown(self, setting: Setting) -> None:
        near = nearest_key(setting.key, self.defaults) if len(self.findings) < MAX_SEARCHES else None
        fixes = () if near is None else renamed(setting, near)
        advice = (f"did you mean {near}?",) if near else (f"'+{setting.key}=...' adds a key",)
        self.findings.append(
            Finding(
                "HF971",
                f"verl {self.known.version} has no key '{setting.key}'",
                Label(setting.span, "Hydra refuses an override of a key that is not there"),
                notes=advice,
                fixes=fixes,
            )
        )

    def _undeclared(self, setting: Setting) -> None:
        """An added key of a table that becomes a dataclass, which takes its own fields only."""
        above, _, name = setting.key.rpartition(".")
        target = self.configuration().known(f"{above}._target_")
        names = self.known.fields.get(target) if isinstance(target, str) else None
        if names is None or name in names:
            return
        near = get_close_matches(name, names, n=1, cutoff=0.7)
        self.findings.append(
            Finding(
                "HF971",
                f"'{above}' is of class {target.rpartition('.')[2]}, which has no field '{name}'",
                Label(setting.span, "verl refuses it when the workers start"),
                notes=(f"did you mean {above}.{near[0]}?",) if near else (),
            )
        )


def applied(
    arguments: HydraArguments,
    library: LibraryTable,
    engine: str,
    place: Span,
    unread: Sequence[Unread],
    base: Sequence[Setting] = (),
) -> RunReading:
    """The run of the defaults of an engine, with the settings of a file and overrides."""
    composition = HydraComposition(library, engine, place)
    groups = [o for o in arguments.overrides if _is_group(o)]
    for override in groups:
        composition.choose(override)
    composition.defaults = library.engines[composition.engine]
    for setting in base:
        composition.explicit[setting.key] = setting
    for override in arguments.overrides:
        if override not in groups:
            composition.apply(override)
    for message, span in arguments.refused:
        composition.findings.append(Finding("HF972", message, Label(span)))
    return RunReading(composition.configuration(unread), tuple(composition.findings), tuple(unread))


def _is_group(override: Override) -> bool:
    key = override.setting.key
    return "@" in key or (key in GROUPS and not isinstance(override.setting.value, dict)) or key.startswith("hydra")
