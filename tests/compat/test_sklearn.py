"""The estimator: scikit-learn's own checks, pipelines, grids, wrappers, both input shapes, clear errors."""

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from attnlearn.compat import MultiHeadAttentionClassifier
from attnlearn.data import TokenizedMixture

X, Y = TokenizedMixture(tokens=4, dim=6).sample(60, seed=0)
FLAT = X.reshape(60, -1)


@pytest.mark.slow
def test_check_estimator():
    """n_tokens=1 because the checks send 2-D arrays of many widths, which no other count divides."""
    results = check_estimator(
        MultiHeadAttentionClassifier(num_heads=2, max_iter=60, n_tokens=1), on_fail=None, on_skip=None
    )
    failed = {
        result["check_name"]: str(result["exception"]) for result in results if result["status"] == "failed"
    }
    assert failed == {}
    skipped = {result["check_name"] for result in results if result["status"] == "skipped"}
    assert skipped <= {"check_array_api_input"}  # needs SCIPY_ARRAY_API=1 in the environment


def test_flat_and_sequence_input_agree():
    sequence = MultiHeadAttentionClassifier(num_heads=2, max_iter=30).fit(X, Y)
    flat = MultiHeadAttentionClassifier(num_heads=2, max_iter=30, n_tokens=4).fit(FLAT, Y)
    np.testing.assert_array_equal(sequence.decision_function(X), flat.decision_function(FLAT))
    assert sequence.n_features_in_ == flat.n_features_in_ == 24
    assert sequence.attention_patterns(X).shape == (60, 2, 4, 4)
    np.testing.assert_allclose(sequence.predict_proba(X).sum(axis=1), 1)
    assert sequence.certificate_.certified


def test_pipeline_and_grid_search():
    pipeline = make_pipeline(StandardScaler(), MultiHeadAttentionClassifier(max_iter=15, n_tokens=4))
    grid = GridSearchCV(pipeline, {"multiheadattentionclassifier__num_heads": [1, 2]}, cv=2)
    assert grid.fit(FLAT, Y).best_score_ > 0.8


def test_several_classes_through_the_wrapper():
    y = np.where(Y > 0, "up", "down").astype(object)
    y[:20] = np.where(X[:20, 0, 0] > 0, "left", y[:20])
    wrapped = OneVsRestClassifier(MultiHeadAttentionClassifier(num_heads=2, max_iter=20, n_tokens=4))
    assert set(wrapped.fit(FLAT, y.astype(str)).predict(FLAT)) <= {"up", "down", "left"}


@pytest.mark.parametrize(
    ("x", "y", "settings", "message"),
    [
        (X, np.arange(60) % 3, {}, "Only binary classification is supported"),
        (X, np.ones(60), {}, "must hold 2 classes"),
        (X, np.where(np.arange(60) == 3, np.nan, Y), {}, "Input y contains NaN"),
        (X[:0], Y[:0], {}, r"Found array with 0 sample\(s\)"),
        (FLAT, Y, {}, "n_tokens: must be given for 2-D X"),
        (FLAT, Y, {"n_tokens": 5}, "n_tokens: must divide the 24 features"),
        (X, Y, {"n_tokens": 3}, "n_tokens: must be None or 4"),
        (X, Y, {"num_heads": 0}, "num_heads: must be an integer >= 1"),
        (np.where(np.arange(4)[:, None] == 1, np.nan, X), Y, {}, "NaN"),
    ],
)
def test_bad_input_is_named(x, y, settings, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttentionClassifier(max_iter=5, **settings).fit(x, y)


def test_other_number_of_tokens_at_predict_is_named():
    classifier = MultiHeadAttentionClassifier(num_heads=1, max_iter=5).fit(X, Y)
    with pytest.raises(ValueError, match="X: must have 4 tokens as in fit, got 3"):
        classifier.predict(X[:, :3])
