"""Classes of configurations: tables of the same classes have one, which is made once."""

from __future__ import annotations

from hfdsl.rl import workers as w
from hfdsl.rl.training.config_classes import configuration_class


def test_the_same_tables_have_one_class() -> None:
    first, again = (configuration_class(None, None, {"actor": w.ActorConfig}) for _ in range(2))
    assert first is again
    assert first.__dataclass_fields__["actor"].type is w.ActorConfig


def test_other_tables_have_another_class() -> None:
    tables = {"actor": w.ActorConfig, "critic": w.CriticConfig}
    kinds = [configuration_class(None, None, {name: kind}) for name, kind in tables.items()]
    kinds += [configuration_class(None, None, tables), configuration_class(None, None, {"actor": w.SamplerConfig})]
    assert len(set(kinds)) == len(kinds)
