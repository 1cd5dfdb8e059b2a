"""Verified syncs: digests of exported and loaded weights, taken by ranks and compared by the driver."""
