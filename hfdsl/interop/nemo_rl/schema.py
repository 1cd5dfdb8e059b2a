"""Demands of NeMo-RL's declared tables on a configuration: required keys and types of values.

The tables are ``MasterConfig`` in ``algorithms/grpo.py`` and those within it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hfdsl.check.findings import Finding
from hfdsl.interop.library_tables import table
from hfdsl.interop.reporting import Problem, finding, value_text
from hfdsl.interop.settings import MISSING, Configuration


def refusals(c: Configuration) -> Iterator[Finding]:
    """The values that pydantic refuses, before anything else reads them."""
    for problem in (*keys_are_given(c), *values_have_types(c)):
        yield problem.finding


def keys_are_given(c: Configuration) -> Iterator[Problem]:
    """Required keys are there."""
    if c.unknown_below:
        return
    missing, tables = dict[str, list[str]](), {""}
    for key in (*c.explicit, *c.defaults):
        while key := key.rpartition(".")[0]:
            tables.add(key)
    for key, facts in table("nemo-rl").options.items():
        above = key.rpartition(".")[0]
        switch = facts.get("required_with")
        is_required = facts.get("required") or (switch is not None and c.known(switch) is True)
        if not is_required or above not in tables or c.has(key) or key in tables:
            continue
        if not any(isinstance(c.known(name), str | dict) for name in _tables(c, key)):
            missing.setdefault(above, []).append(key.rpartition(".")[2])
    for above, names in missing.items():
        message = f"'{above}' has no {', '.join(names)}" if above else f"the configuration has no {', '.join(names)}"
        near = next((name for name in sorted({*c.explicit, *c.defaults}) if above and name.startswith(f"{above}.")), "")
        yield finding(c, "HF974", message, near, label="NeMo-RL refuses a configuration without them")


def _tables(c: Configuration, key: str) -> Iterator[str]:
    """The tables above a key that are given as one value."""
    while key:
        key = key.rpartition(".")[0]
        if key in c.explicit or key in c.defaults:
            yield key


def values_have_types(c: Configuration) -> Iterator[Problem]:
    """Values have the types that NeMo-RL declares."""
    # pydantic converts where it can: "8" is an integer, and so is 8.0
    options = table("nemo-rl").options
    for key in c.explicit:
        types = options.get(key, {}).get("types")
        if types is None or c.explicit[key].unknown or _is_switched_off(c, key):
            continue
        value = c.known(key, MISSING)
        if value == MISSING and c.explicit[key].value != MISSING:
            continue  # an interpolation that is not known
        if not any(_has_type(value, kind) for kind in types):
            words = " or ".join("nothing" if kind == "null" else _WORDS[kind] for kind in types)
            yield finding(c, "HF972", f"{key} = {value_text(value)} is not {words}", key)


SWITCHED_TABLES = ("dtensor_cfg", "megatron_cfg", "lora_cfg", "peft", "sequence_packing", "dynamic_batching", "draft",
                   "router_replay")  # fmt: skip
"""Tables with another declaration while they are disabled; for others, all values are checked."""


def _is_switched_off(c: Configuration, key: str) -> bool:
    """Whether a key belongs to a disabled table, of which NeMo-RL reads only the switch."""
    parts = key.split(".")
    tables = (".".join(parts[:count]) for count in range(1, len(parts)) if parts[count - 1] in SWITCHED_TABLES)
    return any(c.known(f"{name}.enabled") is False for name in tables) and parts[-1] != "enabled"


_WORDS = {"integer": "an integer", "number": "a number", "boolean": "a switch", "string": "a text", "array": "a list",
          "object": "a table"}  # fmt: skip


def _has_type(value: Any, kind: str) -> bool:
    """Whether pydantic accepts a value for a type."""
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool) or value in (0, 1) or str(value).lower() in _SWITCHES
        case "integer":
            is_whole = isinstance(value, int | bool) or (isinstance(value, float) and value == value // 1)
            return is_whole or (isinstance(value, str) and bool(re.fullmatch(r"\s*[+-]?\d+(\.0+)?\s*", value)))
        case "number":
            return isinstance(value, int | float) or (isinstance(value, str) and _is_number(value))
        case "string":
            return isinstance(value, str)
        case "array":
            return isinstance(value, list)
    return isinstance(value, dict)


_SWITCHES = ("true", "false", "yes", "no", "on", "off", "y", "n", "t", "f", "1", "0")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
