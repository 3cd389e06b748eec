"""Layers lie where the placement says: each once, in order, and the way back is exact."""

import itertools

import jax
import jax.numpy as jnp
import mlp
import numpy as np
import pytest
from programs import assert_same_bits, make_mesh

from jaxpipe.pipeline import Layout, balanced_layers, to_canonical_layout, to_stage_layout
from jaxpipe.pipeline.sharding import UNSHARDED, stage_shardings
from jaxpipe.schedules import Placement, looped, v_shaped

PLACEMENTS = [
    (looped(1), (3,)),
    (looped(4), (1, 1, 1, 1)),
    (looped(4), (3, 1, 2, 1)),
    (looped(2, 2), (1, 1, 1, 1)),
    (looped(2, 3), (2, 1, 1, 3, 1, 1)),
    (v_shaped(2), (1, 2, 1, 3)),
    (v_shaped(4), (1,) * 8),
]

SIZES = list(itertools.product(range(1, 41), range(1, 9), range(1, 5)))
"""Layers, ranks, chunks."""


def test_stages_cover_all_layers_once_and_in_order() -> None:
    for num_layers, num_ranks, num_chunks in SIZES:
        placement = looped(num_ranks, num_chunks)
        if num_layers < placement.num_stages:
            with pytest.raises(ValueError, match=f"{num_layers} layers cannot fill {placement.num_stages} "):
                balanced_layers(num_layers, placement.num_stages)
            continue
        layout = Layout(placement, balanced_layers(num_layers, placement.num_stages), vocab_size=7)
        assert layout.num_layers == num_layers
        assert max(layout.layers_per_stage) - min(layout.layers_per_stage) <= 1
        positions = layout.positions()
        assert len({tuple(position) for position in positions}) == num_layers
        counts = layout.layers_of_chunk()
        assert counts.sum() == num_layers
        # walking the stages, in each the layers from first to last, meets the positions in order
        walk = [
            (placement.rank(stage), placement.chunk(stage), index)
            for stage in range(placement.num_stages)
            for index in range(counts[placement.rank(stage), placement.chunk(stage)])
        ]
        assert [tuple(position) for position in positions] == walk


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "expected"),
    [
        (10, 4, (3, 3, 2, 2)),
        (8, 4, (2, 2, 2, 2)),
        (3, 3, (1, 1, 1)),
        (126, 16, (8,) * 14 + (7,) * 2),
        (10, 3, (4, 3, 3)),
    ],
)
def test_the_longer_stages_come_first(num_layers: int, num_stages: int, expected: tuple[int, ...]) -> None:
    assert balanced_layers(num_layers, num_stages) == expected


def make_layout(placement: Placement, layers_per_stage: tuple[int, ...]) -> Layout:
    return Layout(placement, layers_per_stage, mlp.VOCAB_SIZE)


@pytest.mark.parametrize(("placement", "layers_per_stage"), PLACEMENTS)
@pytest.mark.parametrize("tied", [False, True])
def test_the_way_there_and_back_changes_no_bit(
    placement: Placement, layers_per_stage: tuple[int, ...], tied: bool
) -> None:
    layout = make_layout(placement, layers_per_stage)
    params = mlp.make_params(sum(layers_per_stage), tied=tied)
    staged = to_stage_layout(params, layout)
    assert_same_bits(to_canonical_layout(staged, layout), params)
    padded = layout.padded_vocab_size
    assert {leaf.shape[0] for leaf in jax.tree.leaves(staged["layers"])} == {placement.num_ranks}
    assert {staged[group].shape[0] for group in ("embedding", "head") if group in staged} == {padded}


@pytest.mark.parametrize(("placement", "layers_per_stage"), PLACEMENTS)
def test_each_layer_lies_with_its_stage_and_the_rest_is_zero(
    placement: Placement, layers_per_stage: tuple[int, ...]
) -> None:
    layout = make_layout(placement, layers_per_stage)
    params = mlp.make_params(sum(layers_per_stage))
    params["layers"]["small"]["scale"] = 1.0 + jnp.arange(sum(layers_per_stage))[:, None] * jnp.ones((1, 8))
    scale = np.array(to_stage_layout(params, layout)["layers"]["small"]["scale"][..., 0])
    number = 1.0
    for stage, count in enumerate(layers_per_stage):
        place = placement.rank(stage), placement.chunk(stage)
        np.testing.assert_array_equal(scale[place][:count], number + np.arange(count))
        np.testing.assert_array_equal(scale[place][count:], 0)
        number += count


def test_layers_and_vocabulary_are_sharded_over_the_ranks() -> None:
    layout = make_layout(looped(4), (2, 1, 1, 1))
    staged = to_stage_layout(mlp.make_params(5), layout)
    placed = jax.device_put(staged, stage_shardings(staged, make_mesh(dp=2, pp=4), UNSHARDED))
    for path, leaf in jax.tree.leaves_with_path(placed):
        name = jax.tree_util.keystr(path)
        own = leaf.addressable_shards[0].data
        share = 1 if name.startswith("['final']") else 4
        assert own.shape == (leaf.shape[0] // share, *leaf.shape[1:]), name
