"""Plain query, key, value and output arrays <-> layer; every other converter ends here.

Row convention: q = x wq + bq, scores = scale q k^T, out = sum_i softmax(scores_i) v_i wo_i + bo. Then
Theta_i = wq_i wk_i^T scale, c_i = wk_i bq_i scale, W_i = wv_i wo_i, b = sum_i bv_i wo_i + bo. Key biases are
checked and leave no trace: they add the same to every score of a row. Products are formed in float64 and
rounded once. Can fail: shapes that do not fit, mixed dtypes, a rank that loses part of a head.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn._memory import require_room
from attnlearn._precision import common_dtype, require_finite, to_numpy
from attnlearn._types import ArrayLike
from attnlearn.convert._calibration import LAYER_COPIES, export_tolerance
from attnlearn.convert._check import Source, rows, self_check
from attnlearn.convert._shared import shared_factors
from attnlearn.engine._threads import limited_blas


class QKVO(NamedTuple):
    """Per-head arrays in row convention; `h` key and value heads serve m query heads, m / h each.

    >>> QKVO._fields
    ('wq', 'wk', 'wv', 'wo', 'bq', 'bk', 'bv', 'bo', 'scale')
    """

    wq: Float[np.ndarray, "m d r"]
    wk: Float[np.ndarray, "h d r"]
    wv: Float[np.ndarray, "h d s"]
    wo: Float[np.ndarray, "m s o"]
    bq: Float[np.ndarray, "m r"] | None
    bk: Float[np.ndarray, "h r"] | None
    bv: Float[np.ndarray, "h s"] | None
    bo: Float[np.ndarray, "o"] | None
    scale: float


def from_qkvo(
    wq: ArrayLike,
    wk: ArrayLike,
    wv: ArrayLike,
    wo: ArrayLike,
    bq: ArrayLike | None = None,
    bk: ArrayLike | None = None,
    bv: ArrayLike | None = None,
    bo: ArrayLike | None = None,
    scale: float | None = None,
    *,
    num_heads: int | None = None,
    causal: bool = False,
) -> AttentionLayer:
    """The layer of plain arrays: q = x wq + bq and so on.

    Either per head, wq (m, d, r), wk (h, d, r), wv (h, d, s), wo (m, s, d_out), biases (m, r), (h, r), (h, s);
    or flat with `num_heads`, wq (d, m r), wk (d, h r), wv (d, h s), wo (m s, d_out), biases one-dimensional.
    Fewer key and value heads (h < m) are grouped-query attention: consecutive query heads share one.
    `scale` multiplies the scores, default 1 / sqrt(r).

    >>> rng = np.random.default_rng(0)
    >>> wq, wk, wv = rng.standard_normal((3, 2, 6, 3)); wo = rng.standard_normal((2, 3, 6))
    >>> from_qkvo(wq, wk, wv, wo)
    AttentionLayer(num_heads=2, dim=6, out_dim=6, causal=False, dtype=float64)
    """
    named = {"wq": wq, "wk": wk, "wv": wv, "wo": wo, "bq": bq, "bk": bk, "bv": bv, "bo": bo}
    arrays: dict[str, Any] = {
        name: None if value is None else to_numpy(value, name) for name, value in named.items()
    }
    dtype = common_dtype(arrays)
    for name, array in arrays.items():
        if array is not None:
            require_finite(array, name)
            arrays[name] = array.astype(dtype, copy=False)
    if arrays["wq"].ndim == 2:
        arrays = _split_heads(arrays, num_heads)
    elif num_heads is not None:
        rule = f"must be the {len(arrays['wq'])} heads of wq (or left out)"
        require(num_heads == len(arrays["wq"]), "num_heads", rule, num_heads)
    _require_shapes(arrays)
    scale = float(arrays["wq"].shape[2] ** -0.5 if scale is None else scale)
    require(bool(np.isfinite(scale)) and scale > 0, "scale", "must be a finite number > 0", scale)
    return _layer(QKVO(**arrays, scale=scale), causal)


def to_qkvo(
    layer: AttentionLayer,
    *,
    rank: int | None = None,
    scale: float | None = None,
    tolerance: float | None = None,
    kv_heads: int | None = None,
) -> QKVO:
    """Per-head arrays of the layer in the balanced gauge: wq^T wq + bq bq^T = wk^T wk, wv^T wv = wo wo^T.

    With `kv_heads` consecutive heads share a key and a value; a layer whose heads do not is refused.

    `rank` is the head dimension (default: the smallest that loses at most `tolerance` of any head, which is
    64 machine epsilons unless given); `scale` is the factor that the scores will be multiplied by (default
    1 / sqrt(rank)). bk and bv are zero: input and output cannot show them.

    >>> layer = AttentionLayer.random(2, 6, rank=3, bias=True)
    >>> back = from_qkvo(*to_qkvo(layer))
    >>> bool(np.abs(back.theta - layer.theta).max() < 1e-12)
    True
    """
    tolerance = export_tolerance(layer.dtype) if tolerance is None else tolerance
    # Heads are small matrices: on a busy machine BLAS threads that wait for each other cost more than they give.
    with limited_blas(1):
        if kv_heads is None or kv_heads == layer.num_heads:
            factors = layer.factors(rank, tolerance)
        else:
            factors = shared_factors(layer, kv_heads, rank, tolerance)
    r = factors.query.shape[2]
    scale = float(r**-0.5 if scale is None else scale)
    require(bool(np.isfinite(scale)) and scale > 0, "scale", "must be a finite number > 0", scale)
    root = layer.dtype.type(scale**-0.5)
    zeros = np.zeros((len(factors.key), r), layer.dtype)
    return QKVO(
        factors.query * root,
        factors.key * root,
        factors.value,
        factors.output,
        factors.query_bias * root,
        zeros,
        zeros.copy(),
        factors.output_bias,
        scale,
    )


def require_head_count(num_heads: object) -> int:
    """`num_heads` as a positive integer; None is refused, because a head count is never guessed."""
    valid = isinstance(num_heads, (int, np.integer)) and not isinstance(num_heads, bool) and num_heads >= 1
    require(bool(valid), "num_heads", "must be given, an integer >= 1 (it is never guessed)", num_heads)
    return int(num_heads)  # pyright: ignore[reportArgumentType]


def _split_heads(flat: dict, num_heads: int | None) -> dict:
    """Flat arrays as per-head ones; the head dimension follows from wq and `num_heads`."""
    m = require_head_count(num_heads)
    for name in ("wq", "wk", "wv", "wo"):
        require(flat[name].ndim == 2, name, "must be two-dimensional like wq", flat[name])
    width, inner = flat["wq"].shape[1], flat["wo"].shape[0]
    require(width % m == 0, "num_heads", f"must divide the query width {width}", m)
    require(inner % m == 0, "num_heads", f"must divide the output projection's input width {inner}", m)
    r, s = width // m, inner // m
    sizes = {"wq": r, "wk": r, "wv": s, "bq": r, "bk": r, "bv": s}
    result = dict(flat)
    for name, size in sizes.items():
        array = flat[name]
        if array is None:
            continue
        what = f"must have a last axis of whole heads of size {size} (num_heads = {m})"
        require(size > 0 and array.shape[-1] >= 1 and array.shape[-1] % size == 0, name, what, array)
        heads = array.reshape(*array.shape[:-1], -1, size)
        result[name] = np.moveaxis(heads, -2, 0) if array.ndim == 2 else heads
    result["wo"] = flat["wo"].reshape(m, s, -1)
    return result


def _require_shapes(arrays: dict) -> None:
    wq, wk, wv, wo = (arrays[name] for name in ("wq", "wk", "wv", "wo"))
    require(wq.ndim == 3 and wq.size > 0, "wq", "must have shape (heads, d, head_dim)", wq)
    m, d, r = wq.shape
    require(wk.ndim == 3 and wk.shape[1:] == (d, r), "wk", f"must have shape (kv heads, {d}, {r})", wk)
    h = len(wk)
    require(h >= 1 and m % h == 0, "wk", f"must have a number of heads that divides {m}", wk)
    require(
        wv.ndim == 3 and wv.shape[:2] == (h, d) and wv.size > 0, "wv", f"must have shape ({h}, {d}, s)", wv
    )
    s = wv.shape[2]
    require(
        wo.ndim == 3 and wo.shape[:2] == (m, s) and wo.size > 0,
        "wo",
        f"must have shape ({m}, {s}, d_out)",
        wo,
    )
    expected = {"bq": (m, r), "bk": (h, r), "bv": (h, s), "bo": (wo.shape[2],)}
    for name, shape in expected.items():
        bias = arrays[name]
        require(bias is None or bias.shape == shape, name, f"must have shape {shape}", bias)


@np.errstate(over="ignore", invalid="ignore")  # what overflows is refused as not finite
def _layer(arrays: QKVO, causal: bool) -> AttentionLayer:
    """Formed and checked in float64, rounded to the dtype of the arrays at the end."""
    m, d, _ = arrays.wq.shape
    numbers = LAYER_COPIES * m * d * (d + arrays.wo.shape[2])
    require_room(8 * numbers, "layer", f"{m} heads of dimension {d} grow")
    group = m // len(arrays.wk)
    wide: list[Any] = [None if a is None else a.astype(np.float64) for a in arrays[:-1]]
    wq, wk, wv, wo, bq, _, bv, bo = wide
    wk, wv = np.repeat(wk, group, axis=0), np.repeat(wv, group, axis=0)
    bias = np.zeros(wo.shape[2]) if bo is None else bo
    if bv is not None:
        bias = bias + np.einsum("ms,mso->o", np.repeat(bv, group, axis=0), wo)
    query_bias = None if bq is None else np.einsum("mdr,mr->md", wk, bq) * arrays.scale
    layer = AttentionLayer(
        wq @ np.swapaxes(wk, 1, 2) * arrays.scale,
        wv @ wo,
        query_bias,
        bias,
        causal,
    )
    return self_check(layer, _source(arrays, causal)).astype(arrays.wq.dtype)


def _source(arrays: QKVO, causal: bool) -> Source:
    def flat(weight: np.ndarray, bias: np.ndarray | None):
        joined = np.moveaxis(weight, 0, 1).reshape(weight.shape[1], -1)
        return rows(joined, None if bias is None else bias.ravel())

    return Source(
        flat(arrays.wq, arrays.bq),
        flat(arrays.wk, arrays.bk),
        flat(arrays.wv, arrays.bv),
        rows(arrays.wo.reshape(-1, arrays.wo.shape[2]), arrays.bo),
        len(arrays.wq),
        len(arrays.wk),
        arrays.scale,
        causal,
    )
