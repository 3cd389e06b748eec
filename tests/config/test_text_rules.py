"""Text, tokenizer and model fit each other, which is told before JAX starts."""

import pytest

from jaxpipe.config import parse
from jaxpipe.data.prepare import Settings, prepare

LETTERS = "tests/config/letters.json"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of letters; b (1), [UNK] (2) and <eos> (3) stand in it, <stop> (4) does not."""
    folder = tmp_path_factory.mktemp("prepared")
    for name in ("1.txt", "2.txt", "3.txt"):
        (folder / name).write_text("a b z")
    prepare([f"{folder}/*.txt"], folder / "out", tokenizer=LETTERS, settings=Settings(), workers=1)
    return f"{folder}/out"


def test_the_model_must_hold_the_vocabulary_and_the_first_id_outside_is_named(prepared, refuse, write_yaml):
    said = refuse(write_yaml({"data.path": prepared, "model.vocab_size": 3}))
    assert "model.vocab_size=3 must be at least 5: the vocabulary of letters.json has so many ids" in said
    assert "; id 3 at token " in said
    assert "00000.training.tokens is outside the vocabulary of model.vocab_size=3; use at least 4" in said
    assert "1 fault in" in said
    said = refuse(write_yaml({"data.tokenizer": LETTERS, "model.vocab_size": 4}))
    assert "model.vocab_size=4 must be at least 5: the vocabulary of letters.json has so many ids" in said
    for changes in ({"data.path": prepared}, {"data.tokenizer": LETTERS}):
        parse([write_yaml({**changes, "model.vocab_size": 5}), "--dry-run"])


def test_all_that_is_wrong_with_the_text_is_told_at_once(prepared, refuse, write_yaml):
    said = refuse(
        write_yaml(
            {
                "data.path": [prepared, "pyproject.toml"],
                "data.weights": [1.0, 0.0, 2.0],
                "data.validation_fraction": 0.5,
                "data.tokenizer": "none.json",
            }
        )
    )
    assert "pyproject.toml is none of .txt" in said
    assert "must have as many weights as data.path has entries, 2" in said
    assert "must be finite and above 0" in said
    assert f"data.validation_fraction=0.5 is not 0.05, with which {prepared} was prepared" in said
    assert "data.tokenizer: the tokenizer none.json cannot be read: No such file or directory" in said


def test_the_token_that_ends_documents_needs_a_tokenizer_that_has_it(refuse, write_yaml):
    said = refuse(write_yaml({"data.end_of_document": "<eos>"}))
    assert "data.tokenizer: bytes have a token of their own that ends a document, not '<eos>'" in said
    said = refuse(write_yaml({"data.tokenizer": LETTERS, "data.end_of_document": "<none>"}))
    assert "has no token '<none>' to end a document" in said


def test_a_configuration_of_before_keeps_its_meaning(write_yaml):
    config = parse([write_yaml({"data.validation_fraction": 0.05}), "--dry-run"]).config
    assert config.data.validation_fraction == 0.05
    assert (config.data.tokenizer, config.data.weights, config.data.isolate_documents) == (None, None, False)
