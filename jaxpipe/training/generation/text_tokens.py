"""The text of prompts and samples as tokens, and back; loads nothing of JAX."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxpipe.data import Tokenizer


class TextTokens(NamedTuple):
    """How a model was given text.

    num_ids: tokens from here on stand for nothing.
    """

    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    end_of_document: int
    num_ids: int


def text_tokens(tokenizer: Tokenizer) -> TextTokens:
    """By the tokenizer of a run."""

    def encode(text: str) -> list[int]:
        (ids,) = tokenizer.encode([text.encode("utf-8", "surrogateescape")])
        return [int(number) for number in ids]

    return TextTokens(encode, tokenizer.decode, tokenizer.end_of_document, tokenizer.vocab_size)


def prompt_ids(tokens: TextTokens, prompt: str) -> list[int]:
    """The tokens of a prompt; a document begins where there are none."""
    return tokens.encode(prompt) or [tokens.end_of_document]


def until_end(ids: Sequence[int], end: int) -> list[int]:
    """The tokens before the first ``end``."""
    ids = [int(token) for token in ids]
    return ids[: ids.index(end)] if end in ids else ids


def continuation(tokens: TextTokens, prompt: Sequence[int], new: Sequence[int]) -> str:
    """What ``new`` adds to the text of the prompt, up to the end of the document.

    Both are decoded together: of some tokenizers the text of a token depends on what stands before it.
    """
    new = until_end(new, tokens.end_of_document)
    before, whole = tokens.decode(prompt), tokens.decode([*prompt, *new])
    return whole[len(before) :] if whole.startswith(before) else tokens.decode(new)


def printable(text: str) -> str:
    """For a terminal, which a model's control characters could put into disorder."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else "\ufffd" for character in text
    )
