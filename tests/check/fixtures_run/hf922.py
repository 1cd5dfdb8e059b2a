"""A test that tries no container."""

from hfdsl.testing import check_laws

# good: check_laws("DP_PROTO", containers=["list"])
check_laws("DP_PROTO", containers=[])  # <- bad
