"""The Ray backend: worker groups, calls to their ranks, relays, and operations between steps."""
