"""A Ray that is older than those that hfdsl was tried with."""

from hfdsl.single_controller.ray_versions import check_version

# good: check_version("2.60.0")
check_version("2.54.0")  # <- bad
