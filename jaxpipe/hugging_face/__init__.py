"""Models in Hugging Face's form: config.json and safetensors, read and written; never loads JAX."""
