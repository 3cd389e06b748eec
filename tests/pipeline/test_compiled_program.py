"""What XLA made of a step: an idle tick costs two messages, and nothing grows with the microbatches.

Read from the text of the compiled program, since XLA is what moves work out of loops and copies buffers
(design, section 5: the trap of these loops).
"""

import re
from collections import Counter
from functools import cache
from typing import NamedTuple

import chex
import hlo
import jax
import jax.numpy as jnp
import mlp
import pytest
from programs import AS_ALWAYS, Step, compile_step, make_program

from jaxpipe.lowering import lower
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.models.llama_stage import init_llama, llama_constants, llama_contract
from jaxpipe.pipeline import (
    Batch,
    Settings,
    StageContract,
    Tree,
    buffer_shapes,
    device_dimension,
    ends,
    loops,
    make_empty_slots,
    make_loss_and_gradients,
    make_loss_and_gradients_in_slots,
    to_stage_layout,
)
from jaxpipe.pipeline.buffers import Slots
from jaxpipe.pipeline.remat import Remat
from jaxpipe.schedules import build, with_recompute

SAME_HLO = {"xla_backend_optimization_level": 0}
"""All that XLA does to the program itself stays on; what is off is LLVM, which works on single kernels."""

NUM_RANKS = 4

MOVES_NOTHING = ("tuple", "get-tuple-element", "parameter", "bitcast", "constant", "while")


class Model(NamedTuple):
    """A model whose every kernel and buffer is larger than a message, so that size tells what is touched."""

    contract: StageContract
    params: Tree
    batch: Batch
    constants: Tree


def mlp_model(num_layers: int) -> Model:
    return Model(mlp.CONTRACT, mlp.make_params(num_layers), mlp.make_batch(8, batch=1), mlp.make_constants())


def llama_model(num_layers: int) -> Model:
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=20,
        num_hidden_layers=num_layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=6,
    )
    tokens = jnp.zeros((8, 1, 8), jnp.int32)
    contract, constants = llama_contract(config, "einsum"), llama_constants(config, 8)
    return Model(contract, init_llama(config, 0), Batch(tokens, tokens, {}), constants)


MODELS = {"mlp": mlp_model, "llama": llama_model}


@cache
def compiled(
    model: str,
    num_layers: int,
    schedule: str,
    fuse_backward: bool,
    transfer_ticks: int,
    remat: Remat = "full",
    untied: bool = False,
) -> Step:
    """``untied`` serves only to keep apart what the cache holds."""
    contract, params, batch, constants = MODELS[model](num_layers)
    name, _, recompute = schedule.partition(" ")
    order = build(name, num_ranks=NUM_RANKS, num_microbatches=8)
    table = lower(
        with_recompute(order) if recompute else order,
        transfer_ticks=transfer_ticks,
        fuse_backward=fuse_backward,
    )
    program = make_program(contract, table, params, settings=Settings(remat=remat))
    return compile_step(program, params, batch, constants, options=SAME_HLO)


def faults(step: Step, model: Model) -> list[str]:
    """What a tick does outside its inner loops and should not, and each copy of a whole buffer anywhere."""
    computations = hlo.parse(step.compiled.as_text())
    tick = hlo.tick_body(computations)
    staged = to_stage_layout(model.params, step.program.layout)
    buffers = buffer_shapes(step.program, staged, model.batch, model.constants)
    columns = hlo.Shape("s32", step.program.table.ends.head.shape)  # of which a tick reads one row
    found = []
    for _, instruction in hlo.reachable(computations, tick, into_loops=False):
        if instruction.opcode in ("dot", "convolution", "custom-call", *hlo.COLLECTIVES):
            found.append(f"{instruction.opcode} on every tick: {instruction.line}")
    for instruction in computations[tick].values():
        if instruction.opcode in MOVES_NOTHING:
            continue
        made = [shape for shape in instruction.shapes if shape.size > buffers.message.size]
        read = [
            shape
            for operand in instruction.operands
            for shape in computations[tick][operand].shapes
            if shape.size > buffers.message.size and shape != columns
        ]
        is_inbox = {shape.dims for shape in made + read} == {buffers.inbox.shape}
        if (made or read) and not (
            is_inbox and (not made or hlo.updates_in_place(computations, instruction))
        ):
            found.append(f"a buffer touched on every tick: {instruction.line}")
    large = {leaf.shape for leaf in jax.tree.leaves(buffers) if leaf.size > buffers.message.size}
    for _, instruction in hlo.reachable(computations, tick, into_loops=True):
        if instruction.opcode == "copy" and instruction.shapes[0].dims in large:
            found.append(f"a copy of a whole buffer: {instruction.line}")
    return found


PROGRAMS = [
    ("mlp", 4, "1f1b", True, 1),
    ("mlp", 4, "1f1b", False, 1),
    ("mlp", 4, "zb_h1", False, 1),
    ("mlp", 8, "1f1b", True, 2),
    ("mlp", 8, "1f1b", False, 1),
    ("mlp", 8, "zb_h1", False, 2),
    ("mlp", 6, "1f1b", True, 1),
    ("mlp", 6, "zb_h1", False, 1),
    ("llama", 4, "1f1b", True, 1),
    ("llama", 8, "zb_h1", False, 2),
    ("mlp", 4, "chimera", False, 1),
    ("mlp", 6, "dualpipe", True, 2),
    ("mlp", 4, "zb_h1", False, 1, "none"),
    ("mlp", 6, "1f1b", True, 2, "none"),
    ("llama", 4, "zb_h1", False, 1, "none"),
    ("llama", 8, "1f1b", True, 1, "none"),
    ("llama", 4, "1f1b", False, 1, "selective"),
    ("mlp", 4, "zb_h1 R", False, 1),
    ("mlp", 6, "1f1b R", True, 2),
    ("llama", 4, "1f1b R", False, 1),
    ("llama", 8, "zb_h1 R", False, 2),
]
"""Model, layers (1 or 2 a stage, or 2, 2, 1, 1), schedule (R), fuse_backward, transfer_ticks, remat."""


@pytest.mark.parametrize("choice", PROGRAMS, ids=lambda choice: "-".join(map(str, choice)))
def test_an_idle_tick_computes_nothing_and_touches_no_buffer(choice: tuple) -> None:
    model = MODELS[choice[0]](choice[1])
    assert faults(compiled(*choice), model) == []


@pytest.mark.parametrize("choice", PROGRAMS, ids=lambda choice: "-".join(map(str, choice)))
def test_a_tick_moves_a_few_messages(choice: tuple) -> None:
    """Two permutes between neighbours, one read of the inbox, a copy for each message that stays a tick."""
    step, transfer_ticks = compiled(*choice), choice[4]
    computations = hlo.parse(step.compiled.as_text())
    tick = computations[hlo.tick_body(computations)].values()
    permutes = [instruction for instruction in tick if instruction.opcode == "collective-permute"]
    pairs = [re.findall(r"source_target_pairs=\{(\S*)\}", permute.line) for permute in permutes]
    assert sorted(pairs) == [["{0,1},{1,2},{2,3}"], ["{1,0},{2,1},{3,2}"]]
    (message,) = {permute.shapes[0].size for permute in permutes}
    moved = Counter(
        instruction.opcode
        for instruction in tick
        if instruction.opcode not in MOVES_NOTHING
        and any(made.size == message for made in instruction.shapes)
    )
    assert moved["collective-permute"] == 2
    assert moved["fusion"] + moved["dynamic-slice"] == 1, "the inbox is read once"
    assert moved["copy"] <= (1 if transfer_ticks == 1 else 3)
    assert set(moved) <= {"collective-permute", "fusion", "dynamic-slice", "copy"}


@pytest.mark.parametrize("schedule", ["zb_h1", "zb_h1 R"])
def test_without_ties_products_leave_their_loops(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trap is there, and this test sees it: one layer a stage, and nothing ties slices to counters."""
    monkeypatch.setattr(loops, "tied", lambda counters, tree: tree)
    monkeypatch.setattr(ends, "tied", lambda counters, tree: tree)
    found = faults(compiled("mlp", 4, schedule, False, 1, untied=True), mlp_model(4))
    assert any(fault.startswith("dot") for fault in found)
    assert any(fault.startswith("all-reduce") for fault in found)
    assert any(fault.startswith("a buffer touched") for fault in found)


def copies(schedule: str) -> list[str]:
    """Of all weights, gradients or slots of a rank, around and in the ticks; two stages of one layer."""
    params, table = mlp.make_params(4), lower(build(schedule, num_ranks=2, num_microbatches=4))
    program = make_program(mlp.CONTRACT, table, params, settings=Settings())
    # of 2 sequences: no slots are of the size of gradients, in whose place XLA would return these
    arguments = to_stage_layout(params, program.layout), mlp.make_batch(4), mlp.make_constants()
    slots = jax.eval_shape(make_empty_slots(program, *arguments))
    run = make_loss_and_gradients_in_slots(program)

    def descend(params: Tree, batch: Batch, constants: Tree, slots: Slots) -> tuple[Tree, Slots]:
        result, slots = run(params, batch, constants, slots)
        return jax.tree.map(jnp.subtract, params, result.gradients), slots

    step = jax.jit(descend, donate_argnums=(0, 3), keep_unused=True)
    computations = hlo.parse(step.lower(*arguments, slots).compile(SAME_HLO).as_text())
    buffers = buffer_shapes(program, *arguments)
    kept = {leaf.shape for leaf in jax.tree.leaves(buffers) if leaf.size > buffers.message.size}
    kept |= {(1, *shape) for shape in kept}
    return [
        instruction.line
        for computation in computations.values()
        for instruction in computation.values()
        if instruction.opcode == "copy"
        and instruction.shapes[0].dims in kept
        # zeros are made once, and copied to each accumulator of the shape
        and computation[instruction.operands[0]].opcode not in ("broadcast", "fusion")
    ]


@pytest.mark.parametrize("schedule", ["interleaved", "zb_v"])
def test_nothing_that_a_step_is_given_or_gives_back_is_copied(schedule: str) -> None:
    assert copies(schedule) == []


@pytest.mark.parametrize("schedule", ["1f1b", "dualpipe"])
def test_nothing_is_added_up_over_one_device(schedule: str) -> None:
    """Of one pipeline ``dp`` is 1: XLA would copy all gradients to have the same."""
    step = compiled("mlp", NUM_RANKS, schedule, False, 1)
    computations = hlo.parse(step.compiled.as_text())
    sums = [
        instruction.line
        for computation in computations.values()
        for instruction in computation.values()
        if instruction.opcode == "all-reduce"
    ]
    assert sums
    assert not [line for line in sums if "replica_groups={{0}," in line]


@pytest.mark.parametrize("schedule", ["chimera", "dualpipe"])
def test_the_ends_of_both_pipes_are_one_piece_of_program(schedule: str) -> None:
    """Head and embedding are what takes longest to compile after the layers."""

    def sums(schedule: str) -> int:
        step = compiled("mlp", NUM_RANKS, schedule, False, 1)
        return hlo.opcodes(hlo.parse(step.compiled.as_text()))["all-reduce"]

    assert sums(schedule) == sums("1f1b")


def test_with_a_layout_of_its_own_choice_xla_copies_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trap is there, and the test above sees it."""
    monkeypatch.setattr(device_dimension, "_in_order", lambda array: array)
    found = " ".join(copies("zb_v"))
    weights, gradients = ("f32[2,1,8,12]", "f32[1,2,1,8,12]")
    assert weights in found
    assert gradients in found


@pytest.mark.parametrize(
    "choice", [choice for choice in PROGRAMS if choice[2] in ("chimera", "dualpipe")], ids=str
)
def test_the_layers_of_the_second_pipe_travel_once_a_step(choice: tuple) -> None:
    """Each leaf of them there, and its gradient back, outside of the ticks."""
    computations = hlo.parse(compiled(*choice).compiled.as_text())
    tick, model = hlo.tick_body(computations), MODELS[choice[0]](choice[1])
    elsewhere = [
        sorted(re.findall(r"{(\d,\d)}", instruction.line))
        for name, computation in computations.items()
        for instruction in computation.values()
        if instruction.opcode == "collective-permute" and name != tick
    ]
    assert elsewhere == [["0,3", "1,2", "2,1", "3,0"]] * 2 * len(jax.tree.leaves(model.params["layers"]))


# Microbatches


@cache
def with_microbatches(schedule: str, num_microbatches: int) -> Step:
    params, batch = mlp.make_params(4), mlp.make_batch(num_microbatches, batch=32)
    table = lower(build(schedule, num_ranks=NUM_RANKS, num_microbatches=num_microbatches))
    program = make_program(mlp.CONTRACT, table, params, settings=Settings())
    return compile_step(program, params, batch, mlp.make_constants(), options=SAME_HLO)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb_h1", "chimera"])
def test_the_program_is_as_long_for_8_microbatches_as_for_64(schedule: str) -> None:
    few, many = (hlo.parse(with_microbatches(schedule, m).compiled.as_text()) for m in (8, 64))
    assert ticks_opcodes(few) == ticks_opcodes(many)
    assert hlo.opcodes(few).keys() == hlo.opcodes(many).keys()
    for opcode, count in hlo.opcodes(few).items():
        # outside of the ticks, counting the valid labels of a longer batch takes a reduction more
        more = hlo.opcodes(many)[opcode] - count
        assert more == 0 if opcode in hlo.COLLECTIVES else 0 <= more < 10, opcode


def ticks_opcodes(computations: dict[str, hlo.Computation]) -> Counter:
    tick = hlo.tick_body(computations)
    return Counter(
        instruction.opcode for _, instruction in hlo.reachable(computations, tick, into_loops=True)
    )


def temporaries(schedule: str, num_microbatches: int) -> int:
    return with_microbatches(schedule, num_microbatches).compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1", "chimera"])
def test_memory_is_what_the_schedule_says_whatever_the_microbatches(schedule: str) -> None:
    assert temporaries(schedule, 64) < 1.05 * temporaries(schedule, 8)


def test_gpipe_holds_every_microbatch() -> None:
    """The counterpart: what grows is seen to grow, by a residual for each of 56 microbatches and rank."""
    message_bytes = 32 * mlp.SEQUENCE * mlp.HIDDEN * 4
    assert temporaries("gpipe", 64) - temporaries("gpipe", 8) >= 56 * message_bytes


def test_the_head_bounds_the_logits() -> None:
    """4 x 1024 words, 96 tokens: no array exceeds the logits of 8 tokens, or a rank's rows of the head."""
    params = mlp.make_params(4, vocab_size=4096)
    batch = mlp.make_batch(2, batch=16)
    table = lower(build("1f1b", num_ranks=NUM_RANKS, num_microbatches=2))
    program = make_program(mlp.CONTRACT, table, params, settings=Settings(head_tokens=8))
    step = compile_step(program, params, batch, mlp.make_constants(), options=SAME_HLO)
    computations = hlo.parse(step.compiled.as_text())
    sizes = {shape.size for instruction in hlo.instructions(computations) for shape in instruction.shapes}
    assert max(sizes) == 8 * 1024


def test_a_step_is_traced_once() -> None:
    params = mlp.make_params(2)
    table = lower(build("1f1b", num_ranks=2, num_microbatches=2))
    program = make_program(mlp.CONTRACT, table, params, settings=Settings())
    step = jax.jit(chex.assert_max_traces(make_loss_and_gradients(program), n=1))
    staged = to_stage_layout(params, program.layout)
    losses = [step(staged, mlp.make_batch(2, seed=seed), mlp.make_constants()).loss for seed in range(3)]
    assert len(set(map(float, losses))) == 3
    with pytest.raises(AssertionError):
        step(staged, mlp.make_batch(2, batch=4), mlp.make_constants())


def test_the_options_of_these_tests_leave_the_program_as_it_is() -> None:
    model, step = mlp_model(4), compiled("mlp", 4, "1f1b", True, 1)
    always = compile_step(step.program, model.params, model.batch, model.constants, options=AS_ALWAYS)
    assert hlo.opcodes(hlo.parse(always.compiled.as_text())) == hlo.opcodes(
        hlo.parse(step.compiled.as_text())
    )
