"""States, values and recordings as files, each with a digest."""
