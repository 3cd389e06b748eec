"""How many bytes a loop's body holds at once, estimated from its jaxpr: nothing is compiled.

A pass over the equations in their order, as a compiler's buffer assignment does it, with rules that are XLA's
in the large:

    views       reshapes, barriers and marks name a buffer that exists
    fused       elementwise work has no buffer where only such work, a reduction or a slice reads it, unless
                it is expensive and read twice
    in place    an update of a slice, a loop and elementwise work take over a buffer that is read last there
    moved       what is gathered along another dimension than the first is copied on the way
    the rest    products, collectives, reductions, slices: each result has a buffer until it is read last

What a loop within holds counts once, whatever the number of its trips. Where XLA orders or fuses otherwise
the estimate is off; tests/training/test_memory.py says by how much a whole step may be.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

# names of primitives; words read better than a column of strings
_VIEWS = frozenset("copy expand_dims name optimization_barrier pvary reshape squeeze stop_gradient".split())  # noqa: SIM905
_EXPENSIVE = frozenset("cos div erf exp exp2 log log1p logistic pow rsqrt sin sqrt tanh".split())  # noqa: SIM905
_FUSED = _EXPENSIVE | frozenset(
    "abs add add_any and axis_index broadcast_in_dim ceil clamp convert_element_type eq expm1 floor ge gt "  # noqa: SIM905
    "integer_pow iota is_finite le lt max min mul ne neg not or rem rev select_n sign slice split square sub "
    "transpose xor".split()
)
_READS_FUSED = frozenset(
    "argmax argmin concatenate dynamic_slice dynamic_update_slice gather pad reduce_and reduce_max "  # noqa: SIM905
    "reduce_min reduce_or reduce_prod reduce_sum scatter scatter-add".split()
)
"""What fuses with the work that it reads, but has a buffer of its own."""

_UPDATES = frozenset({"dynamic_update_slice", "scatter", "scatter-add"})


def held_at_once(body: ClosedJaxpr, carried: Sequence[int], size: Callable[[Any], int]) -> int:
    """Bytes that ``body`` holds beside its arguments.

    carried: the arguments that its first results replace, in their order; it may overwrite them.
    size: the bytes of an abstract array.
    """
    flat = _Flat([], [], size)
    arguments = [flat.new(0) for _ in body.jaxpr.invars]
    results = _flatten(body.jaxpr, arguments, flat)
    ops = list(_needed(flat.ops, results))
    own = _with_buffer(ops, results)
    read_last = _read_last(ops, own | set(arguments), results)
    home = {result: arguments[index] for result, index in zip(results, carried, strict=False)}
    overwritable = own | set(home.values())
    held: dict[int, int] = {}
    now = peak = 0
    for index, op in enumerate(ops):
        dying = {value for value, last in read_last.items() if last == index}
        for output in set(op.outputs) & own:
            free = (value for value in op.may_replace(output, flat.sizes, dying) if value in overwritable)
            if output in home and read_last.get(home[output], -1) < index:
                held[output] = 0
            elif (replaced := next(free, None)) is not None:
                held[output] = held.pop(replaced, 0)
                dying.discard(replaced)
            else:
                held[output] = flat.sizes[output]
                now += held[output]
        peak = max(peak, now + op.inner)
        now -= sum(held.pop(value, 0) for value in dying)
    return peak


class _Op(NamedTuple):
    """One equation; ``inner`` is what it holds on its way, ``carried`` maps results to what they replace."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    inner: int
    carried: dict[int, int]

    def may_replace(self, output: int, sizes: Sequence[int], dying: set[int]) -> Iterator[int]:
        """The buffers that ``output`` may take over."""
        if output in self.carried:
            yield from {self.carried[output]} & dying
        elif self.name in _FUSED:
            yield from (value for value in dying if sizes[value] == sizes[output])


class _Flat(NamedTuple):
    """A function without its calls: values are numbers, and a view has its buffer's."""

    ops: list[_Op]
    sizes: list[int]
    size: Callable[[Any], int]

    def new(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1


def _flatten(jaxpr: Jaxpr, arguments: Sequence[int], flat: _Flat) -> list[int]:
    """Append the equations of ``jaxpr``; the numbers of its results."""
    numbers = dict(zip(jaxpr.invars, arguments, strict=True)) | {var: flat.new(0) for var in jaxpr.constvars}

    def number(atom: Any) -> int:
        return flat.new(0) if isinstance(atom, Literal) else numbers[atom]

    for eqn in jaxpr.eqns:
        inputs = tuple(map(number, eqn.invars))
        called = None if eqn.primitive.name in ("while", "scan") else _called(eqn)
        if called is not None:
            outputs = _flatten(called, inputs, flat)
        elif _is_view(eqn):
            outputs = list(inputs[: len(eqn.outvars)])
        elif eqn.primitive.name == "dynamic_update_slice" and _is_whole(eqn.invars[0], eqn.invars[1]):
            outputs = [inputs[1]]
        else:
            outputs = [flat.new(flat.size(var.aval)) for var in eqn.outvars]
            flat.ops.append(_op(eqn, inputs, tuple(outputs), flat))
        numbers |= dict(zip(eqn.outvars, outputs, strict=True))
    return [number(atom) for atom in jaxpr.outvars]


def _called(eqn: JaxprEqn) -> Jaxpr | None:
    """The function that an equation calls once, if it does."""
    for param in eqn.params.values():
        if isinstance(param, ClosedJaxpr | Jaxpr):
            jaxpr = param.jaxpr if isinstance(param, ClosedJaxpr) else param
            if len(jaxpr.invars) == len(eqn.invars) and len(jaxpr.outvars) == len(eqn.outvars):
                return jaxpr
    return None


def _is_view(eqn: JaxprEqn) -> bool:
    name = eqn.primitive.name
    if name in ("broadcast_in_dim", "convert_element_type", "dynamic_slice"):
        return not isinstance(eqn.invars[0], Literal) and _is_whole(eqn.invars[0], eqn.outvars[0])
    return name in _VIEWS


def _is_whole(first: Any, second: Any) -> bool:
    """Whether two arrays differ in the form of their dimensions at most."""
    return first.aval.size == second.aval.size and first.aval.dtype == second.aval.dtype


def _op(eqn: JaxprEqn, inputs: tuple[int, ...], outputs: tuple[int, ...], flat: _Flat) -> _Op:
    name, params = eqn.primitive.name, eqn.params
    if name not in ("while", "scan"):
        is_moved = name == "all_gather" and params["all_gather_dimension"] > 0
        inner = flat.sizes[outputs[0]] if is_moved else 0
        return _Op(name, inputs, outputs, inner, {outputs[0]: inputs[0]} if name in _UPDATES else {})
    if name == "while":
        body, start = params["body_jaxpr"], params["cond_nconsts"] + params["body_nconsts"]
        first = params["body_nconsts"]
        carried = range(start, len(inputs))
    else:
        body, first = params["jaxpr"], params["num_consts"]
        carried = range(first, first + params["num_carry"])
    inner = held_at_once(body, range(first, first + len(carried)), flat.size)
    return _Op(name, inputs, outputs, inner, {outputs[n]: inputs[place] for n, place in enumerate(carried)})


def _needed(ops: Sequence[_Op], results: Sequence[int]) -> Iterator[_Op]:
    """In their order, the operations that the results depend on."""
    needed, kept = set(results), []
    for op in reversed(ops):
        if needed.intersection(op.outputs):
            kept.append(op)
            needed.update(op.inputs)
    return reversed(kept)


def _with_buffer(ops: Sequence[_Op], results: Sequence[int]) -> set[int]:
    """The values that are written to memory."""
    written, num_reads = set(results), Counter[int]()
    for op in ops:
        if op.name in _UPDATES:
            written.add(op.inputs[0])
        elif op.name not in _FUSED | _READS_FUSED:
            written.update(op.inputs)
        num_reads.update(set(op.inputs))
    made = set()
    for op in ops:
        for output in op.outputs:
            is_costly = op.name in _EXPENSIVE and num_reads[output] > 1
            if op.name not in _FUSED or output in written or is_costly:
                made.add(output)
    return made


def _read_last(ops: Sequence[_Op], stored: set[int], results: Sequence[int]) -> dict[int, int]:
    """Of each stored value the last operation that reads it, itself or through fused ones."""
    sources = {value: frozenset([value]) for value in stored}
    last: dict[int, int] = {}
    for index, op in enumerate(ops):
        read = frozenset().union(*(sources.get(value, frozenset()) for value in op.inputs))
        for output in op.outputs:
            if output in stored:
                last |= dict.fromkeys(read, index) | {output: index}
            else:
                sources[output] = read
    return last | dict.fromkeys(results, len(ops))
