"""The sizes of a Llama, under the names of Hugging Face's LlamaConfig; loads nothing of JAX.

The docstring of each field is also what ``--help`` prints.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """Stretches RoPE to longer contexts. There is none until one of these keys is given."""

    rope_type: Literal["llama3", "linear", "default"] = "llama3"
    """llama3: the scaling of Llama 3.1; linear: of all positions; default: none, as in Hugging Face."""
    factor: float = 8.0
    """By how much frequencies are divided: with llama3 the slow ones, with linear all."""
    low_freq_factor: float = 1.0
    """llama3 alone: wavelengths above original_max_position_embeddings / this are divided by factor."""
    high_freq_factor: float = 4.0
    """llama3 alone: wavelengths below original_max_position_embeddings / this stay as they are."""
    original_max_position_embeddings: int = 8192
    """llama3 alone: positions that the model was trained on before scaling."""


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """The Llama model; the keys are those of Hugging Face's LlamaConfig."""

    vocab_size: int
    """Number of token ids; byte-level text needs 257: 256 bytes and the end of a document."""
    hidden_size: int
    """Width of the residual stream."""
    intermediate_size: int
    """Width inside SwiGLU."""
    num_hidden_layers: int
    """Number of decoder layers."""
    num_attention_heads: int
    """Number of query heads."""
    num_key_value_heads: int | None = None
    """Number of key and value heads; null: as many as query heads."""
    head_dim: int | None = None
    """Size of a head; null: hidden_size / num_attention_heads."""
    rms_norm_eps: float = 1e-5
    """Added to the mean square in RMSNorm."""
    rope_theta: float = 10000.0
    """Base of the RoPE frequencies."""
    rope_scaling: RopeScaling | None = None
    """Stretches RoPE to longer contexts; null: no scaling."""
    max_position_embeddings: int = 2048
    """The longest sequence that the model is meant for."""
    initializer_range: float = 0.02
    """Standard deviation of the initial weights."""
    tie_word_embeddings: bool = False
    """Use the embedding as the head, too."""

    @property
    def kv_heads(self) -> int:
        """Number of key and value heads, resolved."""
        return self.num_attention_heads if self.num_key_value_heads is None else self.num_key_value_heads

    @property
    def head_size(self) -> int:
        """Size of a head, resolved."""
        return self.hidden_size // self.num_attention_heads if self.head_dim is None else self.head_dim
