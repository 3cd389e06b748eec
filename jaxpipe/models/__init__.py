"""Llama in Flax NNX, and its adapter to the pipeline's contract."""
