"""jaxpipe pre-trains Llama models in JAX with pipeline parallelism; a schedule is data."""

__version__ = "0.1.0"
