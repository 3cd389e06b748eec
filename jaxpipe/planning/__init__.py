"""Which layout to train with: measured costs, predictions of time and memory, search. It loads no JAX."""
