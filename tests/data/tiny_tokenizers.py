"""Tokenizers of a few hundred ids, made in a moment."""

from pathlib import Path

TEXTS = ["the cat sat on the mat", "hello world\n", "def f(x):\n    return x + 1\n", "été 日本 </s>"] * 20


def make_json(file: Path, *, special: tuple[str, ...] = ("<|endoftext|>",), vocab_size: int = 320) -> None:
    """Byte-level BPE, as GPT-2 and Llama 3 have it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.save(str(file))


def make_model(file: Path) -> None:
    """Unigrams with bytes for what is rare, as Llama 2 has it."""
    import sentencepiece

    with file.open("wb") as writer:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXTS),
            model_writer=writer,
            vocab_size=300,
            byte_fallback=True,
            hard_vocab_limit=False,
            minloglevel=2,
        )
