"""A small model as arrays by Hugging Face's names, written by the library safetensors."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from jaxpipe.models.llama_config import LlamaConfig

MODEL = LlamaConfig(
    vocab_size=257,
    hidden_size=18,
    intermediate_size=14,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=3,
    head_dim=4,
)

_SHAPES = {
    "self_attn.q_proj": (24, 18),
    "self_attn.k_proj": (12, 18),
    "self_attn.v_proj": (12, 18),
    "self_attn.o_proj": (18, 24),
    "mlp.gate_proj": (14, 18),
    "mlp.up_proj": (14, 18),
    "mlp.down_proj": (18, 14),
    "input_layernorm": (18,),
    "post_attention_layernorm": (18,),
}
"""Written down, not computed: [out, in], with 6 heads, 3 key heads of 4."""


def make_tensors(dtype: object = np.float32) -> dict[str, np.ndarray]:
    """Every tensor of MODEL, random."""
    shapes = {f"model.layers.{n}.{name}.weight": shape for n in range(3) for name, shape in _SHAPES.items()}
    shapes |= {
        "model.embed_tokens.weight": (257, 18),
        "model.norm.weight": (18,),
        "lm_head.weight": (257, 18),
    }
    random = np.random.default_rng(0)
    return {name: random.normal(size=shape).astype(dtype) for name, shape in shapes.items()}


def save_single(folder: Path, tensors: dict[str, np.ndarray]) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def save_shards(folder: Path, tensors: dict[str, np.ndarray], num_shards: int = 2) -> Path:
    """Every second tensor in the same file, and the index."""
    folder.mkdir(exist_ok=True)
    names = [f"model-{number}-of-{num_shards}.safetensors" for number in range(num_shards)]
    file_of = {tensor: names[place % num_shards] for place, tensor in enumerate(tensors)}
    for name in names:
        held = {tensor: value for tensor, value in tensors.items() if file_of[tensor] == name}
        save_file(held, folder / name, metadata={"format": "pt"})
    index = {"metadata": {"total_size": 1}, "weight_map": file_of}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
