"""The Ray backend: worker groups, calls to their ranks, relays, and what happens between steps."""
