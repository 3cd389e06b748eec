"""``jaxpipe import-hf``, ``export-hf`` and ``compare-hf``."""
