"""Text from files to batches of tokens; importing it does not load JAX."""

from jaxpipe.data.batches import Batches, ValidationBatches, validation_batches
from jaxpipe.data.corpus import Corpus, load_corpus
from jaxpipe.data.files import SUFFIXES, TextFile, find_files
from jaxpipe.data.samples import DOCUMENT_ARRAYS, IGNORE_LABEL, Batch
from jaxpipe.data.sources import Sources, find_tokenizer, open_sources
from jaxpipe.data.tokenizer import Tokenizer, copy_tokenizer, load_tokenizer
from jaxpipe.data.tokens import END_OF_DOCUMENT, VOCAB_SIZE

__all__ = [
    "DOCUMENT_ARRAYS",
    "END_OF_DOCUMENT",
    "IGNORE_LABEL",
    "SUFFIXES",
    "VOCAB_SIZE",
    "Batch",
    "Batches",
    "Corpus",
    "Sources",
    "TextFile",
    "Tokenizer",
    "ValidationBatches",
    "copy_tokenizer",
    "find_files",
    "find_tokenizer",
    "load_corpus",
    "load_tokenizer",
    "open_sources",
    "validation_batches",
]
