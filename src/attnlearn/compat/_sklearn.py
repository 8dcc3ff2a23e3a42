"""The classifier as a scikit-learn estimator: binary, sequences as 3-D arrays or flattened rows.

`fit` is `attnlearn.train.fit` with labels mapped to ±1; the certificate of the run is `certificate_`. Several
classes go through scikit-learn's own wrappers (`OneVsRestClassifier`, `OneVsOneClassifier`). The model has no
intercept: append a constant coordinate to the tokens, or centre them, where the data need one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from attnlearn._errors import NotEstablished, require
from attnlearn.training import TrainConfig, fit


class MultiHeadAttentionClassifier(ClassifierMixin, BaseEstimator):
    """Single-layer multi-head attention, trained by full-batch descent, with a certificate.

    `X` is (n, tokens, dim), or (n, tokens * dim) with `n_tokens=`. Learned: `classes_`, `model_` (a
    `TrainedClassifier`), `certificate_`, `solution_`, `n_iter_`, `loss_curve_`, `n_features_in_` (tokens * dim).

    >>> from attnlearn.data import TokenizedMixture
    >>> x, y = TokenizedMixture(tokens=4, dim=6).sample(40, seed=0)
    >>> classifier = MultiHeadAttentionClassifier(num_heads=4, max_iter=50).fit(x, y)
    >>> classifier.score(x, y), classifier.certificate_.certified
    (1.0, True)
    """

    def __init__(
        self,
        num_heads: int = 8,
        max_iter: int = 1000,
        random_state: Any = 0,
        init: str = "first-step",
        n_tokens: int | None = None,
        optimizer: str = "gd",
        step: float | str = "auto",
        init_scale: float = 1.0,
        replays: int = 0,
    ) -> None:
        self.num_heads = num_heads
        self.max_iter = max_iter
        self.random_state = random_state
        self.init = init
        self.n_tokens = n_tokens
        self.optimizer = optimizer
        self.step = step
        self.init_scale = init_scale
        self.replays = replays

    def fit(self, X: Any, y: Any) -> MultiHeadAttentionClassifier:
        """Train on sequences X with two classes y."""
        tokens = self._tokens_of(X, fitted=False)
        X, y = validate_data(self, _flat(X), y, dtype=(np.float64, np.float32), ensure_min_samples=2)
        check_classification_targets(y)
        kind = type_of_target(y, input_name="y")
        if kind != "binary":
            raise ValueError(
                f"Only binary classification is supported. The type of the target is {kind}. "
                "Use sklearn.multiclass.OneVsRestClassifier for several classes."
            )
        self.classes_ = np.unique(y)
        if len(self.classes_) < 2:
            raise ValueError(f"y: must hold 2 classes, got 1 class ({self.classes_[0]})")
        tokens = self._divide(X.shape[1], tokens)
        solution = fit(
            X.reshape(len(X), tokens, -1),
            np.where(y == self.classes_[1], 1, -1),
            num_heads=self.num_heads,
            init=self.init,
            optimizer=self.optimizer,
            step=self.step,
            max_steps=self.max_iter,
            seed=_seed(self.random_state),
            config=TrainConfig(self.init_scale, self.replays, recursion=self.replays > 0),
            progress=False,
            raise_on_failure=False,
        )
        if "curves" not in solution.stats:  # the run did not come to its end
            raise NotEstablished(solution)
        self.solution_, self.model_, self.certificate_ = solution, solution.layer, solution.certificate
        self.n_tokens_ = tokens
        self.n_iter_ = solution.stats["steps"]
        self.loss_curve_ = solution.stats["curves"]["loss"]
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Phi of every sequence; positive means `classes_[1]`."""
        sequences = self._sequences(X)
        return self.model_.decision(sequences).astype(np.float64)

    def predict(self, X: Any) -> np.ndarray:
        """The likelier class of every sequence."""
        positive = self.decision_function(X) > 0
        return self.classes_[positive.astype(int)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of `classes_` under the logistic model."""
        from scipy.special import expit

        score = self.decision_function(X)
        return np.stack([expit(-score), expit(score)], axis=1)

    def attention_patterns(self, X: Any) -> np.ndarray:
        """Attention (n, heads, tokens, tokens) of every head; rows sum to 1."""
        sequences = self._sequences(X)
        return self.model_.patterns(sequences)

    def _sequences(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        given = self._tokens_of(X, fitted=True)
        if given is not None:
            require(given == self.n_tokens_, "X", f"must have {self.n_tokens_} tokens as in fit", given)
        X = validate_data(self, _flat(X), reset=False, dtype=(np.float64, np.float32))
        return X.reshape(len(X), self.n_tokens_, -1).astype(self.model_.dtype, copy=False)

    def _tokens_of(self, X: Any, fitted: bool) -> int | None:
        """Tokens of a 3-D array; None for anything that scikit-learn's own checks should see first."""
        shape = np.shape(X) if isinstance(X, (list, tuple)) else getattr(X, "shape", ())
        if len(shape) != 3:
            return None
        agrees = fitted or self.n_tokens in (None, shape[1])
        require(agrees, "n_tokens", f"must be None or {shape[1]} for X of this shape", self.n_tokens)
        return int(shape[1])

    def _divide(self, features: int, tokens: int | None) -> int:
        if tokens is not None:
            return tokens
        if self.n_tokens is None:
            raise ValueError("n_tokens: must be given for 2-D X, got None")
        whole = isinstance(self.n_tokens, (int, np.integer)) and self.n_tokens >= 1
        require(whole, "n_tokens", "must be an integer >= 1", self.n_tokens)
        number = int(self.n_tokens)
        require(features % number == 0, "n_tokens", f"must divide the {features} features", number)
        return number

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.three_d_array = True
        return tags


def _flat(X: Any) -> Any:
    if getattr(X, "ndim", None) == 3 or (isinstance(X, (list, tuple)) and np.ndim(X) == 3):
        X = np.asarray(X)
        return X.reshape(len(X), X.shape[1] * X.shape[2])
    return X


def _seed(random_state: Any) -> int:
    from sklearn.utils import check_random_state

    if isinstance(random_state, (int, np.integer)):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
