"""Commands about the text of a run."""
