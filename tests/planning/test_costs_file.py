"""The file of measured costs comes back as it was, and says all that is wrong with it."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from jaxpipe.config.sections import TrainConfig
from jaxpipe.errors import InputError
from jaxpipe.planning.costs_file import (
    DTYPES,
    REMATS,
    ActionSeconds,
    MeasuredCosts,
    action_seconds,
    read_costs,
    to_text,
)

COSTS = MeasuredCosts(
    platform="cpu",
    device_kind="cpu",
    num_devices=4,
    model={"hidden_size": 256},
    compute_dtype="float32",
    sequence_length=128,
    tokens=256,
    tp=1,
    stage_layers=3,
    layer=dict.fromkeys(REMATS, ActionSeconds(1.0, 2.0, 3.0, 5.0, 1.0)),
    stage=dict.fromkeys(REMATS, ActionSeconds(2.0, 6.0, 9.0, 14.0, 2.5)),
    head=0.5,
    embedding=0.0,
    message_bytes=1024,
    transfer=0.1,
    tick=0.01,
    update_per_parameter=1e-9,
    sharing=(1.0, 1.1),
)


def test_costs_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(to_text(COSTS))
    assert read_costs(path) == COSTS


def test_other_lengths_lie_on_the_line_through_a_layer_and_a_stage() -> None:
    assert action_seconds(COSTS, "F", remat="full", num_layers=5) == 3.0  # 1 and half a second more for each
    assert action_seconds(COSTS, "B", remat="none", num_layers=3) == 6.0
    alone = replace(COSTS, stage_layers=1)
    assert action_seconds(alone, "F", remat="full", num_layers=4) == 4.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tokens": 2.5}, "tokens=2.5 must be a whole number"),
        ({"transfer": -1}, "transfer=-1 must be a number of seconds"),
        ({"tick": True}, "tick=True must be a number of seconds"),
        ({"head": 1e300}, r"head=1e\+300 must be a number of seconds from 0 to 1e\+06"),
        ({"head": 1e-12}, "head=1e-12 must be 0, or at least 1e-09 seconds"),
        ({"message_bytes": 10**400}, r"message_bytes=10*\.\.\. must be a whole number"),
        ({"device_kind": None, "platform": 5}, "platform=5 must be a name; device_kind=None must be a name"),
        ({"sharing": []}, r"sharing=\[\] must be a list of positive numbers"),
        ({"layer": {}}, "layer.full must hold B, BW, F, R, W; layer.selective"),
        ({"format": "other"}, "is no file of costs"),
        ({"model": {"hidden_size": 0}}, "model.hidden_size=0 must be a whole number of at least 1"),
        (
            {"model": {"vocab_size": -4, "head_dim": 2.5}},
            "model.vocab_size=-4 must be.*; model.head_dim=2.5 must be",
        ),
        ({"model": {"num_hidden_layers": None}}, "model.num_hidden_layers=None must be a whole number"),
        ({"model": {"width": 8}}, "model.'width' is no size of a Llama; take it out"),
        ({"compute_dtype": "int8"}, "compute_dtype='int8' must be one of float32, bfloat16"),
        ({"compute_dtype": ["float32"]}, "compute_dtype=.'float32'. must be one of float32, bfloat16"),
        ({"colour": 1, "tokens": 0}, "'colour' is no field of it; take it out; tokens=0 must be"),
    ],
)
def test_a_broken_file_is_refused_with_what_is_wrong(
    change: dict[str, object], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(json.loads(to_text(COSTS)) | change))
    with pytest.raises(InputError, match=f"{re.escape(str(path))}.*{said}"):
        read_costs(path)


def test_types_are_those_that_a_run_may_compute_in() -> None:
    assert get_args(get_type_hints(TrainConfig)["compute_dtype"]) == DTYPES


def test_sizes_that_follow_from_others_may_be_null(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    model = {"num_attention_heads": 4, "num_key_value_heads": None, "head_dim": None}
    path.write_text(to_text(replace(COSTS, model=model)))
    assert read_costs(path).model == model


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_costs(tmp_path / "missing.json")
    path = tmp_path / "text"
    path.write_text("no json")
    with pytest.raises(InputError, match="is no JSON"):
        read_costs(path)
    path.write_text("[" * 100_000)
    with pytest.raises(InputError, match="is no JSON"):
        read_costs(path)
    path.write_text('{"format": "jaxpipe costs 1"}')
    with pytest.raises(InputError, match="lacks platform, device_kind"):
        read_costs(path)
