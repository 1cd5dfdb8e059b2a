"""Retries of no attempt."""

import hfdsl as hf

# good: hf.Retries(attempts=1)
hf.Retries(attempts=0)  # <- bad
