"""Text by a model: compiled programs, parameters of a checkpoint, samples of a run."""
