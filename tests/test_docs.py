"""Pages of the documentation: links lead somewhere, what is generated is current, the site can be built."""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from docs import recipes_page

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "path", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]), ids=lambda path: path.name
)
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    for target in targets:
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


@pytest.mark.parametrize(
    ("script", "written_to", "pictures", "page"),
    [
        ("schedules_page.py", ".", "schedules", {Path("schedules.md")}),
        ("ticks_page.py", "ticks", "ticks", set()),
    ],
)
def test_pages_and_pictures_are_what_the_code_gives(
    script: str, written_to: str, pictures: str, page: set[Path], tmp_path: Path
) -> None:
    """``make docs`` writes them anew."""
    docs = ROOT / "docs"
    subprocess.run([sys.executable, docs / script, tmp_path / written_to], check=True, timeout=120)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    written = {path.relative_to(tmp_path): path.read_bytes() for path in files}
    assert set(written) == page | {path.relative_to(docs) for path in (docs / pictures).iterdir()}
    for path, content in written.items():
        assert (docs / path).read_bytes() == content, f"{path} is out of date: make docs"


def test_the_configuration_page_is_what_the_code_gives(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, ROOT / "docs" / "configuration_page.py", tmp_path], check=True, timeout=60
    )
    written = (tmp_path / "configuration.md").read_text(encoding="utf-8")
    assert (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8") == written, (
        "out of date: make docs"
    )


def test_the_recipes_show_what_a_dry_run_prints() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert recipes_page.with_figures(page) == page, "out of date: make docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a warning: of links that lead nowhere, among others."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    return folder


def test_the_site_has_what_pages_link_to_outside_docs(site: Path) -> None:
    assert "configs/llama3_1b.yaml.txt" in (site / "recipes.html").read_text()
    assert (site / "files" / "configs" / "llama3_1b.yaml.txt").exists()


def test_every_link_of_the_site_leads_to_a_file_so_that_it_works_from_the_disk(site: Path) -> None:
    pages = set(site.glob("*.html")) - {site / "404.html"}  # which only a server shows
    assert len(pages) == len(list((ROOT / "docs").glob("*.md")))
    for page in pages:
        links = re.findall(r"""<[^>]* (?:href|src)=["']?([^"'\s>]+)""", page.read_text(encoding="utf-8"))
        paths = [
            link.path for link in map(urlsplit, links) if not link.scheme and not link.netloc and link.path
        ]
        assert any(path.endswith(".html") for path in paths)
        for path in paths:
            assert (page.parent / unquote(path)).is_file(), f"{page.name} links to {path}"
