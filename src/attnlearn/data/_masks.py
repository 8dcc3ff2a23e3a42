"""Reading attention masks: which keys a block let every query see, and whether that is padding and causality.

A layer knows padding (a key is hidden from everybody), causality (from earlier queries) and, where the module says so, a
window. Anything else, such as a bias on the scores, is refused instead of being recorded as if it were not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnlearn._errors import require
from attnlearn.data._calibration import HIDDEN

if TYPE_CHECKING:
    import torch


def allowed_from_additive(mask: torch.Tensor) -> torch.Tensor:
    """True where an additive mask is 0, False where it hides; anything between is a bias on the scores."""
    allowed = mask == 0
    rule = "must mask by 0 and -inf alone (a bias on the scores is not representable)"
    require(bool((allowed | (mask <= HIDDEN)).all()), "module", rule, "other values")
    return allowed


def split_mask(allowed: torch.Tensor, window: int | None = None) -> tuple[torch.Tensor, set[bool]]:
    """Padding mask (n, k) of allowed pairs (n, query, key), and whether they can be causal, can be not.

    The last query sees every real key in either case, so its row is the padding mask. Padded queries may see
    real keys, everything or themselves (models differ); a "padded" query that sees some other padding is a
    real one of another sequence packed into the same row. With a `window` that is shorter than the sequence the last query
    does not see all; then a key is real if some other query sees it that does not see everything, or if it sees itself and another key.
    """
    import torch

    _, k, keys = allowed.shape
    require(
        k == keys, "batches", "must hold whole sequences, not steps of generation", f"{k} of {keys} tokens"
    )
    near = _near(k, window, allowed.device)
    real = allowed[:, -1, :] if bool(near.all()) else _seen_by_others(allowed)
    require(bool(real.any(dim=1).all()), "batches", "must have a real token in every sequence", "none")
    earlier = torch.ones(k, k, dtype=torch.bool, device=allowed.device).tril()
    possible = set()
    for causal in (False, True):
        expected = real[:, None, :] & (near & earlier if causal else near)
        if bool(((allowed == expected) | ~real[:, :, None]).all()):
            possible.add(causal)
    rule = "must mask by padding and causality alone"
    require(bool(possible), "module", rule, "another mask (window, block or cross-attention)")
    itself = torch.eye(k, dtype=torch.bool, device=allowed.device)
    harmless = (~(allowed & ~real[:, None, :] & ~itself)).all(dim=2) | allowed.all(dim=2)
    require(bool((harmless | real).all()), "module", rule, "several sequences packed into one")
    return real, possible


def _near(k: int, window: int | None, device: Any) -> torch.Tensor:
    """Pairs (query, key) that a window lets through."""
    import torch

    places = torch.arange(k, device=device)
    apart = (places[:, None] - places[None, :]).abs()
    return apart < (k if window is None else window)


def _seen_by_others(allowed: torch.Tensor) -> torch.Tensor:
    """Keys (n, k) that another query sees, or that see themselves and another key: the last token of a causal window; of one token, the token."""
    import torch

    k = allowed.shape[1]
    itself = torch.eye(k, dtype=torch.bool, device=allowed.device)
    # padded queries may see everything, which no window lets real ones, or themselves alone
    seen = allowed & ~allowed.all(dim=2, keepdim=True)
    others, own = seen & ~itself, torch.diagonal(seen, dim1=1, dim2=2)
    return others.any(dim=1) | (own & others.any(dim=2)) | (allowed & itself & (k == 1)).any(dim=1)


def from_huggingface_mask(mask: Any, n: int, k: int) -> torch.Tensor:
    """Allowed pairs (n, k, k) of a transformers mask: None, or (n, 1, k or 1, k), boolean or additive."""
    import torch

    if mask is None:
        return torch.ones(n, k, k, dtype=torch.bool)
    require(getattr(mask, "ndim", 0) == 4, "module", "must receive its mask with four axes", mask)
    allowed = mask if mask.dtype == torch.bool else allowed_from_additive(mask)
    allowed = allowed.cpu()
    same = bool((allowed == allowed[:, :1]).all())
    require(same, "module", "must use one mask for all heads", mask)
    return allowed[:, 0].expand(n, k, allowed.shape[-1])


def from_torch_masks(attention: Any, padding: Any, heads: int, n: int, k: int) -> torch.Tensor:
    """Allowed pairs (n, k, k) of nn.MultiheadAttention's masks, whose booleans mean *hidden*."""
    import torch

    def allowed_of(mask: torch.Tensor) -> torch.Tensor:
        return (~mask if mask.dtype == torch.bool else allowed_from_additive(mask)).cpu()

    allowed = torch.ones(n, k, k, dtype=torch.bool)
    if attention is not None:
        pairs = allowed_of(attention)
        if pairs.ndim == 3:
            pairs = pairs.reshape(n, heads, *pairs.shape[1:])
            same = bool((pairs == pairs[:, :1]).all())
            require(same, "module", "must use one mask for all heads", attention)
            pairs = pairs[:, 0]
        allowed = allowed & pairs
    if padding is not None:
        allowed = allowed & allowed_of(padding).reshape(n, 1, k)
    return allowed
