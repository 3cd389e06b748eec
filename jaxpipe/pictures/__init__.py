"""Pictures of schedules: for a browser, a terminal, and a trace viewer; standard library only."""

from jaxpipe.pictures.figures import Table, comparison_table, figures, rank_table
from jaxpipe.pictures.html import html
from jaxpipe.pictures.sheet import find_picture_faults
from jaxpipe.pictures.svg import svg
from jaxpipe.pictures.timed import Timed, what_follows
from jaxpipe.pictures.trace import chrome_trace, chrome_trace_of_all, find_trace_faults

__all__ = [
    "Table",
    "Timed",
    "chrome_trace",
    "chrome_trace_of_all",
    "comparison_table",
    "figures",
    "find_picture_faults",
    "find_trace_faults",
    "html",
    "rank_table",
    "svg",
    "what_follows",
]
