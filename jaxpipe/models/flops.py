"""The floating-point operations that training on one token takes, by formula; loads nothing of JAX.

A product of ``[a, b]`` and ``[b, c]`` counts 2abc: a multiplication and an addition. Per token of a sequence
of s, with hidden size h, H query and K key-value heads of size d, inner size i, L layers and V token ids::

    attention's kernels   A = 2hHd (q) + 2 x 2hKd (k, v) + 2Hdh (o)
    attention             S = 2 x 2Hd (s + 1) / 2      scores, and the values they mix
    SwiGLU                M = 3 x 2hi                  gate, up, down
    head                  E = 2hV                      also where it is tied to the embedding

    forward               L (A + S + M) + E
    training              3 x forward                  backward: two products for each of forward's

Attention is causal: position t of a sequence sees t positions, on average (s + 1) / 2. The embedding is a
look-up and multiplies nothing. Norms, softmax, RoPE and the optimizer are left out, and so is what
remat computes again: these are the operations of the model, not of the program, as in Chowdhery et al. 2022
("PaLM", appendix B); 2 for each weight forward and 4 backward is also the count of Kaplan et al. 2020
("Scaling Laws for Neural Language Models", section 2.1).
"""

from jaxpipe.models.llama_config import LlamaConfig


def flops_per_token(config: LlamaConfig, sequence_length: int) -> int:
    """Of training: forward and backward of one token in a sequence of that length."""
    return 3 * forward_flops_per_token(config, sequence_length)


def forward_flops_per_token(config: LlamaConfig, sequence_length: int) -> int:
    """Of the forward pass alone."""
    hidden, queries, keys = (
        config.hidden_size,
        config.num_attention_heads * config.head_size,
        config.kv_heads * config.head_size,
    )
    kernels = 2 * hidden * queries + 2 * 2 * hidden * keys + 2 * queries * hidden
    attention = 2 * queries * (sequence_length + 1)
    swiglu = 3 * 2 * hidden * config.intermediate_size
    head = 2 * hidden * config.vocab_size
    return config.num_hidden_layers * (kernels + attention + swiglu) + head
