"""Text becomes ids and comes back, and only the end of a document gives the id that ends one."""

import json
import shutil
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import make_json

from jaxpipe.data import END_OF_DOCUMENT, load_tokenizer
from jaxpipe.data.cuts import PIECE, cut, num_pieces, pieces
from jaxpipe.data.tokenizer import encode_documents
from jaxpipe.errors import InputError

KINDS = ("bytes", "json", "model")


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_is_text_alone_whatever_special_token_is_typed_in_it(kind, tokenizers_of):
    tokenizer = load_tokenizer(tokenizers_of[kind])
    typed = [b"a<|endoftext|>b", b"</s>", b"<s> <unk> <pad>", b"x </s> y"]
    for text, ids in zip(typed, tokenizer.encode(typed), strict=True):
        assert tokenizer.end_of_document not in ids
        assert ids.max() < tokenizer.vocab_size
        assert tokenizer.decode(ids).strip() == text.decode()
    row = encode_documents(tokenizer, typed)
    assert (row == tokenizer.end_of_document).sum() == len(typed)
    assert row[-1] == tokenizer.end_of_document


@pytest.mark.parametrize("kind", ["bytes", "json"])
@settings(max_examples=40, deadline=None)
@given(text=st.text(max_size=60))
def test_text_comes_back_from_its_ids(kind, text, tokenizers_of):
    tokenizer = load_tokenizer(tokenizers_of[kind])
    (ids,) = tokenizer.encode([text.encode("utf-8", "replace")])
    assert tokenizer.decode([*ids, tokenizer.end_of_document]) == text


def test_bytes_are_the_ids_they_always_were():
    tokenizer = load_tokenizer(None)
    assert (tokenizer.vocab_size, tokenizer.end_of_document) == (257, END_OF_DOCUMENT)
    row = encode_documents(tokenizer, [bytes(range(256)), b"\xff"])
    assert row.dtype == np.uint16
    assert row.tolist() == [*range(256), 256, 255, 256]
    assert tokenizer.decode([104, 105, 256, 255]) == "hi\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("kind", ["json", "model"])
def test_what_is_no_utf8_becomes_the_replacement_character(kind, tokenizers_of):
    tokenizer = load_tokenizer(tokenizers_of[kind])
    (ids,), (same,) = tokenizer.encode([b"a\xffb"]), tokenizer.encode(["a\ufffdb".encode()])
    assert ids.tolist() == same.tolist()


def test_the_end_of_a_document_is_named_found_beside_the_file_or_a_usual_one(tmp_path):
    file = tmp_path / "tokenizer.json"
    make_json(file, special=("<odd>", "<|im_end|>", "</s>", "<|endoftext|>"))
    end = {name: number for number, name in enumerate(("<odd>", "<|im_end|>", "</s>", "<|endoftext|>"))}
    assert load_tokenizer(str(file)).end_of_document == end["<|endoftext|>"]  # before </s> among the usual
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    beside = load_tokenizer(str(file), end_of_document="<odd>")
    assert beside.end_of_document == end["<odd>"]
    shutil.copy(file, tmp_path / "other.json")
    assert load_tokenizer(f"{tmp_path}/other.json").end_of_document == end["<|im_end|>"]
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    shutil.copy(file, tmp_path / "third.json")
    assert load_tokenizer(f"{tmp_path}/third.json").end_of_document == end["</s>"]


def test_a_tokenizer_that_ends_no_document_is_refused_with_what_to_give(tmp_path):
    make_json(tmp_path / "t.json", special=("<odd>",))
    with pytest.raises(InputError, match=r"its special tokens are <odd>, and none of .*</s>.*name one"):
        load_tokenizer(f"{tmp_path}/t.json")
    assert load_tokenizer(f"{tmp_path}/t.json", end_of_document="<odd>").end_of_document == 0
    with pytest.raises(InputError, match="has no token '<none>' to end a document"):
        load_tokenizer(f"{tmp_path}/t.json", end_of_document="<none>")


def test_an_ordinary_word_cannot_end_documents_if_text_gives_it(tokenizers_of):
    from sentencepiece import SentencePieceProcessor

    model = tokenizers_of["model"]
    word = SentencePieceProcessor(model).encode("the mat", out_type=str)[-1]
    tokenizer = load_tokenizer(model, end_of_document=word)
    with pytest.raises(InputError, match=f"makes '{word}', which is to end documents, from the text"):
        tokenizer.encode([b"on the mat"])


def test_truncation_and_padding_of_the_file_are_left_out(tmp_path, tokenizers_of):
    from tokenizers import Tokenizer

    loaded = Tokenizer.from_file(tokenizers_of["json"])
    loaded.enable_truncation(4)
    loaded.enable_padding(length=9, pad_id=0, pad_token="<|endoftext|>")
    loaded.save(f"{tmp_path}/t.json")
    texts = [b"z", b"abcdefghijklmnop"]
    ours, plain = load_tokenizer(f"{tmp_path}/t.json"), load_tokenizer(tokenizers_of["json"])
    for one, other in zip(ours.encode(texts), plain.encode(texts), strict=True):
        assert one.tolist() == other.tolist()


@pytest.mark.parametrize("package", ["tokenizers", "sentencepiece"])
def test_a_missing_package_is_named_with_how_to_install_it(package, tmp_path, monkeypatch):
    file = tmp_path / {"tokenizers": "a.json", "sentencepiece": "a.model"}[package]
    file.write_bytes(b"{}")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"needs the package {package}; pip install 'jaxpipe\[text\]'"):
        load_tokenizer(str(file))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none.json", "cannot be read: No such file"),
        ("a.json", "is no file of the tokenizers library"),
        ("a.model", "is no model of sentencepiece"),
        ("a.txt", "must be a .json file of tokenizers or a .model file of sentencepiece"),
    ],
)
def test_what_is_no_tokenizer_is_refused(name, said, tmp_path):
    for file in ("a.json", "a.model", "a.txt"):
        (tmp_path / file).write_bytes(b"nonsense")
    with pytest.raises(InputError, match=said):
        load_tokenizer(str(tmp_path / name))


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_pieces_are_the_document_cut_after_lines_or_between_characters(data):
    """However the pieces are shared out; a small PIECE would be another rule, so the texts are long."""
    unit = data.draw(st.sampled_from(["é", "a", "日本", "x\n", "line of text\n", "日" * 50_000 + "\n"]))
    length = data.draw(st.integers(0, 3 * PIECE))
    text = (unit * (length // len(unit.encode()) + 1)).encode()[:length].decode("utf-8", "ignore").encode()

    def read(start: int, stop: int) -> bytes:
        assert stop - start <= 2 * PIECE
        return text[start:stop]

    count = num_pieces(len(text))
    whole = list(pieces(read, 0, count, length=len(text)))
    assert b"".join(whole) == text
    assert all(0 < len(piece) <= 2 * PIECE for piece in whole)
    assert all(piece.endswith(b"\n") or b"\n" not in piece[-PIECE:] for piece in whole[:-1])
    for piece in whole:
        piece.decode()
    middle = data.draw(st.integers(0, count))
    shared = [*pieces(read, 0, middle, length=len(text)), *pieces(read, middle, count, length=len(text))]
    assert shared == whole
    assert cut(read, count, length=len(text)) == len(text)


def test_a_long_document_gives_the_ids_of_its_pieces_and_one_end(tokenizers_of):
    tokenizer = load_tokenizer(tokenizers_of["json"])
    text = b"".join(b"line %d\n" % number for number in range(PIECE // 5))
    row = encode_documents(tokenizer, [text, b"short"])
    assert len(text) > 2 * PIECE
    first = np.flatnonzero(row == tokenizer.end_of_document)[0]
    assert tokenizer.decode(row[:first]).encode() == text
    assert tokenizer.decode(row[first:]) == "short"


@pytest.mark.parametrize("end", [None, "</s>"])
def test_an_empty_model_is_none(tmp_path, end):
    (tmp_path / "empty.model").touch()
    with pytest.raises(InputError, match=r"empty\.model is no model of sentencepiece"):
        load_tokenizer(f"{tmp_path}/empty.model", end_of_document=end)
