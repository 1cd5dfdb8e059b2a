"""The same, mended: A test that tries no container."""

from hfdsl.testing import check_laws

check_laws("DP_PROTO", containers=["list"])
