from __future__ import annotations

import sqlite3

import numpy as np
import pytest

from attnlearn import AttentionLayer, OracleError
from attnlearn.oracle import Oracle
from attnlearn.oracle._cache import CacheWarning


class Counting:
    def __init__(self, layer, noise=0.0):
        self.layer, self.noise, self.rng, self.asked = layer, noise, np.random.default_rng(1), 0

    def __call__(self, x):
        self.asked += len(x)
        return self.layer(x) + self.noise * self.rng.standard_normal(x.shape)


@pytest.fixture
def layer(seed):
    return AttentionLayer.random(num_heads=2, dim=4, seed=seed)


@pytest.fixture
def x(rng):
    return rng.standard_normal((10, 3, 4))


def cached(function, folder, **options):
    return Oracle.wrap(function, name="teacher", cache=folder, **options)


def test_hits_ask_nothing(layer, x, tmp_path):
    function = Counting(layer)
    with cached(function, tmp_path) as oracle:
        first = oracle(x)
        asked = function.asked
        np.testing.assert_array_equal(oracle(x), first)
        np.testing.assert_array_equal(oracle(x[::-1], rows=[1]), first[::-1, [1]])
        assert function.asked == asked
        assert oracle.counts.cached == 20
        assert oracle.counts.sequences == asked
        assert oracle.counts.scalars == asked * 12


def test_a_new_session_asks_the_probes_only(layer, x, tmp_path):
    with cached(Counting(layer), tmp_path) as oracle:
        first = oracle(x)
    function = Counting(layer)
    with cached(function, tmp_path) as oracle:
        np.testing.assert_array_equal(oracle(x), first)
        assert function.asked == oracle.counts.sequences == 2
        more = np.concatenate([x, x[:1] + 1])
        np.testing.assert_array_equal(oracle(more)[-1:], layer(x[:1] + 1))
        assert function.asked == 3


def test_other_shapes_and_dtypes_are_other_questions(layer, tmp_path):
    function = Counting(layer)
    with cached(lambda x: function(x.astype(np.float64)), tmp_path) as oracle:
        oracle(np.zeros((1, 3, 4)))
        asked = function.asked
        oracle(np.zeros((1, 2, 4)))
        oracle(np.zeros((1, 3, 4), np.float32))
        assert function.asked == asked + 2


@pytest.mark.parametrize("change", [1e-6, 1.0])
def test_a_changed_oracle_is_an_error(layer, x, tmp_path, change):
    with cached(layer_function(layer), tmp_path) as oracle:
        oracle(x)
    other = layer.replace(w=layer.w * (1 + change))
    with (
        cached(layer_function(other), tmp_path) as oracle,
        pytest.raises(OracleError, match="has changed since"),
    ):
        oracle(x)


def test_a_changed_output_dimension_is_an_error(layer, x, tmp_path):
    with cached(layer_function(layer), tmp_path) as oracle:
        oracle(x)
    with (
        cached(lambda x: layer(x)[..., :2], tmp_path) as oracle,
        pytest.raises(OracleError, match="has changed"),
    ):
        oracle(x)


def layer_function(layer):
    return lambda x: layer(x)


def test_a_noisy_oracle_is_still_itself(layer, x, tmp_path):
    for _ in range(5):
        with cached(Counting(layer, noise=1e-3), tmp_path) as oracle:
            oracle(x)
    other = layer.replace(w=layer.w * 1.5)
    with (
        cached(Counting(other, noise=1e-3), tmp_path) as oracle,
        pytest.raises(OracleError, match="has changed"),
    ):
        oracle(x)


def test_different_layers_and_names_do_not_share(layer, x, tmp_path):
    other = AttentionLayer.random(num_heads=2, dim=4, seed=99)
    with Oracle.wrap(layer, cache=tmp_path) as a, Oracle.wrap(other, cache=tmp_path) as b:
        assert np.abs(a(x) - b(x)).max() > 0.1
    with cached(layer_function(other), tmp_path) as c:
        np.testing.assert_array_equal(c(x), other(x))
    assert len(list(tmp_path.glob("*.sqlite"))) == 3


def test_paid_answers_survive_a_failure(layer, x, tmp_path):
    calls = []

    def fails_late(batch):
        calls.append(len(batch))
        if len(calls) > 6:
            raise TypeError("broken")
        return layer(batch)

    with cached(fails_late, tmp_path, batch_size=2) as oracle, pytest.raises(OracleError):
        oracle(x)
    function = Counting(layer)
    with cached(function, tmp_path) as oracle:
        oracle(x)
        assert oracle.counts.cached >= 2


def test_budget_counts_what_is_asked_not_what_is_found(layer, x, tmp_path):
    with cached(layer_function(layer), tmp_path) as oracle:
        oracle(x)
    with cached(layer_function(layer), tmp_path, budget=2) as oracle:
        oracle(x)
        assert oracle.remaining == 0


def test_bad_cache_folders(layer, x, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"^cache: "):
        Oracle.wrap(layer, cache=tmp_path / "file")(x)


def test_foreign_files_are_refused(layer, x, tmp_path):
    with Oracle.wrap(layer, cache=tmp_path) as oracle:
        oracle(x)
    (file,) = tmp_path.glob("*.sqlite")
    with sqlite3.connect(file) as base:
        base.execute("UPDATE about SET schema = 'other'")
    base.close()
    with pytest.raises(ValueError, match=r"^cache: "):
        Oracle.wrap(layer, cache=tmp_path)(x)
    file.write_bytes(b"no database" * 1000)
    with pytest.raises(ValueError, match=r"^cache: "):
        Oracle.wrap(layer, cache=tmp_path)(x)


DAMAGE = {
    "UPDATE answer SET dtype = 'O'": "damaged, delete",
    "UPDATE answer SET tokens = 2": "damaged, delete",
    "UPDATE answer SET out_dim = NULL": "damaged, delete",
    "UPDATE answer SET answer = x'00'": "damaged, delete",
    "UPDATE answer SET out_dim = 2, tokens = 6, answer = zeroblob(96)": "damaged, delete",
    "UPDATE answer SET out_dim = 2, answer = zeroblob(48)": "must hold answers of one dimension",
    "UPDATE probe SET tokens = 1000000": "damaged, delete",
    "UPDATE probe SET dtype = 'two' || char(10) || 'lines'": "damaged, delete",
    "UPDATE probe SET answer = NULL": "damaged, delete",
    "UPDATE probe SET tolerance = 9e999": "damaged, delete",
}


@pytest.mark.parametrize("words", DAMAGE)
def test_a_damaged_file_is_refused_in_one_line(words, layer, x, tmp_path):
    with cached(layer, tmp_path) as oracle:
        oracle(x)
    (path,) = tmp_path.glob("*.sqlite")
    base = sqlite3.connect(path)
    with base:
        base.execute(words)
    base.close()
    with (
        cached(layer, tmp_path) as oracle,
        pytest.raises(ValueError, match=rf"^cache: {DAMAGE[words]}") as caught,
    ):
        oracle(x)
    assert str(path) in str(caught.value)
    assert str(caught.value).isprintable()


def test_answers_that_cannot_be_kept_are_a_warning(layer, x, tmp_path):
    with cached(layer, tmp_path) as oracle:
        first = oracle(x[:1])
        base = oracle._cache._base
        pages = base.execute("PRAGMA page_count").fetchone()[0]
        base.execute(f"PRAGMA max_page_count = {pages}")  # SQLite's own full disk
        many = np.concatenate([x + shift for shift in range(40)])
        with pytest.warns(CacheWarning, match=r"answers are not kept in .*database or disk is full"):
            np.testing.assert_allclose(oracle(many), layer(many), rtol=1e-12)
        np.testing.assert_array_equal(oracle(x[:1]), first)
