"""A vLLM that is older than any that hfdsl accepts."""

from hfdsl.rl.engines.versions import check_version

# good: check_version("0.32.0")
check_version("0.20.0")  # <- bad
