"""YAML: what is written is read back, and what is no configuration is refused with its line."""

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxpipe.config import Config, from_yaml, parse, to_yaml
from jaxpipe.config.keys import assemble, flatten, keys
from jaxpipe.config.values import convert
from jaxpipe.config.yaml_file import read_yaml
from jaxpipe.errors import InputError

PRESETS = ["tiny", "small", "llama3_8b", "bench"]


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Any configuration of the right types, sensible or not."""
    texts = st.text(st.characters(exclude_categories=["Cs"]))
    numbers = st.floats(allow_nan=False)
    with_scaling = draw(st.booleans())
    values = {}
    for path, key in keys().items():
        if path.startswith("model.rope_scaling.") and not with_scaling:
            continue
        strategy = st.from_type(key.hint)
        if key.hint in (float, float | None):
            strategy = numbers if key.hint is float else st.none() | numbers
        elif key.hint == tuple[float, ...] | None:
            strategy = st.none() | st.lists(numbers).map(tuple)
        elif key.hint in (str, str | None):
            strategy = texts if key.hint is str else st.none() | texts
        elif key.hint in (int, int | None):
            whole = st.integers(-(10**16), 10**16)
            strategy = whole if key.hint is int else (st.none() | whole)
        values[path] = draw(strategy)
    if values.get("pipeline.layers_per_stage"):
        values["pipeline.layers_per_stage"] = tuple(
            count % 100 for count in values["pipeline.layers_per_stage"]
        )
    values["pipeline.transfer_ticks"] = draw(st.sampled_from([1, 2]))
    values["data.path"] = draw(st.none() | texts | st.lists(texts).map(tuple))
    return assemble(values)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(config=configs())
def test_what_to_yaml_writes_reads_back_as_an_equal_configuration(config):
    source = read_yaml(to_yaml(config), name="text")
    assert source.faults == ()
    read = {
        item.path: convert(item.value, keys()[item.path].hint)
        for item in source.assignments
        if item.path in keys()
    }
    assert read == flatten(config)
    assert assemble(read) == config


@pytest.mark.parametrize("preset", PRESETS)
def test_each_preset_is_right_and_survives_a_round_trip(preset):
    config = parse([f"configs/{preset}.yaml", "--dry-run"]).config
    again = from_yaml(to_yaml(config))
    assert again == config
    assert hash(again) == hash(config)


def test_llama3_8b_has_the_shapes_of_llama_3_1_8b():
    model = parse(["configs/llama3_8b.yaml", "--dry-run"]).config.model
    heads = model.hidden_size // model.num_attention_heads
    layer = (
        2 * model.hidden_size * model.hidden_size
        + 2 * model.hidden_size * heads * model.num_key_value_heads
        + 3 * model.hidden_size * model.intermediate_size
        + 2 * model.hidden_size
    )
    total = layer * model.num_hidden_layers + 2 * model.vocab_size * model.hidden_size + model.hidden_size
    assert total == 8_030_261_248  # as published on the model card's safetensors header
    assert math.isclose(model.rope_theta, 500_000)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("model:\n  vocab_size: [1\ntrain: 2", "3:6", "malformed YAML"),
        ("model:\n\tvocab_size: 1", "2:1", "malformed YAML"),
        ("a: b: c", "1:5", "malformed YAML"),
        ("train: {num_steps: 1", "", "malformed YAML"),
        ('train: "x', "", "malformed YAML"),
        ("train: &x {num_steps: 1}\nmodel: *x", "1:8", "anchors and aliases are not read"),
        ("train: !!python/object:os.system {}", "1:8", "tags are not read"),
        ("a: 1\n---\nb: 2", "2:1", "malformed YAML"),
        ("- a\n- b", "1", "a configuration is a mapping of sections"),
        ("just words", "1", "a configuration is a mapping of sections"),
        ("model: \x01", "", "malformed YAML"),
        ("a: " + "[" * 5000, "1:23", "nested more than 20 deep"),
        ("a: " + "[" * 5000 + "]" * 5000, "1:23", "nested more than 20 deep"),
        ("a: " + "{b: " * 900 + "}" * 900, "1:", "nested more than 20 deep"),
    ],
)
def test_malformed_yaml_is_one_fault_with_its_line_and_column(text, line, said, tmp_path, refuse):
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    err = refuse(str(file))
    assert f"{file}:{line}" in err if line else str(file) in err
    assert said in err
    assert "train.py: 1 fault in the configuration" in err


def test_a_key_that_is_no_name_is_refused(tmp_path, refuse):
    (tmp_path / "bad.yaml").write_text("train:\n  ? [1, 2]\n  : 3")
    assert "bad.yaml:2: a key must be a name, found a list or mapping" in refuse(str(tmp_path / "bad.yaml"))


def test_bytes_that_are_no_text_are_malformed(tmp_path, refuse):
    (tmp_path / "bad.yaml").write_bytes(b"model:\n  \xff\xfe: 3")
    assert "malformed YAML" in refuse(str(tmp_path / "bad.yaml"))


def test_a_missing_file_is_one_fault(tmp_path, refuse):
    err = refuse(str(tmp_path / "none.yaml"))
    assert "train.py: 1 fault in the configuration" in err
    assert f"there is no file {tmp_path}/none.yaml" in err
    assert "cannot be read" in refuse(str(tmp_path))


def test_duplicate_keys_and_sections_name_both_lines(tmp_path, refuse):
    file = tmp_path / "twice.yaml"
    file.write_text("train:\n  num_steps: 1\n  num_steps: 1\nmesh:\n  pp: 4\ntrain:\n  eval_every: 0\n")
    err = refuse(str(file))
    assert f"{file}:3: train.num_steps is given twice, first on line 2" in err
    assert f"{file}:6: train is given twice, first on line 1" in err


def test_an_empty_file_lacks_every_key_that_has_no_default(tmp_path, refuse):
    file = tmp_path / "empty.yaml"
    file.write_text("# nothing\n")
    err = refuse(str(file))
    for path in ("model.hidden_size", "data.sequence_length", "train.num_steps", "optimizer.learning_rate"):
        assert f"{path} is missing; give it a " in err
    assert "mesh" not in err


def test_from_yaml_tells_all_faults_in_one_error():
    with pytest.raises(InputError, match=r"(?s)saved:2: train\.num_stepz.*model\.vocab_size is missing"):
        from_yaml("train:\n  num_stepz: 3\n", name="saved")
