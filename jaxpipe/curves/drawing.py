"""A picture of the curves of one run or several: a panel for each kind of number, a colour for each run.

The loss has the upper row for itself. Below it stand learning rate, gradient norm and throughput, and the MFU
where it is known. Steps at which a value was not finite are crosses at the upper edge of its panel.

Nothing of matplotlib's global state is used: no pyplot, and its settings only while the picture is made.
A letter of a name that its font lacks is a box, without a word of warning.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxpipe.curves.run_curves import Curve, RunCurves, smoothed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")

_HUES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#4d4d4d")
"""Okabe and Ito's, which colour-blind eyes tell apart; their yellow is too light for a line."""
_DASHES = ("solid", (0, (5, 1.5)), (0, (1, 1)))
"""For the second and the third seven runs."""
_LONGEST_NAME = 48
_FEW = 40
"""Points that are few enough to be shown one by one."""
_LOG_FROM = 50.0
"""From this ratio of the highest to the lowest value on, a norm has a logarithmic axis."""
_LOWEST_OF_LOG = 1e-100
_HEADROOM = 1.08
"""Of an axis that starts at 0, to its highest value."""

_RING: dict[str, Any] = {
    "marker": "o",
    "markerfacecolor": "white",
    "linewidth": 0.6,
    "linestyle": (0, (2, 2)),
}
"""How validation is drawn."""

_SETTINGS: Any = {
    "font.size": 9.0,
    "font.family": "sans-serif",
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e2e5ea",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.edgecolor": "#8d95a1",
    "svg.fonttype": "none",
    "svg.hashsalt": "jaxpipe",
}


class _Panel(NamedTuple):
    """keys: the curve that is a line, and maybe one that is points; is_noisy: to be smoothed."""

    keys: tuple[str, ...]
    title: str
    unit: str
    starts_at_zero: bool = False
    is_noisy: bool = True
    may_be_log: bool = False


_LOSS = _Panel(("loss", "eval_loss"), "Loss", "nats per token")
_LOWER = (
    _Panel(("learning_rate",), "Learning rate", "", starts_at_zero=True, is_noisy=False),
    _Panel(("grad_norm",), "Gradient norm, before clipping", "", may_be_log=True),
    _Panel(("tokens_per_second",), "Throughput", "tokens per second", starts_at_zero=True),
)
_MFU = _Panel(("mfu",), "Model FLOPs utilization", "", starts_at_zero=True)


class _Style(NamedTuple):
    color: str
    dash: Any


def draw(runs: Sequence[RunCurves], path: Path, *, image_format: str, smooth: int = 1) -> None:
    """Write the picture to ``path``; lines are means over ``smooth`` logged steps, with each of them behind.

    Raises:
        OSError: it cannot be written.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    has_mfu = any("mfu" in run.curves for run in runs)
    lower = (*_LOWER, _MFU) if has_mfu else _LOWER
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(10, 9 if has_mfu else 6.5), layout="constrained")
        num_columns = 2 if has_mfu else 3
        rows = [lower[start : start + num_columns] for start in range(0, len(lower), num_columns)]
        grid = figure.add_gridspec(
            1 + len(rows), num_columns, height_ratios=[1.5, *[1.0] * len(rows)], hspace=0.05
        )
        _draw_panel(figure.add_subplot(grid[0, :]), _LOSS, runs, smooth)
        for row, panels in enumerate(rows, start=1):
            for column, panel in enumerate(panels):
                _draw_panel(figure.add_subplot(grid[row, column]), panel, runs, smooth)
        _name_runs(figure, runs)
        metadata = {"Date": None} if image_format == "svg" else None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)
            figure.savefig(path, format=image_format, dpi=140, metadata=metadata)


def _draw_panel(axes: "Axes", panel: _Panel, runs: Sequence[RunCurves], smooth: int) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter

    for index, run in enumerate(runs):
        line, *points = (run.curves.get(key) for key in panel.keys)
        style = _style(index)
        if line is not None:
            _draw_line(axes, line, style, smooth if panel.is_noisy else 1)
        for curve in points:
            if curve is not None:
                _draw_points(axes, curve, style)
    axes.set_title(panel.title)
    axes.set_ylabel(panel.unit)
    axes.set_xlabel("step")
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=(1, 2, 5, 10)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    curves = [run.curves[key] for run in runs for key in panel.keys if key in run.curves]
    steps = {step for curve in curves for step in (*curve.steps, *curve.not_finite)}
    if len(steps) == 1:
        axes.set_xlim(min(steps) - 1, min(steps) + 1)
    values = [value for curve in curves for value in curve.values]
    if not values:
        axes.set_yticks([])
        said = "no finite value" if steps else "no value yet"
        axes.text(0.5, 0.5, said, transform=axes.transAxes, ha="center", color="#545b66")
    elif panel.may_be_log and min(values) > _LOWEST_OF_LOG and max(values) / min(values) > _LOG_FROM:
        axes.set_yscale("log")
    elif panel.starts_at_zero and min(values) >= 0 and max(values) > 0:
        axes.set_ylim(0, _HEADROOM * max(values))
    if panel is _MFU:
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    elif panel.unit.startswith("tokens") and values:
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    if panel is _LOSS:
        _explain_marks(axes, runs)


def _draw_line(axes: "Axes", curve: Curve, style: _Style, smooth: int) -> None:
    is_smoothed = smooth > 1 and len(curve.values) > 1
    shape: dict[str, Any] = {"color": style.color, "linestyle": style.dash, "linewidth": 1.3}
    marker = "o" if len(curve.values) <= _FEW else None
    if is_smoothed:
        axes.plot(curve.steps, curve.values, **(shape | {"alpha": 0.25, "linewidth": 0.8}))
        axes.plot(curve.steps, smoothed(curve.values, smooth), **shape)
    else:
        axes.plot(curve.steps, curve.values, marker=marker, markersize=2.5, **shape)
    _mark_not_finite(axes, curve, style)


def _draw_points(axes: "Axes", curve: Curve, style: _Style) -> None:
    """Validation: rings in the run's colour, on a thin line."""
    size = 4.5 if len(curve.values) <= _FEW else 2.5
    axes.plot(curve.steps, curve.values, color=style.color, **_RING, markersize=size, zorder=3)
    _mark_not_finite(axes, curve, style)


def _mark_not_finite(axes: "Axes", curve: Curve, style: _Style) -> None:
    heights = [0.98] * len(curve.not_finite)
    axes.plot(
        curve.not_finite,
        heights,
        linestyle="none",
        marker="x",
        markersize=5,
        color=style.color,
        transform=axes.get_xaxis_transform(),
    )


def _explain_marks(axes: "Axes", runs: Sequence[RunCurves]) -> None:
    """What lines, rings and crosses are, as far as there are any."""
    from matplotlib.lines import Line2D

    ink = _HUES[0] if len(runs) == 1 else "#545b66"
    curves = [curve for run in runs for curve in run.curves.values()]
    handles = []
    if any("loss" in run.curves for run in runs):
        handles.append(Line2D([], [], color=ink, label="training"))
    if any("eval_loss" in run.curves for run in runs):
        handles.append(Line2D([], [], color=ink, label="validation", **_RING, markersize=4.5))
    if any(curve.not_finite for curve in curves):
        handles.append(Line2D([], [], color=ink, linestyle="none", marker="x", label="not finite"))
    axes.legend(
        handles=handles,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),  # above the panel, where it hides nothing
        borderaxespad=0.0,
        frameon=False,
        ncols=len(handles) or 1,
    )


def _name_runs(figure: "Figure", runs: Sequence[RunCurves]) -> None:
    """One run is the title; several have a legend below."""
    from matplotlib.lines import Line2D

    if len(runs) == 1:
        figure.suptitle(_shortened(runs[0].name), x=0.01, ha="left", fontsize=11)
        return
    styles = [_style(index) for index in range(len(runs))]
    handles = [
        Line2D([], [], color=style.color, linestyle=style.dash, linewidth=2, label=_shortened(run.name))
        for run, style in zip(runs, styles, strict=True)
    ]
    longest = max(len(_shortened(run.name)) for run in runs)
    num_columns = min(max(1, 120 // (longest + 8)), len(runs))
    figure.legend(handles=handles, loc="outside lower center", frameon=False, ncols=num_columns)


def _style(index: int) -> _Style:
    return _Style(_HUES[index % len(_HUES)], _DASHES[index // len(_HUES) % len(_DASHES)])


def _shortened(name: str) -> str:
    """A long name without its middle; no dollar of it begins a formula."""
    half = _LONGEST_NAME // 2
    short = name if len(name) <= _LONGEST_NAME else f"{name[:half]}…{name[-half:]}"
    return short.replace("$", r"\$")
