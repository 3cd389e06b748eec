"""One number for all parameters of a model, so that two runs can be compared from outside.

SHA-256 over the canonical fp32 parameters in model order, each as

    name in UTF-8, a zero byte, its dimensions in decimal with commas between, a zero byte,
    its values as little-endian IEEE 754 float32 in row-major order

For parameters as NumPy arrays this is the same number::

    digest = hashlib.sha256()
    for name, array in named_arrays:
        digest.update(name.encode() + b"\\0" + ",".join(map(str, array.shape)).encode() + b"\\0")
        digest.update(array.astype("<f4").tobytes())
    digest.hexdigest()
"""

import hashlib
from collections.abc import Iterable

import jax
import numpy as np


def params_sha256(named_arrays: Iterable[tuple[str, jax.Array | np.ndarray]]) -> str:
    """The hash of ``(name, array)`` pairs in the order given, as 64 hexadecimal digits.

    Arrays may be sharded; one at a time is gathered on the host.

    Raises:
        ValueError: an array is not float32: a rounded copy would hide differences.
    """
    digest = hashlib.sha256()
    for name, array in named_arrays:
        if array.dtype != np.float32:
            raise ValueError(
                f"the hash is over float32 master parameters, but {name} is {array.dtype}; pass the masters"
            )
        digest.update(name.encode() + b"\0" + ",".join(map(str, array.shape)).encode() + b"\0")
        digest.update(np.asarray(array).astype("<f4").tobytes())
    return digest.hexdigest()
