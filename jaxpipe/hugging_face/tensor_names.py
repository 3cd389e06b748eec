"""Which of Hugging Face's tensors make up which leaf of the canonical parameters.

    leaf                                        tensors
    embedding             [vocabulary, hidden]  model.embed_tokens.weight         [vocabulary, hidden]
    layers.kernels.*      [layers, in, out]     model.layers.N.*_proj.weight      [out, in]
    layers.small.*.scale  [layers, hidden]      model.layers.N.*_layernorm.weight [hidden]
    final.scale           [hidden]              model.norm.weight                 [hidden]
    head                  [vocabulary, hidden]  lm_head.weight                    [vocabulary, hidden]

Kernels are turned, and layers stacked; no element changes. Query and key rows stay in their order, since both
sides rotate by halves (models/rope.py). A tied model has no head, and no ``lm_head.weight``.
"""

from collections.abc import Iterator
from typing import NamedTuple

from jaxpipe.models.llama_config import LlamaConfig

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


class Leaf(NamedTuple):
    """One leaf, and what its tensors are called.

    name: in the canonical parameters, with dots.
    shape: canonical; the layers first, if it has some.
    tensor: Hugging Face's name; of a leaf with layers, what stands behind the number of the layer.
    has_layers: whether there is a tensor for each layer.
    is_turned: whether the tensor is the transpose.
    """

    name: str
    shape: tuple[int, ...]
    tensor: str
    has_layers: bool = False
    is_turned: bool = False

    def tensor_name(self, layer: int) -> str:
        """Of that layer; without layers there is one tensor, of layer 0."""
        return f"model.layers.{layer}.{self.tensor}" if self.has_layers else self.tensor

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """Of each tensor, in Hugging Face's order."""
        shape = self.shape[1:] if self.has_layers else self.shape
        return shape[::-1] if self.is_turned else shape


def leaves_of(model: LlamaConfig) -> tuple[Leaf, ...]:
    """All leaves of that model."""
    hidden, vocabulary = model.hidden_size, (model.vocab_size, model.hidden_size)
    leaves = [Leaf("embedding", vocabulary, EMBEDDING), *_layer_leaves(model)]
    leaves.append(Leaf("final.scale", (hidden,), "model.norm.weight"))
    if not model.tie_word_embeddings:
        leaves.append(Leaf("head", vocabulary, HEAD))
    return tuple(leaves)


def tensor_shapes(model: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor, in the order of the model: embedding, layer by layer, norm, head."""
    leaves = leaves_of(model)
    per_layer = [leaf for leaf in leaves if leaf.has_layers]
    shapes = {leaves[0].tensor: leaves[0].tensor_shape}
    for layer in range(model.num_hidden_layers):
        shapes |= {leaf.tensor_name(layer): leaf.tensor_shape for leaf in per_layer}
    return shapes | {leaf.tensor: leaf.tensor_shape for leaf in leaves if not leaf.has_layers}


def _layer_leaves(model: LlamaConfig) -> Iterator[Leaf]:
    layers, hidden, inner = model.num_hidden_layers, model.hidden_size, model.intermediate_size
    queries, keys = model.num_attention_heads * model.head_size, model.kv_heads * model.head_size
    kernels = {
        "self_attn.qkv.q_proj": (hidden, queries),
        "self_attn.qkv.k_proj": (hidden, keys),
        "self_attn.qkv.v_proj": (hidden, keys),
        "self_attn.o.o_proj": (queries, hidden),
        "mlp.gate_up.gate_proj": (hidden, inner),
        "mlp.gate_up.up_proj": (hidden, inner),
        "mlp.down.down_proj": (inner, hidden),
    }
    for name, shape in kernels.items():
        module, _, projection = name.split(".")
        yield Leaf(
            f"layers.kernels.{name}",
            (layers, *shape),
            f"{module}.{projection}.weight",
            has_layers=True,
            is_turned=True,
        )
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield Leaf(f"layers.small.{name}.scale", (layers, hidden), f"{name}.weight", has_layers=True)
