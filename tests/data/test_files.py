"""Which files a path means, under which names and in which order."""

import os
import sysconfig
from pathlib import Path

import pytest

from jaxpipe.data import find_files
from jaxpipe.errors import InputError


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """texts/{a.txt, b.md, c.jpg, deep/{a.txt, d.py, e.jsonl}}"""
    root = tmp_path / "texts"
    (root / "deep").mkdir(parents=True)
    for name in ("b.md", "a.txt", "c.jpg", "deep/e.jsonl", "deep/d.py", "deep/a.txt"):
        (root / name).write_text(f'{{"text": "{name}"}}')
    return root


def names(path: str | list[str]) -> list[str]:
    return [file.name for file in find_files(path)]


def test_a_file_a_folder_and_a_glob_name_files_below_what_was_asked_for(texts):
    assert names(f"{texts}/a.txt") == ["a.txt"]
    assert names(str(texts)) == ["a.txt", "b.md", "deep/a.txt", "deep/d.py", "deep/e.jsonl"]
    assert names(f"{texts}/*.txt") == ["a.txt"]
    assert names(f"{texts}/**/*.txt") == ["a.txt", "deep/a.txt"]
    assert names(f"{texts}/*/?.py") == ["deep/d.py"]


def test_names_depend_neither_on_the_place_nor_on_the_working_folder(texts, tmp_path, monkeypatch):
    elsewhere = tmp_path / "other" / "place"
    elsewhere.parent.mkdir()
    texts.rename(elsewhere)
    monkeypatch.chdir(elsewhere)
    assert names("**/*.txt") == ["a.txt", "deep/a.txt"]
    assert names(".") == ["a.txt", "b.md", "deep/a.txt", "deep/d.py", "deep/e.jsonl"]


def test_the_order_of_a_list_does_not_matter_and_a_file_counts_once(texts):
    paths = [f"{texts}/*.txt", f"{texts}/b.md", f"{texts}/deep", f"{texts}/deep/../a.txt"]
    assert sorted(names(paths)) == sorted(names(paths[::-1]))
    assert {file.path.resolve() for file in find_files(paths)} == {
        file.path.resolve() for file in find_files(paths[::-1])
    }
    assert len(names(paths)) == 5


def test_a_file_whose_name_looks_like_a_glob_is_that_file(texts):
    (texts / "odd[1].txt").write_text("x")
    assert names(f"{texts}/odd[1].txt") == ["odd[1].txt"]


def test_all_that_is_wrong_with_a_list_of_paths_is_told_at_once(texts, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "b.md")
    with pytest.raises(InputError) as error:
        find_files([f"{texts}/none.txt", f"{texts}/*", f"{texts}/*.exe"])
    said = str(error.value)
    assert f"'{texts}/none.txt' matches no file" in said
    assert f"'{texts}/*.exe' matches no file" in said
    assert f"{texts}/c.jpg is none of .txt, .py, .md, .jsonl" in said
    assert f"{texts}/b.md cannot be read" in said


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("a" * 300, "file name too long"),
        ("~nouser/x", "could not determine home directory"),
        ("a\0b", "matches no file|null"),
        ("a\0b/*.txt", "matches no file|null"),
    ],
)
def test_a_path_that_cannot_be_looked_up_is_a_fault_beside_the_others(path, said, texts):
    with pytest.raises(InputError, match=f"{said}.*'none' matches no file"):
        find_files([path, "none"])


def test_a_loop_of_links_is_a_fault(texts):
    (texts / "loop.txt").symlink_to(texts / "loop.txt")
    with pytest.raises(InputError, match=r"loop\.txt' (matches no file|cannot be looked up)"):
        find_files(f"{texts}/loop.txt")


def test_files_that_are_all_empty_are_refused(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match="all 2 files are empty"):
        find_files(str(tmp_path))
    with pytest.raises(InputError, match="the only file is empty"):
        find_files(f"{tmp_path}/a.txt")
    with pytest.raises(InputError, match="the list of paths is empty"):
        find_files([])


def test_the_default_is_pythons_own_source_without_tests_and_packages():
    files = find_files(None)
    found = {file.name for file in files}
    assert {"abc.py", "json/decoder.py", "unittest/case.py", "asyncio/tasks.py"} <= found
    assert [file.name for file in files] == sorted(found)
    folders = {part for file in files for part in file.name.split("/")[:-1]}
    assert folders.isdisjoint({"site-packages", "test", "tests", "__pycache__", "idle_test", "pydoc_data"})
    assert not any("_sysconfigdata" in name for name in found)
    assert all(file.path == Path(sysconfig.get_path("stdlib"), file.name) for file in files)
    assert len(files) > 400


def test_a_python_without_source_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(InputError, match=r"no standard library source .* set data\.path"):
        find_files(None)


def test_a_folder_leaves_out_what_is_hidden_as_a_glob_does(tmp_path):
    for name in ("a.txt", "b/c.md", ".git/d.md", "b/.e.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    for path in (str(tmp_path), f"{tmp_path}/**/*.*"):
        assert [file.name for file in find_files(path)] == ["a.txt", "b/c.md"]
    assert [file.name for file in find_files(f"{tmp_path}/.git")] == ["d.md"]
