"""Tokenizers from files: those of Hugging Face's ``tokenizers``, and models of ``sentencepiece``.

Neither may find a special token in the text of a document: ``encode_special_tokens`` (it means: encode what
looks like one as text) does it for the first, and sentencepiece knows no other way. Truncation and padding,
which a .json may ask for, are left out. Where a vocabulary spells the end of a document as an ordinary word,
a text that holds it is refused.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpipe.data.tokenizer import Tokenizer
from jaxpipe.data.tokens import Tokens, token_dtype
from jaxpipe.errors import InputError, first_line

USUAL_ENDS = ("<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>")
"""What ends a document where nobody says so; the first of them that the vocabulary has."""

REMEDY = "pip install 'jaxpipe[text]'"
_CONFIG = "tokenizer_config.json"


def load_json(file: Path, end_of_document: str | None) -> Tokenizer:
    """``InputError`` if the file is none of tokenizers, or no token ends a document."""
    try:
        import tokenizers
    except ImportError as error:
        raise InputError(f"{file} needs the package tokenizers; {REMEDY}") from error
    content = _read(file)
    try:
        loaded = tokenizers.Tokenizer.from_str(content.decode("utf-8"))
    except Exception as error:
        raise InputError(
            f"the tokenizer {file} is no file of the tokenizers library ({first_line(error)}); "
            "give the tokenizer.json of a model"
        ) from error
    name = end_of_document or _named_beside(file) or _first_known(loaded, file)
    end = loaded.token_to_id(name)
    if end is None:
        raise InputError(
            f"the tokenizer {file} has no token {name!r} to end a document; name one that it has"
        )
    loaded.add_special_tokens([name])  # if it is not special already; the id stays
    loaded.encode_special_tokens = True
    loaded.no_truncation()
    loaded.no_padding()
    vocab_size = max(loaded.get_vocab().values()) + 1
    dtype = token_dtype(vocab_size)

    def encode(texts: Sequence[bytes]) -> list[Tokens]:
        found = loaded.encode_batch_fast([_as_text(text) for text in texts], add_special_tokens=False)
        return [_checked(np.array(encoding.ids, dtype), end, name, file) for encoding in found]

    def decode(ids: Sequence[int]) -> str:
        return str(loaded.decode(list(ids), skip_special_tokens=True))

    beside = file.with_name(_CONFIG)
    files = (file, beside) if beside.is_file() else (file,)
    return Tokenizer(file.name, _digest(content), vocab_size, end, name, files, encode, decode)


def load_sentencepiece(file: Path, end_of_document: str | None) -> Tokenizer:
    """``InputError`` if the file is none of sentencepiece, or no token ends a document."""
    try:
        import sentencepiece
    except ImportError as error:
        raise InputError(f"{file} needs the package sentencepiece; {REMEDY}") from error
    content = _read(file)
    try:
        loaded = sentencepiece.SentencePieceProcessor(model_proto=content)
        vocab_size = loaded.vocab_size()
        if vocab_size == 0:
            raise RuntimeError("it has no tokens")
    except (RuntimeError, OSError) as error:
        raise InputError(
            f"the tokenizer {file} is no model of sentencepiece ({first_line(error)}); "
            "give the tokenizer.model of a model"
        ) from error
    end = _end_of_sentencepiece(loaded, end_of_document, file)
    name, dtype = loaded.id_to_piece(end), token_dtype(vocab_size)

    def encode(texts: Sequence[bytes]) -> list[Tokens]:
        found = loaded.encode([_as_text(text) for text in texts], out_type=int, num_threads=1)
        return [_checked(np.array(ids, dtype), end, name, file) for ids in found]

    def decode(ids: Sequence[int]) -> str:
        return str(loaded.decode([int(number) for number in ids if number != end]))

    return Tokenizer(file.name, _digest(content), vocab_size, end, name, (file,), encode, decode)


def _named_beside(file: Path) -> str | None:
    """The ``eos_token`` of the tokenizer_config.json in the same folder: a text, or an object with one."""
    beside = file.with_name(_CONFIG)
    if not beside.is_file():
        return None
    try:
        token: Any = json.loads(_read(beside)).get("eos_token")
    except (ValueError, AttributeError) as error:
        raise InputError(f"{beside} is no object of JSON; mend or remove it") from error
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _first_known(loaded: Any, file: Path) -> str:
    for name in USUAL_ENDS:
        if loaded.token_to_id(name) is not None:
            return name
    special = [token.content for token in loaded.get_added_tokens_decoder().values()]
    having = f"its special tokens are {', '.join(special[:8])}" if special else "it has no special tokens"
    raise InputError(
        f"the tokenizer {file} does not say which token ends a document: {having}, and none of "
        f"{', '.join(USUAL_ENDS)}; name one of its tokens (data.end_of_document, --end-of-document)"
    )


def _end_of_sentencepiece(loaded: Any, name: str | None, file: Path) -> int:
    if name is None:
        if (end := loaded.eos_id()) >= 0:
            return int(end)
        raise InputError(
            f"the tokenizer {file} has no token of its own that ends a document; name one of its pieces "
            "(data.end_of_document, --end-of-document)"
        )
    end = int(loaded.piece_to_id(name))
    if end == loaded.unk_id():
        raise InputError(
            f"the tokenizer {file} has no token {name!r} to end a document; name one that it has"
        )
    return end


def _checked(ids: Tokens, end: int, name: str, file: Path) -> Tokens:
    if (ids == end).any():
        raise InputError(
            f"the tokenizer {file} makes {name!r}, which is to end documents, from the text of one; "
            "name a token that no text gives (data.end_of_document, --end-of-document)"
        )
    return ids


def _as_text(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}; check its permissions") from error
