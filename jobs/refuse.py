"""Which files are not worth indexing, by name, size and content; each with its reason."""

# ruff: noqa: SIM905 - lists of words read best as words
from __future__ import annotations

import codecs
import posixpath
from dataclasses import dataclass

#: Folders that hold other people's code, caches or this program's own data, whatever .gitignore says.
FOLDERS = frozenset(
    b".git .hg .svn .jj node_modules bower_components .venv venv virtualenv site-packages __pycache__ .tox .nox .eggs "
    b".mypy_cache .ruff_cache .pytest_cache .hypothesis .ipynb_checkpoints .gradle .terraform .next .nuxt .svelte-kit "
    b".turbo .parcel-cache .yarn .pnpm-store .raycall".split()
)
_BINARY = frozenset(
    "png jpg jpeg gif bmp ico webp tif tiff psd heic avif mp3 mp4 m4a wav flac ogg avi mov mkv webm woff woff2 ttf otf eot "
    "zip gz tgz bz2 xz zst lz4 7z rar tar jar war ear whl egg deb rpm dmg iso img exe dll so dylib a o obj lib pyc pyo pyd "
    "class wasm node bin dat db sqlite sqlite3 mdb parquet arrow feather orc npy npz pkl pickle pt pth onnx h5 hdf5 "
    "safetensors faiss pdf doc docx xls xlsx ppt pptx odt ods odp epub blend glb fbx".split()
)
_DATA = frozenset("json jsonl ndjson geojson csv tsv lock xml svg map ipynb sql log har".split())
_DATA_NAMES = frozenset("package-lock.json npm-shrinkwrap.json pnpm-lock.yaml go.sum".split())
#: What programs write without line ends. In prose a long line is a paragraph, in other code it is a table or a key.
_MINIFIED = frozenset("js mjs cjs jsx ts mts cts tsx css scss less html htm xhtml json xml svg map".split())
_SAMPLE_BYTES = 8192
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


@dataclass(frozen=True, slots=True)
class Skip:
    """A file or folder that is not indexed."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes from which a file is left out, in bytes; average line lengths in bytes."""

    max_bytes: int = 1024 * 1024
    #: For data and lock files, which are long and say little.
    max_data_bytes: int = 256 * 1024
    #: A file of web code or markup above this size ...
    minified_bytes: int = 5 * 1024
    #: ... whose lines are longer than this on average was made by a program.
    minified_line: int = 500


def by_name_and_size(path: str, size: int, limits: Limits) -> str | None:
    """Why the file is left out unread; None if it may be read."""
    name = posixpath.basename(path).lower()
    suffix = _suffix(name)
    if suffix in _BINARY:
        return "binary"
    if ".min." in name or name.endswith(("-min.js", "-min.css")):
        return "minified"
    if size > limits.max_bytes:
        return f"oversized: {size} bytes, the limit is {limits.max_bytes}"
    if size > limits.max_data_bytes and (suffix in _DATA or name in _DATA_NAMES):
        return f"oversized data: {size} bytes, the limit is {limits.max_data_bytes}"
    return None


def by_content(path: str, raw: bytes, limits: Limits) -> str | None:
    """Why the file that holds `raw` is left out; None if it is text worth indexing."""
    if len(raw) > limits.max_bytes:
        return f"oversized: more than {limits.max_bytes} bytes"
    if raw.startswith(_LFS_POINTER):
        return "LFS pointer"
    if _is_binary(raw[:_SAMPLE_BYTES]):
        return "binary"
    if len(raw) > limits.minified_bytes and _suffix(posixpath.basename(path).lower()) in _MINIFIED:
        lines = raw.count(b"\n") + 1
        if len(raw) / lines > limits.minified_line:
            return "minified"
    return None


def _is_binary(sample: bytes) -> bool:
    """Text may hold a stray NUL (from PDFs, say); a sample that is no UTF-8 as well, or mostly control bytes, is not text."""
    if sample.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)):
        return False
    if sample.startswith(b"%PDF-"):
        return True
    controls = sum(1 for byte in sample if byte < 32 and byte not in b"\t\n\r\x0c\x1b")
    if not controls:
        return False
    if controls * 10 > len(sample):
        return True
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        return 0 in sample or controls * 20 > len(sample)
    return False


def _suffix(name: str) -> str:
    return name.rpartition(".")[2] if "." in name[1:] else ""
