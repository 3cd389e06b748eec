"""Closed forms of bubble and memory: what the simulator finds, without simulating.

p ranks, m microbatches, v chunks; F, B, W are the costs of a stage, the same for all stages, and T = F + B +
W. A stage is 1/v of what a rank has: for schedules with chunks, the V-shaped ones (v = 2) among them, all
costs and activations are those of such smaller stages. Messages take no time.

Sources mean different things by the same words:

B       the gradient of the input in the zero-bubble papers and here; the whole backward, our B + W, in those
        of Narayanan et al. and of DeepSeek. So (p-1)(F+B-2W) of ZB1P in DualPipe's README is (p-1)(F+B-W)
        here.
bubble  here a time: what the makespan is longer than a rank's work. Of the makespan it is (p-1)/(m+p-1) for
        gpipe and 1f1b (Huang et al. 2019, section 2.3), of the ideal time (p-1)/m (Narayanan et al. 2021,
        section 2.2). Neither is an approximation of the other: p = m = 8 gives 47 % and 88 %.
        In the zero-bubble papers it is that of a rank's span, from its first action to the end of its last,
        as if each rank stepped its optimizer at once. The makespan is longer: all F of the start lie before
        it.
F&B     an atomic pair of DualPipe: (p/2-1)(F&B + BW - 3W) supposes that nothing comes between the two. As F,
        then B, which is how we run them, they leave less; ``_dualpipe_v`` says what.

Every form is exact where it is given, and None elsewhere: each docstring says for which sizes and costs it
holds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from jaxpipe.schedules.costs import UNIT_COSTS, Costs
from jaxpipe.schedules.generators.catalog import GENERATORS, find_faults


@dataclass(frozen=True)
class ClosedForms:
    """What ``simulate`` would find; None where no closed form is known.

    work: of each rank. bubble: the makespan without it. span_bubble: the longest span of a rank without it.
    peak_until_backward, peak_until_weight: for each rank the most activations held until B, and until W.
    most_held: the largest until W.
    """

    work: float
    bubble: float | None = None
    span_bubble: float | None = None
    peak_until_backward: tuple[int, ...] | None = None
    peak_until_weight: tuple[int, ...] | None = None
    most_held: int | None = None

    @property
    def makespan(self) -> float | None:
        return None if self.bubble is None else self.work + self.bubble

    @property
    def bubble_of_makespan(self) -> float | None:
        """(p-1)/(m+p-1) for gpipe and 1f1b."""
        return None if self.bubble is None else self.bubble / (self.work + self.bubble)

    @property
    def bubble_of_ideal(self) -> float | None:
        """(p-1)/m for gpipe and 1f1b."""
        return None if self.bubble is None else self.bubble / self.work


def closed_forms(
    name: str,
    *,
    num_ranks: int,
    num_microbatches: int,
    num_chunks: int | None = None,
    costs: Costs = UNIT_COSTS,
) -> ClosedForms:
    """Of a named schedule without options, for one cost of each kind, in its unit.

    ``ValueError`` for sizes that ``build`` refuses, and for costs by stage or of the ends.
    """
    faults = find_faults(name, num_ranks=num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks)
    numbers = [cost for cost in (costs.F, costs.B, costs.W) if not isinstance(cost, tuple)]
    if len(numbers) < 3:
        faults.append(f"{costs} must have one number for each kind for a closed form; use simulate")
    if costs.head or costs.embedding:
        ends = f"head={costs.head}, embedding={costs.embedding}"
        faults.append(f"{ends} must be 0 for a closed form, since ends make stages unequal; use simulate")
    if faults:
        raise ValueError("; ".join(faults))
    chunks = GENERATORS[name].default_chunks if num_chunks is None else num_chunks
    return FORMULAS[name](_Case(num_ranks, num_microbatches, chunks, *numbers))


class _Case(NamedTuple):
    p: int
    m: int
    v: int
    F: float
    B: float
    W: float

    @property
    def total(self) -> float:
        """T."""
        return self.F + self.B + self.W

    @property
    def has_equal_costs(self) -> bool:
        return self.F == self.B == self.W


def _gpipe(case: _Case) -> ClosedForms:
    """Bubble (p-1)T, holds m (Huang et al. 2019, section 2.3). Holds for all."""
    p, m, *_ = case
    bubble = (p - 1) * case.total
    return _forms(case, bubble=bubble, span=bubble, until_backward=[m] * p)


def _one_f_one_b(case: _Case) -> ClosedForms:
    """Bubble (p-1)T, holds min(m, p-r) (Narayanan et al. 2021, section 2.2). Holds for all."""
    p, m, *_ = case
    bubble = (p - 1) * case.total
    return _forms(case, bubble=bubble, span=bubble, until_backward=[min(m, p - r) for r in range(p)])


def _interleaved(case: _Case) -> ClosedForms:
    """Bubble (p-1)T if p divides m, (p-1)/(v m) of the ideal time (Narayanan et al. 2021, section 2.2).

    Rank r holds (v-1)p + 2(p-1-r) + 1 then, or all v m. If the last group lacks s microbatches, a rank waits
    for them at each of the v-1 changes of chunk: (v-1)s(B+W) more, as the backward of the group before fills
    the forward if F <= B + W; (v-1)s T where there is none, m < p. With m > p this holds for v = 2 or s = 1:
    else some F of the short group come too late for that, by no simple rule.
    """
    p, m, v, F, B, W = case
    lacking = -m % p
    if lacking and m > p and (F > B + W or min(lacking, v - 1) > 1):
        return _forms(case)
    bubble = (p - 1) * case.total + (v - 1) * lacking * (case.total if m < p else B + W)
    held = [min(v * m, (v - 1) * p + 2 * (p - 1 - r) + 1) for r in range(p)]
    return _forms(case, bubble=bubble, span=bubble, until_backward=None if lacking else held)


def _looped_bfs(case: _Case) -> ClosedForms:
    """Bubble (p-1)T, holds v m (Lamy-Poirier 2023, section 4).

    With m < p the first microbatch comes round later than a rank has run all: (v-1)(p-m)T more. Holds for
    all.
    """
    p, m, v, *_ = case
    bubble = (p - 1 + (v - 1) * max(p - m, 0)) * case.total
    return _forms(case, bubble=bubble, span=bubble, until_backward=[v * m] * p)


def _zb_h1(case: _Case) -> ClosedForms:
    """Bubble (p-1)(F+B-W) for W <= F, B and m >= p (Qi et al. 2024, section 2.3).

    In general the way up and down the ranks takes (p-1)(F+B), of which min(m, p) - 1 actions of a rank fill
    a part each: W, or F or B where these are shorter, since then it is they that the other ranks wait for.
    The bubble holds for all; that of a span for m > p, as with fewer microbatches ranks run ahead. Holds p-r
    until B with m > p, as 1f1b, and min(m, p) until W.
    """
    p, m, _, F, B, W = case
    bubble = (p - 1) * (F + B) - (min(m, p) - 1) * min(F, B, W)
    span = (p - 1) * max(F + B - W, B) if m > p else None
    held = [min(m, p - r if m > p else 2 * (p - r) - 1) for r in range(p)]
    return _forms(case, bubble=bubble, span=span, until_backward=held, until_weight=[min(m, p)] * p)


def _zb_h2(case: _Case) -> ClosedForms:
    """Within a span (p-1)(F+B-2W), 0 for F = B = W, with m >= 2p-1 (Qi et al. 2024, section 2.4).

    In general (p-1)max(0, F+B-2W, B-F): where B > F, the other ranks wait B-F at each hop. The makespan has
    (p-1)F at least, the start of the last rank. With m <= p it is that of zb_h1; in between, only F = B = W
    has a simple form, (p-1)F. Holds 2(p-r)-1 until B and 2p until W, or all m.
    """
    p, m, _, F, B, W = case
    bubble: float | None = None
    span: float | None = None
    if m >= 2 * p - 1:
        bubble = (p - 1) * max(F, F + B - 2 * W, B - F)
        span = (p - 1) * max(0, F + B - 2 * W, B - F)
    elif m <= p:
        bubble = (p - 1) * (F + B) - (m - 1) * min(F, B, W)
    elif case.has_equal_costs:
        bubble = (p - 1) * F
    held = [min(m, 2 * (p - r) - 1) for r in range(p)]
    return _forms(case, bubble=bubble, span=span, until_backward=held, until_weight=[min(m, 2 * p)] * p)


def _interleaved_zb(case: _Case) -> ClosedForms:
    """Bubble (p-1)(F+B-W) for W <= F, B, as zb_h1 (Qi et al. 2024, section 2.3, on chunks); holds vp.

    Holds where p divides m: a short last group leaves holes that W fill in part, by no simple rule.
    """
    p, m, v, F, B, W = case
    if m % p:
        return _forms(case)
    held = [v * p - r for r in range(p)]
    bubble, span = (p - 1) * max(F, B, F + B - W), (p - 1) * max(B, F + B - W)
    return _forms(case, bubble=bubble, span=span, until_backward=held, until_weight=[v * p] * p)


def _zb_v(case: _Case) -> ClosedForms:
    """Within a span 0 for F = B = W and m >= 2p-1 (Qi et al. 2024, section 6); holds 2p chunks, as 1f1b.

    The makespan has (p-1)F more, the start of the last rank, and it has that from m = p on. With W <= B <=
    2W and F <= B it is (p-1)B for m >= 2p-1, since the last rank waits B-F more at each hop. Other costs
    have other critical paths, and fewer microbatches another order for each size.
    """
    p, m, _, F, B, W = case
    bubble: float | None = None
    span: float | None = None
    is_dense = m >= 2 * p - 1
    if (is_dense and max(F, W) <= B <= 2 * W) or (m >= p and case.has_equal_costs):
        bubble = (p - 1) * B
    if is_dense and case.has_equal_costs:
        span = 0.0
    held = [2 * p] * p if is_dense else None
    return _forms(case, bubble=bubble, span=span, until_backward=held, until_weight=[min(2 * m, 2 * p)] * p)


def _v_half(case: _Case) -> ClosedForms:
    """No rank holds more than 2((p+2)//2) chunks; bubble (3p-7)F for even p >= 4, (3p-4)F for odd p >= 3.

    Qi et al. 2024, "Pipeline Parallelism with Controllable Memory", section 3.2, with the holes at the ends
    filled. The bubble, F for p = 2, holds for F = B = W and m > p//2 + 1: with other costs the building
    blocks do not fit into each other, and every microbatch leaves a hole. Memory is that of the rank that
    holds most.
    """
    p, m, *_ = case
    bubble: float | None = None
    span: float | None = None
    if case.has_equal_costs and m > p // 2 + 1:
        bubble = {1: 0, 2: 1}.get(p, 3 * p - (4 if p % 2 else 7)) * case.F
        span = bubble if p > 2 else 0.0
    return _forms(case, bubble=bubble, span=span, most_held=min(2 * m, 2 * ((p + 2) // 2)))


def _v_min(case: _Case) -> ClosedForms:
    """No rank holds more than 2((p+4)//3) chunks; bubble (4p-5)F, or (4p-7)F where 3 divides p.

    Qi et al. 2024, "Controllable Memory", section 3.2, with the holes at the ends filled. The bubble holds
    for F = B = W and m > (p+4)//3; the memory for all, as that of the rank that holds most.
    """
    p, m, *_ = case
    bubble = None
    if case.has_equal_costs and m > (p + 4) // 3:
        bubble = max(4 * p - (5 if p % 3 else 7), 0) * case.F
    return _forms(case, bubble=bubble, span=bubble, most_held=min(2 * m, 2 * ((p + 4) // 3)))


def _dualpipe_v(case: _Case) -> ClosedForms:
    """Bubble (p-1)(F&B + BW - 3W) with atomic pairs (DeepSeek-AI 2025, "DualPipe", README); holds 2p+1.

    As F, then B it is (p-1)max(0, B-W) + max((p-1)F, (p-1)B - F), for F <= B + W and m >= 2p: the critical
    path climbs the ranks by F or by B, and waits B-W at each where W is shorter than B. That is (p-1)F for F
    = B = W, half of what atomic pairs leave; for these costs no rank's span is shorter than the makespan.
    """
    return _of_dualpipe(case, num_hops=case.p - 1, is_long=case.m >= 2 * case.p, held=2 * case.p + 1)


def _dualpipe(case: _Case) -> ClosedForms:
    """As ``_dualpipe_v`` with p/2 for p, and in whole stages (DeepSeek-AI 2024, section 3.2.1); holds p+1."""
    return _of_dualpipe(case, num_hops=case.p // 2 - 1, is_long=True, held=case.p + 1)


def _of_dualpipe(case: _Case, *, num_hops: int, is_long: bool, held: int) -> ClosedForms:
    p, _, _, F, B, W = case
    if not is_long:
        return _forms(case)
    bubble = num_hops * max(0, B - W) + max(num_hops * F, num_hops * B - F, 0) if F <= B + W else None
    span = bubble if case.has_equal_costs else None
    return _forms(case, bubble=bubble, span=span, until_backward=[held] * p)


def _chimera(case: _Case) -> ClosedForms:
    """Two pipes, F = B = W, m a multiple of p: bubble (p/2)F, 0 for p = 2.

    The published order (Li and Hoefler 2021, section 3) has 2(p-2)F with m = p, (p-2)/(3m/2+p-2) of the
    makespan, and more with each further group; ours lets W fill it. Holds p/2+1 on outer ranks to p on inner
    ones, with m >= p.
    """
    p, m, *_ = case
    bubble = (p // 2 if p > 2 else 0) * case.F if case.has_equal_costs and m % p == 0 else None
    held = [min(p // 2, p - r) + min(p // 2, r + 1) for r in range(p)] if m >= p else None
    return _forms(case, bubble=bubble, span=bubble, until_backward=held)


def _forms(
    case: _Case,
    *,
    bubble: float | None = None,
    span: float | None = None,
    until_backward: list[int] | None = None,
    until_weight: list[int] | None = None,
    most_held: int | None = None,
) -> ClosedForms:
    """``until_weight`` is as ``until_backward`` where it is not given: W follows at once."""
    weight = until_weight or until_backward
    return ClosedForms(
        work=case.m * case.v * case.total,
        bubble=bubble,
        span_bubble=span,
        peak_until_backward=tuple(until_backward) if until_backward else None,
        peak_until_weight=tuple(weight) if weight else None,
        most_held=max(weight) if weight else most_held,
    )


FORMULAS: Mapping[str, Callable[[_Case], ClosedForms]] = MappingProxyType(
    {
        "gpipe": _gpipe,
        "1f1b": _one_f_one_b,
        "interleaved": _interleaved,
        "looped_bfs": _looped_bfs,
        "zb_h1": _zb_h1,
        "zb_h2": _zb_h2,
        "interleaved_zb": _interleaved_zb,
        "zb_v": _zb_v,
        "v_half": _v_half,
        "v_min": _v_min,
        "dualpipe_v": _dualpipe_v,
        "dualpipe": _dualpipe,
        "chimera": _chimera,
    }
)
"""One function for each of ``GENERATORS``; its docstring has the source, and for what it holds."""
