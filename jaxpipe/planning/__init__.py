"""Which layout to train with: measured costs, predictions of time and memory, and the search; loads no JAX."""
