import os
import subprocess
from pathlib import Path

import pytest

from cluster.errors import UsageError
from cluster.model.ids import NAME_PATTERN
from jobs import git as git_calls
from jobs.refuse import Limits, Skip, by_content, by_name_and_size
from jobs.walk import Walk, default_project, walk
from tests.support.git_tree import commit, git, write


def _paths(found: Walk) -> list[str]:
    return [file.path for file in found.files]


# --- plain folders -----------------------------------------------------------------------------------------------------------


def test_a_plain_folder_is_walked_in_one_order_and_honours_its_ignore_files(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            ".gitignore": "*.log\n!keep.log\n/build/\n[\n",
            "a.log": "x",
            "keep.log": "x",
            "build/out.txt": "x",
            "sub/build/in.txt": "x",
            "sub/.gitignore": "*.txt\n!a.log\n",
            "sub/a.log": "x",
            "sub/b.log": "x",
            "sub/c.md": "x",
            "B.md": "x",
            "a.md": "x",
        },
    )
    found = walk(tmp_path)
    assert _paths(found) == [".gitignore", "B.md", "a.md", "keep.log", "sub/.gitignore", "sub/a.log", "sub/c.md"]
    assert (found.skipped, found.commit, found.warnings) == ((), None, ())
    assert walk(tmp_path) == found


def test_links_are_counted_and_never_followed(tmp_path: Path) -> None:
    root = tmp_path / "proj"
    write(root, {"f.py": "x", "a/x.py": "x", "b/y.py": "x"})
    write(tmp_path, {"outside.py": "x"})
    for name, target in {
        "self": ".",
        "up": "..",
        "a/l": "../b",
        "b/l": "../a",
        "root": "/",
        "dead": "no",
        "f2.py": "f.py",
    }.items():
        (root / name).symlink_to(target)
    links = ["a/l", "b/l", "dead", "f2.py", "root", "self", "up"]
    for _ in range(2):
        found = walk(root)
        assert _paths(found) == ["a/x.py", "b/y.py", "f.py"]
        assert found.skipped == tuple(Skip(path, "symlink") for path in links)
        commit(root)  # the second time as git lists it


def test_a_tracked_folder_that_became_a_link_is_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "repo"
    commit(root, {"a/x.py": "x", "t.py": "x"})
    write(tmp_path, {"secret/x.py": "x"})
    (root / "a/x.py").unlink()
    (root / "a").rmdir()
    (root / "a").symlink_to(tmp_path / "secret")
    found = walk(root)
    assert _paths(found) == ["t.py"]
    assert found.skipped == (Skip("a", "symlink"),)


def test_folders_of_dependencies_and_caches_are_left_out_by_name(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "node_modules/x/index.js": "x",
            "env/pyvenv.cfg": "x",
            "env/lib/a.py": "x",
            "__pycache__/a.txt": "x",
            "data/graph.txt": "x",
            "src/a.py": "x",
        },
    )
    for _ in range(2):
        found = walk(tmp_path, exclude=(tmp_path / "data",))
        assert _paths(found) == ["src/a.py"]
        assert found.skipped == (
            Skip("__pycache__", "dependencies or cache"),
            Skip("data", "data folder"),
            Skip("env", "dependencies or cache"),
            Skip("node_modules", "dependencies or cache"),
        )
        commit(tmp_path)


def test_what_is_no_regular_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    write(tmp_path, {"a.md": "x"})
    found = walk(tmp_path)
    assert (_paths(found), found.skipped) == (["a.md"], (Skip("pipe.txt", "not a regular file"),))


def test_an_unreadable_folder_does_not_stop_the_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"a/x.md": "x", "b/y.md": "x"})
    scandir = os.scandir

    def refuse(path: bytes) -> object:
        if os.fsencode(path).endswith(b"/a"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr("jobs.walk.os.scandir", refuse)
    found = walk(tmp_path)
    assert (_paths(found), found.skipped) == (["b/y.md"], (Skip("a", "unreadable: Permission denied"),))


def test_file_names_that_are_not_utf8_get_a_printable_name(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path)
    for name in (b"caf\xe9.md", "café.md".encode(), "cafe\u0301.md".encode(), b"new\nline.md"):
        with open(root + b"/" + name, "wb") as file:  # noqa: PTH123 - pathlib takes no bytes
            file.write(b"x")
    for _ in range(2):
        found = walk(tmp_path)
        assert sorted(_paths(found)) == ["caf\\xe9.md", "cafe\u0301.md", "café.md", "new\nline.md"]
        assert {file.relative for file in found.files} >= {b"caf\xe9.md"}
        assert found.warnings == ("1 file name(s) are not UTF-8 and are shown with \\xNN in place of those bytes",)
        commit(tmp_path)
    (tmp_path / "caf\\xe9.md").write_text("x")
    assert walk(tmp_path).skipped == (Skip("caf\\xe9.md", "another file has the same printable name"),)


@pytest.mark.parametrize("name", ["nowhere", "file.txt", "loop"])
def test_a_root_that_is_no_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file.txt").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError) as caught:
        walk(tmp_path / name)
    assert caught.value.field == "path"


# --- git ---------------------------------------------------------------------------------------------------------------------


def test_git_lists_tracked_and_untracked_files_but_no_ignored_ones(tmp_path: Path) -> None:
    head = commit(tmp_path, {".gitignore": "*.tmp\n", "a.py": "x", "kept.tmp": "x", "gone.py": "x"})
    git(tmp_path, "add", "-f", "kept.tmp")
    head = commit(tmp_path)
    write(tmp_path, {"new.py": "x", "b.tmp": "x"})
    (tmp_path / "gone.py").unlink()
    found = walk(tmp_path)
    assert _paths(found) == [".gitignore", "a.py", "kept.tmp", "new.py"]
    assert (found.commit, found.skipped) == (head, ())


def test_no_commit_yet_and_a_detached_head(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    write(tmp_path, {"f.py": "x"})
    assert (_paths(walk(tmp_path)), walk(tmp_path).commit) == (["f.py"], None)
    head = commit(tmp_path)
    git(tmp_path, "checkout", "-q", "--detach")
    assert (_paths(walk(tmp_path)), walk(tmp_path).commit) == (["f.py"], head)


def test_a_bare_repository_and_the_git_folder_are_refused_with_a_reason(tmp_path: Path) -> None:
    commit(tmp_path / "repo", {"a.py": "x"})
    git(tmp_path, "clone", "-q", "--bare", "repo", "bare.git")
    with pytest.raises(UsageError, match="bare repository"):
        walk(tmp_path / "bare.git")
    with pytest.raises(UsageError, match=r"inside a \.git folder"):
        walk(tmp_path / "repo/.git")


def test_worktrees_are_projects_of_their_own(tmp_path: Path) -> None:
    repo, tree = tmp_path / "repo", tmp_path / "wt"
    first = commit(repo, {"f.py": "x"})
    git(repo, "worktree", "add", "-q", "-b", "feat", "../wt")
    git(repo, "worktree", "add", "-q", "-b", "feat2", "inner-wt")
    second = commit(tree, {"g.py": "x"})
    assert (_paths(walk(repo)), walk(repo).commit) == (["f.py"], first)
    assert walk(repo).skipped == (Skip("inner-wt", "nested repository"),)
    assert (_paths(walk(tree)), walk(tree).commit) == (["f.py", "g.py"], second)


def test_submodules_and_nested_repositories_are_left_out_by_name(tmp_path: Path) -> None:
    sub = commit(tmp_path / "subsrc", {"s.py": "x"})
    repo = tmp_path / "repo"
    commit(repo, {"t.py": "x"})
    git(repo, "submodule", "--quiet", "add", "../subsrc", "sub")
    git(repo, "update-index", "--add", "--cacheinfo", f"160000,{sub},absent")
    git(repo, "commit", "-qm", "links")
    write(repo, {"stray/y.py": "x", "deep/er/z.py": "x"})
    git(repo / "stray", "init", "-q")
    commit(repo / "deep/er")
    found = walk(repo)
    assert _paths(found) == [".gitmodules", "t.py"]
    assert found.skipped == (
        Skip("absent", "submodule"),
        Skip("deep/er", "nested repository"),
        Skip("stray", "nested repository"),
        Skip("sub", "submodule"),
    )


@pytest.mark.parametrize(
    "name", ["données café.py", "a b/x.py", "日本.md", "tab\tname.py", 'quote"q.py', "-rf.py", "--output=x.py", ":(top)x.md"]
)
def test_any_file_name_comes_through_git_as_it_is(tmp_path: Path, name: str) -> None:
    commit(tmp_path, {name: "x"})
    assert _paths(walk(tmp_path)) == [name]


def test_a_branch_named_like_an_option_is_no_option(tmp_path: Path) -> None:
    head = commit(tmp_path, {"-rf.py": "x"})
    git(tmp_path, "update-ref", "refs/heads/--evil", "HEAD")
    git(tmp_path, "symbolic-ref", "HEAD", "refs/heads/--evil")
    assert (walk(tmp_path).commit, _paths(walk(tmp_path))) == (head, ["-rf.py"])


def test_part_of_a_repository_and_an_ignored_folder_of_one(tmp_path: Path) -> None:
    head = commit(tmp_path, {".gitignore": "out/\n", "docs/a.md": "x", "b.md": "x"})
    write(tmp_path, {"out/c.md": "x"})
    assert (_paths(walk(tmp_path / "docs")), walk(tmp_path / "docs").commit) == (["a.md"], head)
    assert (_paths(walk(tmp_path / "out")), walk(tmp_path / "out").commit) == (["c.md"], None)


def test_nothing_that_a_repository_configures_is_run(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    commit(repo, {"a.py": "x"})
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    git(repo, "config", "core.fsmonitor", str(hook))
    assert _paths(walk(repo)) == ["a.py"]
    assert not (tmp_path / "ran").exists()
    subprocess.run(["git", "status"], cwd=repo, capture_output=True, check=True)
    assert (tmp_path / "ran").exists()  # it would have been


def test_the_callers_own_git_variables_lead_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = commit(tmp_path / "other", {"other.py": "x"})
    own = commit(tmp_path / "repo", {"a.py": "x"})
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other/.git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "other/.git/index"))
    found = walk(tmp_path / "repo")
    assert (_paths(found), found.commit) == (["a.py"], own)
    assert own != other


def test_without_git_a_repository_is_read_as_a_folder_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = commit(tmp_path, {"a.py": "x"})
    assert git_calls.lost_commits(tmp_path, [head, "0" * 40, "--evil"]) == {"0" * 40, "--evil"}
    monkeypatch.setenv("PATH", str(tmp_path))
    found = walk(tmp_path)
    assert (_paths(found), found.commit) == (["a.py"], None)
    assert found.warnings == ("git is not installed; read as a plain folder",)
    assert git_calls.lost_commits(tmp_path, [head]) == {head}


def test_a_broken_repository_is_read_as_a_folder_and_says_so(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "x", ".git": "gitdir: /nowhere\n"})
    found = walk(tmp_path)
    assert _paths(found) == ["a.py"]
    assert "read as a plain folder" in found.warnings[0]


# --- what is refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "size", "reason"),
    [
        ("a.py", 600_000, None),
        ("a.py", 1024 * 1024 + 1, "oversized: 1048577 bytes, the limit is 1048576"),
        ("data.json", 300_000, "oversized data: 300000 bytes, the limit is 262144"),
        ("data.json", 200_000, None),
        ("package-lock.json", 262_145, "oversized data: 262145 bytes, the limit is 262144"),
        ("go.sum", 300_000, "oversized data: 300000 bytes, the limit is 262144"),
        ("dist/app.min.js", 10, "minified"),
        ("jquery-min.js", 10, "minified"),
        ("admin.md", 10, None),
        ("logo.PNG", 10, "binary"),
        (".png", 10, None),
    ],
)
def test_names_and_sizes(path: str, size: int, reason: str | None) -> None:
    assert by_name_and_size(path, size, Limits()) == reason


@pytest.mark.parametrize(
    ("path", "raw", "reason"),
    [
        ("a.txt", b"Invoice F\x0013 alpha\x00omega gamma\n", None),
        ("a.txt", b"\x7fELF\x02\x01\x01\x00\x00\x00\xff\xfe\x80", "binary"),
        ("a.txt", "wide".encode("utf-16-le"), "binary"),
        ("a.txt", "wide text".encode("utf-16"), None),
        ("a.txt", b"caf\xe9 total", None),
        ("a.txt", b"x" * 8191 + "é".encode() + b"y", None),
        ("a.txt", bytes(range(256)) * 4, "binary"),
        ("a.txt", b"%PDF-1.4\nplain", "binary"),
        ("a.txt", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "LFS pointer"),
        ("a.js", b"function a(b){return b};" * 1000, "minified"),
        ("a.js", b"function a(b){return b};\n" * 1000, None),
        ("a.md", b"words " * 10_000, None),
        ("line", b"words " * 10_000, None),
        ("deep.py", b"x = " + b"[" * 3000 + b"]" * 3000 + b"\ndef tail(): pass\n", None),
        ("a.js", b"x" * 5000, None),
        ("", b"x" * (1024 * 1024 + 1), "oversized: more than 1048576 bytes"),
    ],
)
def test_contents(path: str, raw: bytes, reason: str | None) -> None:
    assert by_content(path, raw, Limits()) == reason


# --- the project's name ------------------------------------------------------------------------------------------------------


def test_a_folder_has_one_project_name_however_it_is_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my repo"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    spellings = [folder, Path(f"{folder}/"), Path("my repo"), Path("./my repo/../my repo"), tmp_path / "link"]
    names = {default_project(spelling) for spelling in spellings}
    assert len(names) == 1
    assert names.pop().startswith("my-repo-")


def test_project_names_are_legal_and_tell_folders_apart(tmp_path: Path) -> None:
    odd = ["a b", "a;b", "-x", "$(id)", "ümlaut", "日本", ".hidden", "x" * 120]
    for name in [*odd, "raycall", "v1.2_x"]:
        (tmp_path / name).mkdir()
    names = [default_project(tmp_path / name) for name in odd]
    assert all(NAME_PATTERN.fullmatch(name) for name in names)
    assert len(set(names)) == len(odd)
    assert [default_project(tmp_path / name) for name in ("raycall", "v1.2_x")] == ["raycall", "v1.2_x"]
    assert NAME_PATTERN.fullmatch(default_project(Path("/")))
