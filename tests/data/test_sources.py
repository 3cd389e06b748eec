"""What a run reads: text, prepared folders, or both; as one row, or by weights."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tiny_tokenizers import make_json

from jaxpipe.data import Batches, find_tokenizer, load_corpus, load_tokenizer, open_sources
from jaxpipe.data.prepare import Settings, prepare
from jaxpipe.data.rows import Row
from jaxpipe.data.sources import fraction_faults, path_faults, weight_faults
from jaxpipe.errors import InputError


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Texts a and b, each also prepared as bytes: a.out and b.out."""
    for name, count in (("a", 30), ("b", 12)):
        (tmp_path / name).mkdir()
        for number in range(count):
            (tmp_path / name / f"{number:02}.txt").write_text(f"{name} {number} " * 20)
        prepare(
            [f"{tmp_path}/{name}"], tmp_path / f"{name}.out", settings=Settings(unit_bytes=900), workers=1
        )
    return tmp_path


def tokens(row: Row) -> list[int]:
    return [int(number) for part in row.parts for number in part.tokens]


def test_text_alone_is_what_load_corpus_reads_in_the_order_it_always_had(folders):
    paths = [f"{folders}/b", f"{folders}/a"]
    corpus, sources = load_corpus(paths), open_sources(paths, vocab_size=257)
    (training,), (validation,) = sources.training, sources.validation
    assert tokens(training) == corpus.training.tolist()
    assert tokens(validation) == corpus.validation.tolist()
    assert sources.summary == corpus.summary
    arguments = {"sequence_length": 16, "batch_size": 4, "seed": 3}
    one, other = Batches(training, **arguments), Batches(corpus.training, **arguments)
    assert one.get_state() == other.get_state()
    np.testing.assert_array_equal(next(one)["tokens"], next(other)["tokens"])


def test_prepared_folders_follow_each_other_in_the_order_of_the_list(folders):
    a, b = (load_corpus(f"{folders}/{name}") for name in "ab")
    opened = open_sources([f"{folders}/b.out", f"{folders}/a.out"], vocab_size=257)
    assert tokens(opened.training[0]) == [*b.training.tolist(), *a.training.tolist()]
    assert tokens(opened.validation[0]) == [*b.validation.tolist(), *a.validation.tolist()]
    both = open_sources([f"{folders}/a.out", f"{folders}/b"], vocab_size=257)
    assert tokens(both.training[0]) == [*a.training.tolist(), *b.training.tolist()]


def test_with_weights_each_entry_is_a_source_of_its_own(folders):
    opened = open_sources([f"{folders}/a.out", f"{folders}/b"], weights=(3, 1), vocab_size=257)
    assert [row.name for row in opened.training] == [f"{folders}/a.out", f"{folders}/b"]
    assert tokens(opened.training[1]) == load_corpus(f"{folders}/b").training.tolist()
    assert opened.weights == (3, 1)


def test_the_digest_of_prepared_text_reads_no_file_and_changes_with_any_shard(folders, monkeypatch):
    first = open_sources(f"{folders}/a.out", vocab_size=257).training[0].digest
    again = open_sources(f"{folders}/a.out", vocab_size=257)
    monkeypatch.setattr(np, "memmap", None)
    assert again.training[0].digest == first
    assert first != open_sources(f"{folders}/b.out", vocab_size=257).training[0].digest


def test_a_run_has_one_tokenizer_and_those_that_differ_are_named(folders, tokenizers_of):
    file = tokenizers_of["json"]
    prepare([f"{folders}/a"], folders / "c.out", tokenizer=file, workers=1)
    copy = find_tokenizer(f"{folders}/c.out", None, None)
    assert (copy.digest, copy.end_of_document) == (load_tokenizer(file).digest, 0)
    assert copy.files[0].parent == folders / "c.out" / "tokenizer"
    assert find_tokenizer([f"{folders}/b", f"{folders}/c.out"], None, None) == copy
    assert find_tokenizer(f"{folders}/c.out", file, None).digest == copy.digest
    with pytest.raises(InputError, match=r"c\.out was prepared with tokenizer\.json .*a\.out is bytes"):
        find_tokenizer([f"{folders}/a.out", f"{folders}/c.out"], None, None)
    make_json(folders / "other.json", vocab_size=300)
    with pytest.raises(InputError, match=r"one tokenizer, but .*c\.out .*other\.json is other\.json"):
        find_tokenizer(f"{folders}/c.out", f"{folders}/other.json", None)
    with pytest.raises(InputError, match=r"with '<\|endoftext\|>' between documents, not with 'x'"):
        find_tokenizer(f"{folders}/c.out", None, "x")
    shutil.copy(folders / "other.json", folders / "c.out" / "tokenizer" / "tokenizer.json")
    with pytest.raises(InputError, match=r"is not the tokenizer that .* was prepared with"):
        find_tokenizer(f"{folders}/c.out", None, None)


def test_text_is_read_with_the_tokenizer_of_the_prepared_text_beside_it(folders, tokenizers_of):
    file = tokenizers_of["model"]
    prepare([f"{folders}/a"], folders / "c.out", tokenizer=file, workers=1)
    opened = open_sources([f"{folders}/c.out", f"{folders}/b"], weights=(1, 1), vocab_size=400)
    expected = load_corpus(f"{folders}/b", tokenizer=load_tokenizer(file)).training
    assert tokens(opened.training[1]) == expected.tolist()
    assert opened.training[1].end_of_document == load_tokenizer(file).end_of_document


def test_an_id_outside_the_model_is_named_with_file_and_offset_in_text_and_prepared(folders):
    with pytest.raises(InputError, match=r"id 256 at token \d+ of .*00000\.training\.tokens is outside"):
        open_sources(f"{folders}/a.out", vocab_size=256)
    with pytest.raises(InputError, match=r"id 256 at token \d+ of the training text is outside"):
        open_sources(f"{folders}/a", vocab_size=256)


def test_a_folder_that_is_not_whole_is_refused_with_the_remedy(folders):
    shard = folders / "a.out" / "shards" / "00001.training.tokens"
    content = shard.read_bytes()
    shard.write_bytes(content[:-2])
    (fault,) = path_faults(f"{folders}/a.out")
    assert f"00001.training.tokens has {len(content) - 2:,} bytes instead of {len(content):,}" in fault
    shard.unlink()
    (fault,) = path_faults(f"{folders}/a.out")
    assert "00001.training.tokens cannot be read (No such file or directory); bring it back" in fault
    (folders / "b.out" / "manifest.json").unlink()
    (fault,) = path_faults(f"{folders}/b.out")
    assert "is not prepared to its end; run the same `jaxpipe data prepare` again" in fault


@pytest.mark.parametrize("file", ["00000.validation.tokens", "00000.training.ends", "00000.validation.ends"])
def test_every_file_of_a_folder_must_be_there_before_a_run_starts(folders, file):
    files = sorted(path.name for path in (folders / "a.out" / "shards").iterdir())
    name = next(name for name in files if name.partition(".")[2] == file.partition(".")[2])
    (folders / "a.out" / "shards" / name).unlink()
    (fault,) = path_faults(f"{folders}/a.out")
    assert f"{name} cannot be read" in fault


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dtype": "foo"}, "its dtype is 'foo'"),
        ({"dtype": 7}, "its dtype is 7"),
        ({"tokenizer_file": 5}, "its tokenizer_file is 5"),
        ({"vocab_size": True}, "its vocab_size is True"),
        ({"shards": []}, "its shards must be of training and validation"),
        ({"shards": [{"tokens": "x"}]}, "its tokens is 'x'"),
        ({"shards": [{"tokens": -1}]}, "its tokens is -1"),
        ({"shards": [{"largest_id": "a"}]}, "its largest_id is 'a'"),
        ({"shards": [{"side": "foo"}]}, "its shards must be of training and validation"),
    ],
)
def test_a_manifest_with_a_value_of_another_kind_is_refused(folders, change, said):
    file = folders / "a.out" / "manifest.json"
    values = json.loads(file.read_text())
    shards = change.get("shards")
    if shards:
        change = {"shards": [values["shards"][0] | shards[0], *values["shards"][1:]]}
    file.write_text(json.dumps(values | change))
    (fault,) = path_faults(f"{folders}/a.out")
    assert "is no manifest of prepared data" in fault
    assert said in fault


def test_a_folder_that_is_given_twice_is_refused(folders):
    (fault,) = path_faults((f"{folders}/a.out", f"{folders}/../{folders.name}/a.out"))
    assert "a.out is given 2 times; name it once, and weigh it with data.weights" in fault


def test_weights_and_shares_that_do_not_fit_are_told(folders):
    pair = (f"{folders}/a", f"{folders}/b.out")
    assert not list(weight_faults(pair, (1, 2.5)))
    assert not list(weight_faults(None, (1,)))
    (fault,) = weight_faults(pair, (1,))
    assert fault == "data.weights=[1] must have as many weights as data.path has entries, 2"
    for weight in (0, -1, float("nan"), float("inf")):
        assert "must be finite and above 0" in next(weight_faults(pair, (1, weight)))
    (fault,) = fraction_faults(pair, 0.1)
    assert fault.startswith(
        f"data.validation_fraction=0.1 is not 0.05, with which {folders}/b.out was prepared"
    )
    assert not list(fraction_faults(pair, None, evaluates=True))
    prepare([f"{folders}/a"], folders / "c.out", settings=Settings(validation_fraction=0), workers=1)
    (fault,) = fraction_faults(f"{folders}/c.out", None, evaluates=True)
    assert "leaves no text for evaluations; use train.eval_every=0" in fault
