"""Write what hfdsl knows of NeMo-RL's configuration of GRPO: keys, types, defaults, as facts in JSON.

Run with a checkout of NeMo-RL and the Python of ``nemo_rl_library.py``::

    python benchmarks/interop/nemo_rl_table.py CHECKOUT hfdsl/interop/tables/nemo-rl.json

``keys`` are those of ``examples/configs/grpo_math_1B.yaml``, from which ``examples/run_grpo.py`` starts by default;
``engines`` are the other example configurations that recipes build on, as what differs. ``options`` come from the
schema of ``MasterConfig``, where ``required_with`` names the switch with which a key must be there; ``fields`` has all
keys that an example or the schema has.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nemo_rl_library import load  # type: ignore[import-not-found, unused-ignore]  # beside this file

BASE = "examples/configs/grpo_math_1B.yaml"
ROOM = "examples/configs"


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested tables, keys joined by dots."""
    for key, inner in value.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(inner, dict) and inner:
            yield from leaves(inner, name)
        else:
            yield name, inner


def demands(schema: Any, definitions: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    """The types and choices of keys; ``required`` of one without which its table is refused."""
    schema = resolved(schema, definitions)
    required = set(schema.get("required", ()))
    for key, inner in schema.get("properties", {}).items():
        name = f"{prefix}.{key}" if prefix else key
        variants = [resolved(variant, definitions) for variant in inner.get("anyOf", [inner])]
        types = sorted({variant["type"] for variant in variants if "type" in variant})
        facts: dict[str, Any] = {"required": True} if key in required else {}
        if types and all("type" in variant for variant in variants):
            facts["types"] = types
        choices = sorted({str(c) for variant in variants for c in variant.get("enum", ())})
        if choices and all("enum" in variant or variant.get("type") == "null" for variant in variants):
            facts["choices"] = choices
        if facts:
            yield name, facts
        tables = [variant for variant in variants if variant.get("properties")]
        if len(tables) == 1 and depth < 6:
            yield from demands(tables[0], definitions, name, depth + 1)
        elif depth < 6:  # one of several tables: that with ``enabled: true`` where the switch is on
            for table in tables:
                switched_on = resolved(table["properties"].get("enabled", {}), definitions).get("const") is True
                for inner_name, inner_facts in demands(table, definitions, name, depth + 1):
                    demand = {"types": inner_facts["types"]} if "types" in inner_facts else {}
                    if switched_on and inner_facts.get("required") and inner_name.count(".") == name.count(".") + 1:
                        demand["required_with"] = f"{name}.enabled"
                    yield inner_name, demand


def resolved(schema: Any, definitions: Any) -> Any:
    """A schema without its reference."""
    while "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    return schema


def main(checkout: Path, output: Path) -> None:
    """Write the table."""
    grpo = load(checkout)
    pydantic_schema = importlib.import_module("pydantic.json_schema")

    class Schema(pydantic_schema.GenerateJsonSchema):  # type: ignore[misc, name-defined, unused-ignore]  # no stubs
        def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> Any:
            return {}  # a value that no configuration has

    schema = grpo.MasterConfig.model_json_schema(schema_generator=Schema)
    options: dict[str, dict[str, Any]] = {}
    for name, facts in demands(schema, schema["$defs"]):
        merged = options.setdefault(name, facts)
        if merged.get("types") and facts.get("types"):
            merged["types"] = sorted({*merged["types"], *facts["types"]})
        merged |= {key: value for key, value in facts.items() if key not in merged}
    omegaconf, config = importlib.import_module("omegaconf").OmegaConf, importlib.import_module("nemo_rl.utils.config")

    def read(path: Path) -> dict[str, Any]:
        return dict(leaves(omegaconf.to_container(config.load_config(path), resolve=False)))

    base = read(checkout / BASE)
    digest, engines, fields = hashlib.sha256(), {}, set(base) | set(options)
    for path in sorted((checkout / ROOM).rglob("*.yaml")):
        content = read(path)
        digest.update(path.read_bytes())
        if any(key.startswith("grpo.") for key in content):
            fields |= set(content)
            if path.parent == checkout / ROOM and path != checkout / BASE:
                engines[path.stem] = {
                    "changed": {k: v for k, v in content.items() if k not in base or base[k] != v},
                    "removed": sorted(base.keys() - content.keys()),
                }
    package = (checkout / "nemo_rl/package_info.py").read_text("utf-8")
    numbers = [re.search(rf"^{name} = (\d+)", package, re.MULTILINE) for name in ("MAJOR", "MINOR", "PATCH")]
    table = {
        "library": "nemo-rl",
        "version": ".".join(match[1] for match in numbers if match),
        "checksum": digest.hexdigest(),
        "default": "grpo_math_1B",
        "keys": base,
        "engines": engines,
        "fields": {"": sorted(fields)},
        "options": options,
    }
    output.write_text(json.dumps(table, indent=0, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
