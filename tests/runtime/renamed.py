"""One dataflow under several names and with other roles: a launch runs many plans, and each has a name of its own."""

from __future__ import annotations

from types import FunctionType
from typing import Any, cast

import hfdsl as hf


def renamed(flow: hf.Dataflow[..., Any], name: str, **roles: str) -> hf.Dataflow[..., Any]:
    """The same program with another name, for the roles that a deployment has under other names."""
    body = cast(FunctionType, flow.body)
    parameters = tuple(roles.get(name, name) for name in body.__code__.co_varnames)
    code = body.__code__.replace(co_name=name, co_varnames=parameters)
    new = FunctionType(code, body.__globals__, name, body.__defaults__, body.__closure__)
    new.__kwdefaults__, new.__module__ = body.__kwdefaults__, body.__module__
    new.__annotations__ = {roles.get(name, name): hint for name, hint in body.__annotations__.items()}
    return hf.dataflow(new)
