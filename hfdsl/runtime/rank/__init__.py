"""One rank of a plan: the executor that runs its calls, the workers of its roles, and the values that they produced."""
