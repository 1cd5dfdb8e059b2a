"""Queues: random schedules, long tails, and what the control plane costs."""
