"""For mkdocs: pages link to files that lie outside docs/, such as presets and sources; the site gets copies.

On the site ``../configs/tiny.yaml`` is ``files/configs/tiny.yaml.txt``. What is no file, a folder, becomes
plain text, since a site has nothing to show for it.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]

_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\(\.\./(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to."""
    for page in files.documentation_pages():
        for link in _LINK.finditer(page.content_string):
            path = link["path"]
            if (ROOT / path).is_file() and files.get_file_from_path(_copy_of(path)) is None:
                files.append(File.generated(config, _copy_of(path), content=(ROOT / path).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead the links there."""
    return _LINK.sub(_moved, markdown)


def _moved(link: re.Match[str]) -> str:
    if not (ROOT / link["path"]).is_file():
        return link["text"]
    return f"[{link['text']}]({_copy_of(link['path'])})"


def _copy_of(path: str) -> str:
    """Sources as text, which browsers show; Markdown would become a page of its own."""
    return f"files/{path}.txt" if path.endswith((".py", ".md", ".yaml")) else f"files/{path}"
