"""The logits of a folder of Hugging Face by transformers' own LlamaForCausalLM, in fp32 on the CPU.

To be compared with: nothing else here needs PyTorch or transformers.
"""

from pathlib import Path

import numpy as np

from jaxpipe.errors import InputError


def torch_logits(directory: Path, tokens: np.ndarray) -> np.ndarray:
    """Of ``tokens`` [batch, sequence]: fp32 [batch, sequence, vocabulary].

    Raises:
        InputError: PyTorch or transformers is not installed.
    """
    try:
        import torch
        from transformers import LlamaForCausalLM
        from transformers.utils import logging
    except ImportError as error:
        raise InputError(
            f"a comparison needs PyTorch and transformers, but: {error}; pip install torch transformers"
        ) from error
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = LlamaForCausalLM.from_pretrained(directory, local_files_only=True, attn_implementation="eager")
    with torch.no_grad():
        return model.float().eval()(torch.from_numpy(tokens.astype(np.int64))).logits.numpy()
