"""Runs on prepared text and on mixtures: what a run reads is what it would read from the text itself."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from run_design import final_hash, metrics_of, resumed, run, timeless

from jaxpipe.config import Config
from jaxpipe.data import END_OF_DOCUMENT, load_corpus, validation_batches
from jaxpipe.data.prepare import Settings, prepare
from jaxpipe.errors import InputError
from jaxpipe.models.llama_stage import init_llama, llama_constants, llama_contract
from jaxpipe.pipeline import Batch as PipelineBatch
from jaxpipe.training.reference import reference_loss
from jaxpipe.training.resume import _changed
from jaxpipe.training.trainer import train


@pytest.fixture
def prepared(text: str, tmp_path: Path) -> str:
    """The text of the other runs as tokens, in several shards."""
    folder = tmp_path / "prepared"
    prepare([text], folder, settings=Settings(validation_fraction=0.2, unit_bytes=2000), workers=1)
    assert len(list(folder.glob("shards/*.training.tokens"))) > 1
    return str(folder)


def test_a_run_on_prepared_text_is_the_run_on_the_text_itself_to_the_bit(make_config, prepared):
    from_text = make_config("text", train__num_steps=2, train__eval_every=2)
    from_tokens = make_config("tokens", train__num_steps=2, train__eval_every=2, data__path=prepared)
    assert run(from_text) == run(from_tokens)
    assert timeless(from_text) == timeless(from_tokens)


def test_a_mixture_is_resumed_to_the_bit_says_what_it_is_and_keeps_its_weights(
    make_config, prepared, text, capsys
):
    mixed = {"data__path": [prepared, text], "data__weights": [3.0, 1.0], "pipeline__schedule": "gpipe"}
    whole = make_config("whole", train__num_steps=4, optimizer__decay_steps=4, **mixed)
    parts = make_config("parts", train__num_steps=2, optimizer__decay_steps=4, **mixed)
    run(whole)
    said = capsys.readouterr().out
    assert f"75.0% {prepared}, 25.0% {text}" in " ".join(said.split())
    assert "bytes, 257 ids, 256 ends a document" in said
    assert "not isolated" in said
    run(parts)
    with pytest.raises(InputError, match=r"data\.weights was \[3\.0, 1\.0\] and is \[1\.0, 1\.0\]"):
        train(resumed(parts, train={"num_steps": 4}, data={"weights": (1.0, 1.0)}))
    with pytest.raises(InputError, match=r"data\.isolate_documents was False and is True"):
        train(resumed(parts, train={"num_steps": 4}, data={"isolate_documents": True}))
    assert run(resumed(parts, train={"num_steps": 4})) == final_hash(whole)


def test_a_damaged_shard_ends_the_run_with_file_and_offset(make_config, prepared):
    """Its size is right, so only the read token shows it."""
    for file in Path(prepared).glob("shards/*.training.tokens"):
        file.write_bytes(b"\xff" * file.stat().st_size)
    with pytest.raises(InputError, match=r"id 65535 at token [\d,]+ of .*training\.tokens is .*damaged"):
        train(make_config("damaged", data__path=prepared))


def test_a_run_of_before_these_keys_had_their_defaults():
    saved = {"data": {"path": "a", "validation_fraction": 0.05}, "run": {"seed": 1}}
    wanted = {
        "data": {"path": "a", "validation_fraction": 0.05, "tokenizer": None, "isolate_documents": False},
        "run": {"seed": 1},
    }
    assert _changed(saved, wanted) == {}
    wanted["data"]["isolate_documents"] = True
    assert _changed(saved, wanted) == {"data.isolate_documents": (False, True)}
    del saved["data"]["validation_fraction"]
    assert _changed(saved, wanted)["data.validation_fraction"] == (None, 0.05)


@pytest.mark.parametrize("mesh", [{}, {"mesh__dp": 2, "mesh__pp": 2}], ids=["pp 4", "dp 2 x pp 2"])
def test_the_loss_of_isolated_documents_is_that_of_each_document_alone(make_config, text, mesh):
    """The first evaluation, before any step; 1e-5 as everywhere. Without isolation it is another one."""
    isolated, packed = (
        make_config(
            name,
            train__num_steps=1,
            train__eval_every=1,
            data__isolate_documents=is_isolated,
            model__initializer_range=0.3,
            **mesh,
        )
        for name, is_isolated in (("isolated", True), ("packed", False))
    )
    assert run(isolated) != run(packed)
    found, other = (metrics_of(config)[0]["eval_loss"] for config in (isolated, packed))
    expected = loss_of_each_document_alone(isolated, text)
    assert found == pytest.approx(expected, rel=1e-5)
    assert abs(other - expected) > 1e-3 * expected


def loss_of_each_document_alone(config: Config, text: str) -> float:
    """By the un-pipelined reference: each document, or what of it lies in a sample, in one of its own."""
    corpus = load_corpus(text, validation_fraction=0.2)
    batches = validation_batches(
        corpus.validation, sequence_length=16, batch_size=8, num_batches=config.train.eval_batches
    )
    tokens, labels = [], []
    for batch in batches:
        for sample, wanted in zip(batch["tokens"], batch["labels"], strict=True):
            begin = 0
            for index in range(16):
                if index == 15 or sample[index] == END_OF_DOCUMENT:
                    part = slice(begin, index + 1)
                    rest = 16 - (index + 1 - begin)
                    tokens.append(np.pad(sample[part], (0, rest)))
                    kept = np.where(sample[part] == END_OF_DOCUMENT, -100, wanted[part])
                    labels.append(np.pad(kept, (0, rest), constant_values=-100))
                    begin = index + 1
    contract, constants = llama_contract(config.model, "einsum"), llama_constants(config.model, 16)
    batch = PipelineBatch(jnp.asarray(np.stack(tokens))[None], jnp.asarray(np.stack(labels))[None], {})
    loss, num_tokens = reference_loss(contract, init_llama(config.model, config.run.seed), batch, constants)
    return float(loss / num_tokens)
