"""
Train on digits with a certificate
==================================

Digits as sequences of rows: train a classifier, read its certificate, look at its attention.

Scikit-learn's digits are 8 x 8 images; a sequence is the 8 rows of an image, with a coordinate that marks the
position and one that is constant (the model has no intercept). No download. Run: python examples/train_digits.py
"""

# %%
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.multiclass import OneVsRestClassifier

from attnlearn.compat import MultiHeadAttentionClassifier


def sequences(images: np.ndarray) -> np.ndarray:
    """Rows of the images as tokens of dimension 10."""
    num, rows, _ = images.shape
    place = np.broadcast_to(np.linspace(-1, 1, rows)[None, :, None], (num, rows, 1))
    return np.concatenate([images / 16 - 0.3, place, np.ones((num, rows, 1))], axis=2).astype(np.float32)


# %%
# Eight against nine, with a certificate.
digits = load_digits()
pair = np.isin(digits.target, (8, 9))
x_train, x_test, y_train, y_test = train_test_split(
    sequences(digits.images[pair]),
    digits.target[pair],
    test_size=0.3,
    random_state=0,
    stratify=digits.target[pair],
)
classifier = MultiHeadAttentionClassifier(num_heads=8, max_iter=300).fit(x_train, y_train)
print(f"8 against 9: held-out accuracy {classifier.score(x_test, y_test):.3f}")
print(classifier.certificate_)

# %%
# Which rows of the image it looks at.
patterns = classifier.attention_patterns(x_test).mean(axis=(0, 1, 2))
print("mean attention on each row of the image:", np.round(patterns, 3))

# %%
# Five digits, through scikit-learn's wrapper for several classes.
few = digits.target < 5
x_train, x_test, y_train, y_test = train_test_split(
    sequences(digits.images[few]).reshape(few.sum(), -1),
    digits.target[few],
    test_size=0.3,
    random_state=0,
    stratify=digits.target[few],
)
several = OneVsRestClassifier(MultiHeadAttentionClassifier(num_heads=4, max_iter=200, n_tokens=8))
print(f"five digits: held-out accuracy {several.fit(x_train, y_train).score(x_test, y_test):.3f}")

# %%
# The mean eight and the mean nine, and beside them the attention on each row.
import matplotlib.pyplot as plt

figure, axes = plt.subplots(1, 3, figsize=(9, 3), layout="constrained")
for ax, digit in zip(axes, (8, 9)):
    ax.imshow(digits.images[digits.target == digit].mean(axis=0), cmap="Greys")
    ax.set(title=f"mean {digit}", ylabel="row")
axes[2].barh(np.arange(8), patterns)
axes[2].invert_yaxis()
axes[2].set(title="mean attention", xlabel="share", ylabel="row")
plt.show()
