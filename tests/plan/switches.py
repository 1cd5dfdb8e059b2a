"""A hypothesis strategy for the switches of a plan: each on or off."""

from __future__ import annotations

from dataclasses import fields

from hypothesis import strategies as st

from hfdsl.plan.optimize import Optimize

SWITCHES = [field.name for field in fields(Optimize) if field.name != "bucket_bytes"]

switches = st.builds(Optimize, **{name: st.booleans() for name in SWITCHES})
