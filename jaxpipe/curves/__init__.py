"""The curves of a run, from ``metrics.jsonl`` to TensorBoard, W&B and pictures; never loads JAX."""
