"""What is measured before anything is proposed: support, chance, skew, tails, linear fits, and good token scales."""

from __future__ import annotations

import numpy as np

from attnlearn import AttentionLayer, data
from attnlearn.data import as_examples
from attnlearn.engine import Tools
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._problem import Problem
from attnlearn.recovery._signals import Signals, measure
from attnlearn.recovery._statistics import dependence, nonlinear_share, token_support
from attnlearn.recovery.moment import choose_scale, count_heads, take_moment, unmix
from attnlearn.solve._split import Split
from benchmarks.calibrate import cut, instead, show, span

COVERS = (
    "SIGNIFICANT", "SKEWED", "HEAVY_TAILS", "LINEAR_SHARE", "LINEAR_DIGITS", "GOOD_SHARES",
)  # fmt: skip
SEEDS = range(3)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def posed(layer: AttentionLayer, x: np.ndarray, noise: float = 0.0, **options) -> Problem:
    """The examples (x, layer(x)), split as `recover` splits them; noise is relative to the outputs."""
    y = layer(x)
    y = (y + noise * y.std() * np.random.default_rng(len(x)).standard_normal(y.shape)).astype(x.dtype)
    return Problem(as_examples(x, y), Split.make(len(x)), **options)


def measured(problem: Problem, seed: int = 0) -> Signals:
    found = measure(problem, Tools(seed=seed))
    assert isinstance(found, Signals)
    return found


def chance() -> None:
    """Standard errors of means, correlations and kurtosis: of independent Gaussian tokens, and of others."""

    def errors(x: np.ndarray) -> tuple[float, float, float]:
        examples, every = as_examples(x, x), np.arange(len(x))
        n, k, r = x.shape
        with instead(SIGNIFICANT=0.0):
            found = dependence(examples, every, token_support(examples, every), False)
        means = n * np.sum(found.position_mean**2, axis=1) / r - 1
        between = np.abs(found.position_correlation - np.eye(k)) * np.sqrt(n * r)
        kurtosis = np.abs(found.kurtosis) / np.sqrt(24 / (n * k))
        return float(means.max() / np.sqrt(2 / r)), float(between.max()), float(kurtosis.max())

    by_chance, real = [], []
    for seed in SEEDS:
        for k in (3, 16, 128):
            by_chance += errors(normal(seed, 800, k, 8))
        x, rng = normal(seed, 4_000, 4, 8), np.random.default_rng(seed)
        real.append(errors(x + 0.3 * normal(seed + 9, 4, 8))[0])
        real.append(errors(x + 0.3 * normal(seed + 9, 4_000, 1, 8))[1])
        real.append(errors(rng.standard_t(10, x.shape))[2])
        real.append(errors(np.sign(x))[2])
    what = "standard errors of means, correlations, kurtosis"
    cut("SIGNIFICANT", what, ("chance, 3 to 128 tokens", by_chance), ("departures", real))


def skew() -> None:
    """The largest mean cube of a white coordinate, and the heads that the moment shows."""
    symmetric, leaning, seen = [], [], {"normal": [], "lognormal": []}
    for seed in SEEDS:
        layer, rng = AttentionLayer.random(4, 12, seed=seed), np.random.default_rng(seed)
        x = normal(seed, 4_096, 3, 12)
        lognormal = np.exp(0.7 * x)
        lognormal = (lognormal - lognormal.mean()) / lognormal.std()
        for name, tokens, kept in (
            ("normal", x, symmetric),
            ("signs", np.sign(x), symmetric),
            ("t", rng.standard_t(6, x.shape) / np.sqrt(1.5), symmetric),
            ("lognormal", lognormal, leaning),
            ("exponential", rng.exponential(size=x.shape) - 1, leaning),
        ):
            problem = posed(layer, tokens)
            with instead(HEAVY_TAILS=np.inf):
                found = measured(problem)
            kept.append(float(np.abs(found.skewness).max()))
            if name in seen:
                seen[name].append(take_moment(problem, found, Tools(), every=True)[0].visible)
    cut("SKEWED", "largest mean cube", ("symmetric", symmetric), ("lognormal, exponential", leaning))
    show(
        "SKEWED",
        f"heads seen of four: {span(seen['normal'])} on normal tokens, {span(seen['lognormal'])} on lognormal ones",
        "recovery",
    )


def tails() -> None:
    """Mean kurtosis by degrees of t, and the measured floor over the computed one: of all sequences, and of the calmer half."""
    calm, heavy, floors = [], [], []
    for degrees in (3, 4, 6, 20, np.inf):
        ratios = {np.inf: [], -np.inf: []}
        for seed in SEEDS:
            rng, layer = np.random.default_rng(seed), AttentionLayer.random(3, 12, seed=seed)
            x = rng.standard_t(degrees, (4_000, 5, 12)) if degrees < np.inf else normal(seed, 4_000, 5, 12)
            problem = posed(layer, x / x.std())
            for limit, kept in ratios.items():
                with instead(HEAVY_TAILS=limit):
                    found = measured(problem)
                moment = take_moment(problem, found, Tools(), every=True)[1]
                kept.append(moment["floor_measured_over_computed"])
                if limit > 0:
                    (heavy if degrees <= 6 else calm).append(float(found.kurtosis.mean()))
        floors.append(f"{span(ratios[np.inf])} and {span(ratios[-np.inf])} (t {degrees:g})")
    cut("HEAVY_TAILS", "mean kurtosis", ("normal, t 20", calm), ("t 3 to 6", heavy))
    show("HEAVY_TAILS", "floor measured over computed, all and calmer half: " + ", ".join(floors), "recovery")


def linear() -> None:
    """Shares of the outputs that the linear fit leaves, for attention that is constant and for weak attention."""
    for name, scores in (("float32", 1e-3), ("float64", 1e-5)):
        constant, weak = [], []
        for seed in SEEDS:
            for size, kept in ((0.0, constant), (scores, weak)):
                layer = AttentionLayer.random(2, 12, scale=1.0, seed=seed)
                layer = layer.replace(theta=size * layer.theta).astype(name)
                x = normal(seed, 3_000, 5, 12).astype(name)
                kept.append(nonlinear_share(as_examples(x, layer(x))))
        sides = ("constant attention", constant), (f"scores of {scores:g}", weak)
        cut("LINEAR_SHARE", "share left by the linear fit", *sides, key=name)


def digits() -> None:
    """Shares that the first linear fit, in float32, leaves of linear functions of the tokens and of weak attention."""
    linear, weak = [], []
    for seed in SEEDS:
        x, layer = normal(seed, 3_000, 5, 12), AttentionLayer.random(2, 12, scale=1e-3, seed=seed)
        own = x @ normal(seed + 1, 12, 12)
        with instead(LINEAR_DIGITS=0.0):
            linear += [nonlinear_share(as_examples(x, y)) for y in (own, own + x.mean(axis=1, keepdims=True))]
            weak.append(nonlinear_share(as_examples(x, layer(x))))
    cut("LINEAR_DIGITS", "share left in float32", ("linear functions", linear), ("scores of 0.001", weak))


def head_error(found: Signals, truth: AttentionLayer, layer: AttentionLayer) -> float:
    """The relative error of (Theta, c) of the true head that is found worst, as white tokens see it."""

    def white(some: AttentionLayer) -> np.ndarray:
        inside = found.white.enter(some.parameters)
        return np.concatenate([inside.theta, inside.query_bias[:, None]], axis=1).reshape(some.num_heads, -1)

    true, seen = white(truth), white(layer)
    nearest = np.linalg.norm(true[:, None] - seen[None], axis=2).min(axis=1)
    return float((nearest / np.linalg.norm(true, axis=1)).max())


def scales() -> None:
    """Errors of the heads that the moment shows, by nonlinear share and with 10 % noise, and where `choose_scale` leaves tokens."""
    errors, chosen, one_hot, inside, outside = [], [], [], [], []
    low, high = calibration.GOOD_SHARES
    for size in (0.1, 0.3, 0.8, 2.0, 8.0, 30.0):
        shares, off = [], []
        for seed in SEEDS:
            layer = AttentionLayer.random(3, 12, scale=size, seed=seed)
            problem, tools = posed(layer, normal(seed, 3_000, 5, 12), noise=0.1), Tools()
            found = measured(problem)
            moment, _ = take_moment(problem, found, tools, every=True)
            counted = count_heads(problem, found, moment, tools, None)
            heads = unmix(problem, found, moment, counted, tools).weights.layer
            shares.append(found.nonlinear_share)
            off.append(head_error(found, layer, heads))
            (inside if low <= shares[-1] <= high else outside).append(off[-1])
        errors.append(f"{np.mean(off):.2g} at {np.mean(shares):.2g}")
    for seed in SEEDS:
        x = normal(seed, 3_000, 5, 12)
        for size in (0.1, 30.0):
            layer = AttentionLayer.random(3, 12, scale=size, seed=seed)
            scale = choose_scale(data.Gaussian(tokens=5, dim=12), layer, seed=seed)
            chosen.append(nonlinear_share(as_examples(scale * x, layer(scale * x))))
        sharp = AttentionLayer.random(3, 12, scale=1e3, seed=seed)
        one_hot.append(nonlinear_share(as_examples(x, sharp(x))))
    said = f"errors of the moment's heads by share: {', '.join(errors)}"
    show("GOOD_SHARES", f"{said}; inside {span(inside)}, outside {span(outside)}", "recovery")
    cut("GOOD_SHARES", "share", ("tokens scaled by us", chosen), ("one-hot attention", one_hot), key=1)


def main() -> None:
    for each in (chance, skew, tails, linear, digits, scales):
        each()


if __name__ == "__main__":
    main()
