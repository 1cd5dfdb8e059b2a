"""Weights from one role to another: resharded by schedule, exchanged in buckets."""
