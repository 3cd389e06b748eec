"""A picture as one HTML page: it loads nothing, fits a phone, and follows the reader's colour scheme.

The names of the rows stay in sight while the rows scroll. Whatever has a title tells it in a box beside the
pointer, or where a finger touches; without scripts the browser shows it.
"""

from collections.abc import Iterator, Sequence

from jaxpipe.pictures.colors import style
from jaxpipe.pictures.elements import FONT_STYLE, escape, number
from jaxpipe.pictures.figures import Table, comparison_table, figures, heading, rank_table
from jaxpipe.pictures.legend import SAMPLE, draw_sample, legend, shades_of
from jaxpipe.pictures.sheet import draw_left, draw_right, lay_out, width_of_heads
from jaxpipe.pictures.timed import Timed
from jaxpipe.pictures.timeline import BOX, PATTERNS, STYLE

PAGE_STYLE = f"""\
{FONT_STYLE}
text.title{{font-weight:600}}
.held-b-sample rect{{fill:var(--held-b)}}
.held-w-sample rect{{fill:var(--held-w)}}
{STYLE}
*{{box-sizing:border-box}}
body{{margin:0;padding:16px;background:var(--page);color:var(--text);
font:15px/1.45 system-ui,"Segoe UI",Helvetica,Arial,"DejaVu Sans",sans-serif}}
h1{{font-size:20px;margin:0 0 12px;overflow-wrap:anywhere}}
p{{margin:12px 0 4px;color:var(--muted)}}
h2{{font-size:16px;margin:24px 0 8px;overflow-wrap:anywhere}}
dl,ul{{display:flex;flex-wrap:wrap;gap:8px;margin:0 0 16px;padding:0;list-style:none}}
dl div{{background:var(--panel);border-radius:6px;padding:6px 12px}}
dt{{color:var(--muted);font-size:12px}}
dd{{margin:0;font-size:17px;font-variant-numeric:tabular-nums}}
li{{display:flex;align-items:center;gap:6px;margin-right:12px;font-size:13px}}
svg{{display:block;flex:none}}
.sheet{{display:flex;border:1px solid var(--grid);border-radius:6px;padding:4px 0 4px 10px}}
.scroll{{overflow-x:auto;flex:1 1 0;min-width:0}}
table{{border-collapse:collapse;margin-bottom:12px;font-variant-numeric:tabular-nums}}
th,td{{padding:4px 12px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--grid)}}
th:first-child,td:first-child{{text-align:left;padding-left:0}}
th{{color:var(--muted);font-weight:600}}
#tip{{position:fixed;z-index:1;max-width:min(320px,calc(100vw - 16px));padding:6px 10px;border-radius:6px;
background:var(--text);color:var(--page);font-size:13px;pointer-events:none}}
#tip[hidden]{{display:none}}"""

SCRIPT = """\
const tip = document.getElementById("tip");
for (const title of document.querySelectorAll("g > title")) {
  title.parentNode.dataset.tip = title.textContent;
  title.remove();
}
function show(event) {
  const part = event.target.closest ? event.target.closest("[data-tip]") : null;
  tip.hidden = !part;
  if (!part) return;
  tip.textContent = part.dataset.tip;
  const right = innerWidth - tip.offsetWidth - 8, below = event.clientY + 18;
  const above = event.clientY - tip.offsetHeight - 12;
  tip.style.left = Math.max(8, Math.min(event.clientX + 12, right)) + "px";
  tip.style.top = (below + tip.offsetHeight > innerHeight ? Math.max(above, 8) : below) + "px";
}
addEventListener("pointermove", show);
addEventListener("pointerdown", show);
addEventListener("scroll", () => { tip.hidden = true; }, true);"""


def html(
    compared: Sequence[Timed], *, title: str | None = None, tables: Sequence[tuple[str, Table]] | None = None
) -> str:
    """One schedule, or several under one time axis, with their figures: the text of a file.

    title, tables: instead of the names of the schedules and of their figures; a table has a line above it.
    """
    if tables is not None:
        above = [part for line, table in tables for part in (f"<p>{escape(line)}</p>", *_draw_table(table))]
    elif len(compared) == 1:
        above = [*_draw_figures(compared[0])]
    else:
        above = [*_draw_table(comparison_table(compared))]
    return "\n".join(
        [
            *_head(compared, title or heading(compared)),
            f"<h1>{escape(title or heading(compared))}</h1>",
            *above,
            *_draw_legend(compared),
            *_draw_sheet(compared),
            *(part for timed in compared for part in _draw_ranks(timed)),
            '<div id="tip" hidden></div>',
            f"<script>\n{SCRIPT}\n</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _head(compared: Sequence[Timed], title: str) -> Iterator[str]:
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    yield "<!DOCTYPE html>"
    yield '<html lang="en">'
    yield "<head>"
    yield '<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield f"<title>{escape(title)}</title>"
    yield f"<style>\n{style(shades_of(compared))}\n{PAGE_STYLE}\n</style>"
    yield "</head>"
    yield "<body>"


def _draw_figures(timed: Timed) -> Iterator[str]:
    yield "<dl>"
    for name, value in figures(timed):
        yield f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
    yield "</dl>"


def _draw_table(table: Table) -> Iterator[str]:
    yield '<div class="scroll"><table>'
    yield f"<tr>{''.join(f'<th>{escape(cell)}</th>' for cell in table.header)}</tr>"
    for row in table.rows:
        yield f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
    yield "</table></div>"


def _draw_legend(compared: Sequence[Timed]) -> Iterator[str]:
    yield "<ul>"
    for item in legend(compared):
        sample = f'<svg width="{SAMPLE:g}" height="{BOX:g}">{draw_sample(item, 0, 0)}</svg>'
        yield f"<li>{sample}{escape(item.text)}</li>"
    yield "</ul>"


def _draw_sheet(compared: Sequence[Timed]) -> Iterator[str]:
    heads, sheet = width_of_heads(compared), lay_out(compared, left=2, top=0)
    height, width = number(sheet.bottom), number(sheet.axis.width + 4)
    yield '<div class="sheet">'
    yield f'<svg width="{number(heads)}" height="{height}">{PATTERNS}'
    yield from draw_left(sheet, left=0)
    yield "</svg>"
    yield f'<div class="scroll" tabindex="0"><svg width="{width}" height="{height}">'
    yield from draw_right(sheet)
    yield "</svg></div>"
    yield "</div>"


def _draw_ranks(timed: Timed) -> Iterator[str]:
    yield f"<h2>{escape(timed.title)}: each rank</h2>"
    yield from _draw_table(rank_table(timed))
