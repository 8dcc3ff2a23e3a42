"""Atoms: directions in which a share of all points has one and the same value, which points with a density never have.

Flags, types of tokens and grids have such directions, also when no axis shows them. So have tokens in a union of hyperplanes: each piece
has one value in its own normal direction. Stacked sequences have them where one relation ties the tokens of some sequences and another
one those of others.

Starts are directions of an extreme fourth moment (fixed-point steps w <- E[z (w.z)^3] - 3 w) and normals of a few neighbours. From each of
them the shortest interval that holds a share of the points is taken, and the direction in which the points inside it vary least; both in
turn. On an atom this ends with points that do not vary at all.
Cost: some products with the points. What can fail: an atom of a smaller share than `FEW`, and pieces so many that no start comes near to one.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from attnlearn.solve import _calibration as calibration
from attnlearn.solve._sequences import evidence_wanted

Points = Float[np.ndarray, "n r"]
SHARES = (calibration.DIGIT, calibration.FEW)
"""Shares of the points that an interval holds: the larger one leads from farther away, the smaller one sees more pieces."""


def has_atom(points: Points, rng: np.random.Generator) -> bool:
    """Whether a share of these points, in white coordinates, has one value in some direction while it varies in others.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((1000, 3))
    >>> flagged = np.concatenate([x, np.where(rng.random((1000, 1)) < 0.3, 1.5, -0.65)], axis=1)
    >>> has_atom(x, rng), has_atom(flagged, rng)
    (False, True)
    """
    width = points.shape[1]
    most = min(calibration.DRAWS * calibration.SAMPLE * width, 2 * calibration.LOOK_MOST)
    points = points[: max(calibration.SIDE_MOST, most)]
    if width == 1 or len(points) < calibration.EQUATIONS_PER_UNKNOWN * width:
        return False
    least = 2 * width + evidence_wanted()
    starts = (*_extreme(points, rng), *_normals(points, rng))
    numbers = {max(least, int(share * len(points))) for share in SHARES}
    return any(_ends_in_atom(points, start, number) for number in numbers for start in starts)


def _extreme(points: Points, rng: np.random.Generator) -> Points:
    """Directions whose fourth moment is extreme."""
    found = rng.standard_normal((points.shape[1], calibration.DRAWS))
    for _ in range(calibration.STEPS_MOST // 2):
        found /= np.maximum(np.linalg.norm(found, axis=0), np.finfo(float).tiny)
        along = points @ found
        found = points.T @ (along * along * along) / len(points) - 3 * found
    return found.T


def _normals(points: Points, rng: np.random.Generator) -> Points:
    """For some points the direction in which their nearest neighbours vary least."""
    number, width = points.shape
    squares, found = np.vecdot(points, points), []
    for place in rng.choice(number, calibration.DRAWS):
        distances = squares - 2 * points @ points[place]
        near = points[np.argpartition(distances, width + 1)[: width + 2]]
        found.append(np.linalg.svd(near - near.mean(axis=0))[2][-1])
    return np.array(found)


def _ends_in_atom(points: Points, direction: np.ndarray, number: int) -> bool:
    """Whether the shortest interval with so many points, and the direction in which they vary least, end in no variance."""
    before = np.inf
    for _ in range(calibration.STEPS_MOST // 2):
        inside = points[_shortest(points @ direction, number)]
        inside = inside - inside.mean(axis=0)
        values, vectors = np.linalg.eigh(inside.T @ inside / number)
        if values[0] < calibration.NO_VARIANCE * values[-1]:
            return True
        if not values[0] < (1 - calibration.FEW) * before:
            return False
        before, direction = values[0], vectors[:, 0]
    return False


def _shortest(along: np.ndarray, number: int) -> np.ndarray:
    """The points inside the shortest interval that holds so many of them."""
    order = np.argsort(along)
    lengths = along[order[number - 1 :]] - along[order[: len(order) - number + 1]]
    first = int(np.argmin(lengths))
    return order[first : first + number]
