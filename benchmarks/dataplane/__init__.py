"""What the data plane costs, beside other ways to do the same. Every module but ``columns`` and ``measure`` runs."""
