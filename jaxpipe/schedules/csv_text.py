"""Schedules as text: a row for each rank, its actions in order, in either of two forms.

    jaxpipe                                 PyTorch, compute only
    # jaxpipe schedule zb_h1
    # placement 0 1
    0F0,0F1,0B0,0W0,0B1,0W1                 0F0,0F1,0I0,0W0,0I1,0W1
    1F0,1B0,1F1,1B1,1W0,1W1                 1F0,1I0,1F1,1I1,1W0,1W1

One name means two things: ``0B0`` is the input gradient here and the whole backward there, our ``0BW0``.
So our form begins with a line that says whose it is. The second line has the rank of each stage, and
of two pipes both, ``0 1 / 1 0``; without it a stage lies where most of its actions stand. Chunks are numbered
in the order of their stages. Other lines that begin with ``#`` are for the reader; empty cells are idle time,
which a schedule does not have. PyTorch's pairs, ``(0F1;3B0)OVERLAP_F_B``, are read as two actions.
Recomputation as an action of its own, ``0R0``, is in our form alone.

PyTorch's form is that of ``_dump_csv`` and ``_load_csv`` in torch.distributed.pipelining.schedules.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxpipe.schedules.actions import Action, Kind, parse_action
from jaxpipe.schedules.csv_cells import (
    LONGEST_CELL,
    Cell,
    Fault,
    Table,
    explain,
    listed,
    printable,
    read_table,
)
from jaxpipe.schedules.generators.catalog import LARGEST, find_too_large
from jaxpipe.schedules.placement import Placement
from jaxpipe.schedules.schedule import Schedule
from jaxpipe.schedules.validate import find_order_faults

FORMS = ("jaxpipe", "torch")
MOST_PIPES = 64
"""A prime for each in the name of an action."""

_NAME, _PLACEMENT = "jaxpipe schedule", "placement"
_OURS_IN_TORCH = {Kind.F: "F", Kind.B: "I", Kind.W: "W", Kind.BW: "B"}
_TORCH_IN_OURS = {theirs: ours for ours, theirs in _OURS_IN_TORCH.items()}
_IN_TORCH = re.compile(r"(\d+)([FIBW])(\d+)", re.ASCII)
_PAIR_IN_TORCH = re.compile(r"\(([^;()]+);([^;()]+)\)OVERLAP_F_B")
_COMMUNICATION = re.compile(r"\d+(SEND_[FB]|RECV_[FB]|UNSHARD|RESHARD|REDUCE_GRAD)\d*", re.ASCII)
_ONLY_OURS = re.compile(r"\d+((BW|R)\d+'*|[FBW]\d+'+)", re.ASCII)
_ONLY_TORCH = re.compile(r"\d+I\d+", re.ASCII)


def to_csv(schedule: Schedule, form: str = "jaxpipe") -> str:
    """The text of a right schedule; ``from_csv`` reads it back.

    ``ValueError`` for another form, and for what the form cannot hold: two pipes in PyTorch's, a name of
    several lines, chunks in another order than their stages.
    """
    faults = [*_find_unwritable(schedule, form)]
    if faults:
        raise ValueError("; ".join(faults))
    if form == "torch":
        return "".join(",".join(map(_in_torch, order)) + "\n" for order in schedule.orders)
    ranks = " / ".join(" ".join(map(str, ranks)) for ranks in schedule.placement.stage_ranks)
    rows = (",".join(map(str, order)) for order in schedule.orders)
    return "\n".join([f"# {_NAME} {schedule.name}", f"# {_PLACEMENT} {ranks}", *rows, ""])


def from_csv(text: str, *, name: str | None = None, forward_only: bool = False) -> Schedule:
    """The schedule that a text in either form describes, validated.

    name: what to call it; without one as the text says, or ``csv``.
    forward_only: whether it is a schedule of F alone, as for ``validate``.

    ``ValueError`` lists all faults with their cells, row and column counted from 1 as in the text, and shows
    the grid with these cells marked.
    """
    table = read_table(text)
    form, said = _form(table), _said(table)
    orders, faults = _parse(table, form)
    sizes, unmeasurable = _measure(orders)
    placement, unplaceable = _place(orders, sizes, said=said.get(_PLACEMENT, "")) if sizes else (None, [])
    faults += unmeasurable + unplaceable
    name = name if name is not None else said.get(_NAME, "") or "csv"
    notes = []
    if sizes and placement:
        actions = tuple(tuple(action for _, action in order) for order in orders)
        schedule = Schedule(name, placement, sizes.num_microbatches, actions)
        if not (faults := faults + _find_in_order(schedule, orders, form=form, forward_only=forward_only)):
            return schedule
    else:
        notes.append("the order was not checked: the above comes first")
    if form == "torch" and _has(table, re.compile(r"\d+W\d+")) and not _has(table, _ONLY_TORCH):
        remedy = f"if it is the input gradient, begin with the line '# {_NAME}'"
        notes.append(f"read as PyTorch's form, in which 0B0 is the whole backward; {remedy}")
    raise ValueError(explain(f"schedule {printable(name)!r} is broken:", faults, table, notes=notes))


@dataclass(frozen=True)
class _Sizes:
    """As the numbers in the actions say."""

    num_pipes: int
    num_stages: int
    num_microbatches: int


_Order = Sequence[tuple[Cell, Action]]


def _form(table: Table) -> str:
    is_ours = _NAME in _said(table) or (_has(table, _ONLY_OURS) and not _has(table, _ONLY_TORCH))
    return "jaxpipe" if is_ours else "torch"


def _said(table: Table) -> dict[str, str]:
    """What the first remark of either kind says."""
    said: dict[str, str] = {}
    for remark in table.remarks:
        for key in (_NAME, _PLACEMENT):
            if remark == key or remark.startswith(f"{key} "):
                said.setdefault(key, remark.removeprefix(key).strip())
    return said


def _has(table: Table, pattern: re.Pattern[str]) -> bool:
    return any(pattern.fullmatch(cell.text) for row in table.rows for cell in row)


def _parse(table: Table, form: str) -> tuple[list[_Order], list[Fault]]:
    """Each row's actions with the cells where they stand; a cell without one is a fault."""
    orders: list[_Order] = []
    faults = []
    for row in table.rows:
        order = []
        for cell in row:
            try:
                order += [(cell, action) for action in _read_cell(cell.text, form)]
            except ValueError as fault:
                faults.append(Fault(str(fault), (cell,)))
        orders.append(order)
    return orders, faults


def _read_cell(text: str, form: str) -> list[Action]:
    pair = _PAIR_IN_TORCH.fullmatch(text)
    if pair and form == "torch":
        return [action for part in pair.groups() for action in _read_cell(part.strip(), form)]
    if len(text) > LONGEST_CELL:
        raise ValueError("this is too long for an action; write stage, kind and microbatch, such as 0F3")
    if _COMMUNICATION.fullmatch(text):
        raise ValueError(f"{text} is communication, which follows from the order; save the compute-only form")
    if form == "jaxpipe":
        if _ONLY_TORCH.fullmatch(text):
            instead = text.replace("I", "B")
            raise ValueError(f"{text} is PyTorch's name, but the text is in our form; write {instead}")
        return [parse_action(text)]
    if _ONLY_OURS.fullmatch(text):
        remedy = f"begin it with the line '# {_NAME}', or write 0B0 for the whole backward"
        raise ValueError(f"{text} is our name, but the text is in PyTorch's form; {remedy}")
    match = _IN_TORCH.fullmatch(text)
    if match is None:
        these = "such as 0F3, 0I3, 0W3, 0B3"
        raise ValueError(f"{printable(text)!r} is not an action; write stage, kind and microbatch, {these}")
    stage, kind, microbatch = match.groups()
    return [Action(_TORCH_IN_OURS[kind], int(stage), int(microbatch))]


def _measure(orders: Sequence[_Order]) -> tuple[_Sizes | None, list[Fault]]:
    """None where there is no action, or so many that nothing can be said about them."""
    pairs = [pair for order in orders for pair in order]
    if not pairs:
        return None, []
    sizes = _Sizes(
        num_pipes=1 + max(action.pipe for _, action in pairs),
        num_stages=1 + max(action.stage for _, action in pairs),
        num_microbatches=1 + max(action.microbatch for _, action in pairs),
    )
    extreme = [
        cell
        for cell, action in pairs
        if action.stage + 1 == sizes.num_stages or action.microbatch + 1 == sizes.num_microbatches
    ]
    too_large = find_too_large(sizes.num_stages, sizes.num_microbatches)
    if faults := [Fault(text, tuple(extreme)) for text in too_large]:
        return None, faults
    if gaps := _gaps(orders, sizes.num_microbatches):
        rule = f"microbatches must count from 0 to {sizes.num_microbatches - 1} without gaps"
        remedy = "add what is missing or count on"
        behind = tuple(cell for cell, action in pairs if action.microbatch > gaps[0])
        return sizes, [Fault(f"{rule}, but there is no {listed(gaps)}; {remedy}", behind)]
    return sizes, []


def _gaps(orders: Sequence[_Order], num_microbatches: int) -> list[int]:
    """The microbatches of which there is nothing."""
    return sorted(
        set(range(num_microbatches)) - {action.microbatch for order in orders for _, action in order}
    )


def _place(orders: Sequence[_Order], sizes: _Sizes, *, said: str) -> tuple[Placement | None, list[Fault]]:
    """As the text says, or else where most of a stage's actions stand; None if that is no placement."""
    try:
        stage_ranks = _ranks_from_text(said) if said else _ranks_of_most(orders, sizes)
        num_stages, total = len(stage_ranks[0]), sum(map(len, stage_ranks))
        too_large = [*find_too_large(num_stages, sizes.num_microbatches)]
        if len(stage_ranks) > MOST_PIPES:
            too_large.append(
                f"a placement of {len(stage_ranks)} pipes must have at most {MOST_PIPES}; use fewer"
            )
        if total > LARGEST:
            too_large.append(f"a placement of {total} stages must have at most {LARGEST}; use fewer")
        if too_large:
            raise ValueError("; ".join(too_large))
        for pipe, ranks in enumerate(stage_ranks):
            _check_even(ranks, pipe=pipe, num_ranks=len(orders))
    except ValueError as fault:
        return None, [Fault(str(fault))]
    return _with_chunks(stage_ranks, len(orders)), []


def _ranks_from_text(text: str) -> list[list[int]]:
    pipes = [pipe.split() for pipe in text.split("/")]
    are_numbers = all(re.fullmatch(r"[0-9]{1,9}", rank) for pipe in pipes for rank in pipe)
    if not are_numbers or not pipes[0] or len({len(pipe) for pipe in pipes}) > 1:
        rule = f"the placement {printable(text)!r} must be the rank of each stage, and of two pipes both"
        raise ValueError(f"{rule}; write it as 0 1 / 1 0, or leave it out")
    return [[int(rank) for rank in pipe] for pipe in pipes]


def _ranks_of_most(orders: Sequence[_Order], sizes: _Sizes) -> list[list[int]]:
    """Where most of a stage's actions stand; of equals, where there are the fewest stages."""
    seen: dict[tuple[int, int], Counter[int]] = {}
    for rank, order in enumerate(orders):
        for _, action in order:
            seen.setdefault((action.pipe, action.stage), Counter())[rank] += 1
    stages = range(sizes.num_stages)
    for pipe in range(sizes.num_pipes):
        if missing := [stage for stage in stages if (pipe, stage) not in seen]:
            rule = f"stages of pipe {pipe} must count from 0 to {sizes.num_stages - 1} without gaps"
            raise ValueError(f"{rule}, but there is no {listed(missing)}; add what is missing or count on")
    num_seen = Counter(rank for ranks in seen.values() for rank in ranks)
    return [
        [max(ranks := seen[pipe, stage], key=lambda rank: (ranks[rank], -num_seen[rank])) for stage in stages]
        for pipe in range(sizes.num_pipes)
    ]


def _check_even(ranks: Sequence[int], *, pipe: int, num_ranks: int) -> None:
    held = Counter(ranks)
    due, rest = divmod(len(ranks), num_ranks)
    if unknown := sorted(rank for rank in held if rank >= num_ranks):
        raise ValueError(
            f"the placement has rank {listed(unknown)}, but there are {num_ranks} rows; add some"
        )
    if rest or not due or any(held[rank] != due for rank in range(num_ranks)):
        counts = listed([f"{held[rank]} on rank {rank}" for rank in range(num_ranks) if held[rank] != due])
        rule = (
            f"{num_ranks} ranks, a row each, must hold equally many of the {len(ranks)} stages of pipe {pipe}"
        )
        raise ValueError(f"{rule}, but there are {counts}; move some")


def _with_chunks(stage_ranks: Sequence[Sequence[int]], num_ranks: int) -> Placement:
    stage_chunks = []
    for ranks in stage_ranks:
        held: Counter[int] = Counter()
        chunks = []
        for rank in ranks:
            chunks.append(held[rank])
            held[rank] += 1
        stage_chunks.append(tuple(chunks))
    return Placement(num_ranks, tuple(map(tuple, stage_ranks)), tuple(stage_chunks))


def _find_in_order(
    schedule: Schedule, orders: Sequence[_Order], *, form: str, forward_only: bool
) -> list[Fault]:
    """What ``validate`` finds, in the names of the text; microbatches of which there is nothing are known."""
    cells: dict[Action, list[Cell]] = {}
    for order in orders:
        for cell, action in order:
            cells.setdefault(action, []).append(cell)
    gaps = set(_gaps(orders, schedule.num_microbatches))
    return [
        Fault(
            _names_in_torch(fault.text) if form == "torch" else fault.text,
            tuple(cell for action in fault.actions for cell in cells.get(action, ())),
        )
        for fault in find_order_faults(schedule, forward_only=forward_only)
        if not any(action.microbatch in gaps for action in fault.actions)
    ]


def _names_in_torch(text: str) -> str:
    return re.sub(r"\b\d+(?:F|BW|B|W)\d+\b", lambda match: _in_torch(parse_action(match.group())), text)


def _in_torch(action: Action) -> str:
    return f"{action.stage}{_OURS_IN_TORCH[action.kind]}{action.microbatch}"


def _find_unwritable(schedule: Schedule, form: str) -> Iterator[str]:
    placement = schedule.placement
    if form not in FORMS:
        yield f"form={form!r} must be one of {', '.join(FORMS)}"
    elif form == "torch" and placement.num_pipes > 1:
        yield f"PyTorch's form cannot tell {placement.num_pipes} pipes apart; use the form jaxpipe"
    elif form == "torch" and schedule.recomputes:
        yield "PyTorch's form has no R, recomputation as an action of its own; use the form jaxpipe"
    elif (
        form == "jaxpipe" and _said(read_table(f"# {_NAME} {schedule.name}\n0F0")).get(_NAME) != schedule.name
    ):
        yield f"the name {schedule.name!r} must be one line without blanks or commas at its end; change it"
    if placement.num_pipes > MOST_PIPES:
        yield f"{placement.num_pipes} pipes must be at most {MOST_PIPES}; use fewer"
    if _with_chunks(placement.stage_ranks, placement.num_ranks) != placement:
        yield "the text cannot say which chunk a stage is; number a rank's in the order of their stages"
