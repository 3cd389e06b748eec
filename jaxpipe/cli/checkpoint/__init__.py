"""The commands ``jaxpipe checkpoint``."""
