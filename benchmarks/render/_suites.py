"""One table per suite. Every row says how many cases it rests on; a row without results says that it was not run."""

from __future__ import annotations

import importlib
from typing import Any

from benchmarks.install import WANTED
from benchmarks.render._hardness import tables as hard_tables
from benchmarks.render._lines import Row, Suite
from benchmarks.render._markdown import NOT_RUN, cases, common, figure, share, table, worst
from benchmarks.render._sculpt import tables


def honesty(suite: Suite) -> str:
    """False claims, false certificates and power, side by side, for every part of the suite."""
    from benchmarks.honesty import PARTS, figures, interval, part

    rows = []
    for name, words in PARTS.items():
        results = [r for row in suite.rows if part(row.case) == name for r in row.results]
        for label, hits, total in figures(results):
            low, high = interval(hits, total)
            sure = f"{100 * low:.2f} % to {100 * high:.2f} %" if total else "–"
            rows.append([f"{words}: {label}", share(hits, total), sure])
    return table(["", "cases", "95 % interval"], rows)


def training_honesty(suite: Suite) -> str:
    """False claims, missed intervals and power of training."""
    from benchmarks.honesty import interval
    from benchmarks.training_honesty import counts

    rows = []
    for name, hits, total in counts([r for row in suite.rows for r in row.results]):
        low, high = interval(hits, total)
        rows.append([name, share(hits, total), f"{100 * low:.2f} % to {100 * high:.2f} %" if total else "–"])
    return table(["", "cases", "95 % interval"], rows)


def describe_recover(case: dict[str, Any]) -> str:
    """A recovery problem in words."""
    layer = f"random, d = {case['dim']}" if case["layer"] == "random" else case["layer"]
    words = [
        f"{layer}, m = {case['heads']}, rank {case['rank']}",
        f"{case['tokens']} tokens, k = {case['k']}",
    ]
    if case.get("scale", 2.0) != 2.0:
        words.append(f"scores of size {case['scale']:g}")
    words += [word for word, on in (("biases", case["bias"]), ("causal", case["causal"])) if on]
    words += [f"stored in {case['stored']}"] if case["stored"] else []
    words += [f"noise {case['noise']:g}"] if case["noise"] else []
    return ", ".join(words)


def recover(suite: Suite) -> str:
    """Recovery from random examples."""
    rows = []
    for row in suite.rows:
        if row.case["rival"]:
            continue
        certified = sum(r["certified"] for r in row.results)
        rows.append([
            describe_recover(row.case), f"{row.case['num']:,}", cases(row),
            share(certified, len(row.results)), common(row) if row.results else NOT_RUN,
            worst(row.values("parameter_error")), figure(row.values("seconds"), "{:.1f}"),
            figure(row.values("peak_gigabytes"), "{:.1f}"),
        ])  # fmt: skip
    columns = [
        "problem",
        "examples",
        "cases",
        "certified",
        "outcome",
        "parameter error: median (worst)",
        "seconds",
        "GB",
    ]
    return table(columns, rows)


def heads(suite: Suite) -> str:
    """Examples that a certified recovery takes, by the number of heads."""
    rows = [
        [
            f"m = {row.case['heads']}", cases(row), figure(row.values("examples"), "{:,.0f}"),
            figure(row.values("equations_per_unknown"), "{:.0f}"), worst(row.values("parameter_error")),
            figure(row.values("seconds"), "{:.1f}"),
        ]
        for row in suite.rows
    ]  # fmt: skip
    columns = [
        "heads",
        "cases",
        "examples",
        "equations per unknown",
        "parameter error: median (worst)",
        "seconds",
    ]
    return table(columns, rows)


def recorded(suite: Suite) -> str:
    """Layers of a small trained transformer from recorded activations."""
    rows = [
        [
            f"layer {row.case['layer']}, {row.case['precision']}", cases(row),
            figure(row.values("sequences"), "{:,.0f}"), figure(row.values("directions"), "{:.0f}"),
            share(sum(r["certified"] for r in row.results), len(row.results)),
            common(row) if row.results else NOT_RUN, worst(row.values("parameter_error")),
            worst(row.values("fresh_error")), figure(row.values("seconds"), "{:.0f}"),
        ]
        for row in suite.rows
    ]  # fmt: skip
    columns = ["recorded", "cases", "sequences", "directions", "certified", "outcome"]
    columns += ["parameter error: median (worst)", "error on fresh images", "seconds"]
    return table(columns, rows)


def against_adam(suite: Suite) -> str:
    """Recovery to a given error beside students trained by Adam, in the same run."""
    rows = []
    for row in suite.rows:
        if not row.case["rival"]:
            continue
        reached = sum(r["target"]["reached"] for r in row.results)
        beside = [part for told in ("heads", "heads and rank") for part in _student(row, told)]
        rows.append([
            describe_recover(row.case), f"{row.case['num']:,}", cases(row), share(reached, len(row.results)),
            figure(row.values("target", "whole"), "{:.1f}"), figure(row.values("target", "compiled"), "{:.1f}"),
            *beside,
        ])  # fmt: skip
    columns = ["problem", "examples", "cases", "reached", "seconds", "once compiled"]
    for told in ("heads", "heads and rank"):
        columns += [f"student told {told}: reached", "its time over ours", "once compiled"]
    return table(columns, rows)


def _student(row: Row, told: str) -> list[str]:
    """How often the student got there, and its time over ours with and without compilation."""
    reached = sum(r["students"][told]["reached"] for r in row.results)
    whole, compiled = (row.values("students", told, "over_ours", name) for name in ("whole", "compiled"))
    return [share(reached, len(row.results)), figure(whole, "{:.1f} ×"), figure(compiled, "{:.1f} ×")]


def refine(suite: Suite) -> str:
    """Gauss-Newton against L-BFGS from the same start."""
    rows = []
    for row in suite.rows:
        case = row.case
        name = f"random, d = {case['dim']}" if case["layer"] == "random" else case["layer"]
        kind = f"{name}, {case['tokens']}, k = {case['k']}{', causal' if case['causal'] else ''}"
        kind += ", whole matrices" if case.get("whole") else ""
        bound = all(r.get("lbfgs_reached") for r in row.results)
        ratio = (
            figure(row.values("ratio"), ("" if bound else "at least ") + "{:.1f} ×") if case["rival"] else "–"
        )
        rows.append([
            f"{kind}, start off by {100 * case['perturbation']:.0f} %", cases(row), worst(row.values("theta_error")),
            figure(row.values("seconds"), "{:.1f}"),
            figure(row.values("lbfgs_seconds"), "{:.1f}") if case["rival"] else "–", ratio,
        ])  # fmt: skip
    return table(["problem", "cases", "error of Θ", "seconds", "L-BFGS, seconds", "faster"], rows)


def describe_extract(case: dict[str, Any]) -> str:
    """An extraction problem in words."""
    if case["layer"] == "random":
        rank = "full rank" if case["rank"] is None else f"rank {case['rank']}"
        return f"random, d = {case['dim']}, m = {case['heads']}, {rank}, {case['dtype']}"
    rival = ", random examples instead (`recover`)" if "rival" in case else ""
    return f"{case['layer']}, {case['dtype']}{rival}"


def extract(suite: Suite) -> str:
    """Chosen queries: what was reached and what it cost, and the code before on the same problems."""
    rows = []
    for row in (row for row in suite.rows if "before" not in row.case):
        numbers = row.values("scalars"), row.values("unknowns"), row.values("published_scalars")
        over = [a / b for a, b in zip(numbers[0], numbers[1])] if len(numbers[0]) == len(numbers[1]) else []
        published = (
            [a / b for a, b in zip(numbers[0], numbers[2])] if len(numbers[0]) == len(numbers[2]) else []
        )
        rows.append([
            describe_extract(row.case), cases(row), common(row) if row.results else NOT_RUN,
            worst(row.values("error")), figure(row.values("sequences"), "{:,.0f}"),
            figure(row.values("tokens"), "{:,.0f}"), figure(numbers[0], "{:,.0f}"), figure(over, "{:.1f}"), figure(published, "{:.2f}"),
            figure(row.values("seconds"), "{:.1f}"), _times_of_queries(row),
        ])  # fmt: skip
    columns = [
        "layer", "cases", "outcome", "parameter error: median (worst)", "sequences", "tokens", "scalars read",
        "scalars over unknowns", "scalars over the published count", "seconds", "tokens over those of queries, same run",
    ]  # fmt: skip
    beside = [_beside_before(row) for row in suite.rows if "before" in row.case]
    head = [
        "layer",
        "cases",
        "CPU seconds",
        "before",
        "faster",
        "sequences",
        "before",
        "parameter error",
        "reached",
    ]
    return table(columns, rows) + "\n\n" + table(head, beside)


def _beside_before(row: Row) -> list[str]:
    """CPU seconds and sequences of this code and of that before; a bound where the code before was ended."""
    bound = "at least " if any(result["capped"] for result in row.results) else ""
    return [
        describe_extract(row.case), cases(row), figure(row.values("now", "cpu"), "{:.1f}"),
        figure(row.values("before", "cpu"), bound + "{:.0f}"), figure(row.values("speedup"), bound + "{:.1f} ×"),
        figure(row.values("now", "sequences"), "{:,.0f}"), figure(row.values("before", "sequences"), "{:,.0f}"),
        worst(row.values("now", "error")), share(sum(result["reached"] for result in row.results), len(row.results)),
    ]  # fmt: skip


def _times_of_queries(row: Row) -> str:
    """How many times the tokens of the queries random examples take for the wanted error."""
    if "rival" not in row.case or not row.results:
        return "–"
    result = row.results[-1]
    missed = max((entry["times"] for entry in result["not_enough"]), default=None)
    if not result["reached"]:
        return f"more than {missed}"
    return (
        f"at most {result['times']}" if missed is None else f"more than {missed}, at most {result['times']}"
    )


def training(suite: Suite) -> str:
    """Training: speed beside the rivals, memory, bounds."""
    rows = [[_training_name(row), cases(row), *_training_figures(row)] for row in suite.rows]
    return table(["what", "cases", "measured", "wanted", "met"], rows)


def _training_name(row: Row) -> str:
    case = row.case
    if case["what"] == "step":
        n, tokens, dim, heads = case["shape"]
        return f"one step, n = {n}, {tokens} tokens, d = {dim}, H = {heads}"
    known = {
        "mixture": "proved bound over measured mean loss, tokenized mixture"
        + (", small" if case.get("small") else ""),
        "tangent": f"tangent kernel, n = {case.get('num')}, H = {case.get('heads')}, against jacrev",
        "seeds": f"{case.get('runs')} runs at once against a loop",
        "memory": f"memory of a step, n = {case.get('num')}",
        "kernel memory": f"memory of the tangent kernel, n = {case.get('num')}, H = {case.get('heads')}",
        "coverage": f"stability bound covers the gap, H = {case.get('heads', 256)}, {case.get('draws')} draws",
    }
    return known.get(case["what"], case["what"])


def _training_figures(row: Row) -> list[str]:
    if not row.results:
        return [NOT_RUN, "–", "–"]
    first, what = row.results[0], row.case["what"]
    met = "yes" if all(result.get("met") for result in row.results) else "**no**"
    if what == "step":
        shown = ", ".join(
            f"{figure(row.values('times_faster', name, 'median'), '{:.1f} ×')} {name}"
            for name in ("torch", "jax")
        )
        shown += f"; {figure(row.values('over_gemm'), '{:.1f}')} times the machine's matrix product"
        return [f"faster: {shown}", ", ".join(f"{v:g} × {k}" for k, v in first["wanted"].items()), met]
    if what == "tangent":
        return [figure(row.values("times_faster", "median"), "{:.0f} × faster"), f"{first['wanted']} ×", met]
    if what == "seeds":
        return [figure(row.values("times_faster", "median"), "{:.1f} × faster"), f"{first['wanted']} ×", met]
    if what in ("memory", "kernel memory"):
        return [figure(row.values("peak_gib"), "{:.2f} GiB"), f"at most {first['wanted']:g} GiB", met]
    if what == "mixture":
        return [
            worst(row.values("ratio")) + f", {sum(row.values('violations')):.0f} violations",
            "at most 8",
            met,
        ]
    finite = f"finite in {sum(row.values('finite')):.0f}"
    if not row.values("covered"):
        return [finite, "at least 99 % where finite", met]
    shown = [
        finite,
        figure(row.values("covered"), "{:.1%} covered"),
        f"{sum(row.values('below_truth')):.0f} of {sum(row.values('distances')):.0f} distances above their bound",
    ]
    if slack := row.values("median_distance_ratio"):
        shown.append(f"bound {figure(slack)} times the distance")
    return [", ".join(shown), "at least 99 % where finite, none", met]


def sculpt(suite: Suite) -> str:
    """The paper's algorithm: its own tables, and the rows nobody ran."""
    return tables(suite.lines, (row.case for row in suite.rows))


def compress(suite: Suite) -> str:
    """Fewer heads beside pruning; narrower heads and shared keys and values beside closed forms and Adam; shapes that a layer has already."""
    from benchmarks.compress import EXACT, is_shaped

    ours = [row for row in suite.rows if row.case.get("side", "ours") == "ours"]
    exact = [row for row in ours if row.case["layer"] in EXACT]
    fewer = [row for row in ours if row not in exact and not is_shaped(row.case)]
    shaped = [row for row in ours if row not in exact and is_shaped(row.case)]
    sides = (
        ("fewer heads", fewer, ("drop", "drop, output refit", "drop, full refit")),
        ("narrower heads, shared keys and values", shaped, ("clover", "whitened", "mean pooling", "procrustes")),
    )  # fmt: skip
    shown = []
    for title, rows, rivals in sides:
        columns = [title, "cases", "error", "no layer is below", *rivals, "adam", "its rates that were run"]
        columns += ["CPU s", "CPU s of adam's best rate"]
        shown.append(table(columns, [_compressed(row, rivals, _trained(suite, row)) for row in rows]))
    columns = ["a layer with", "cases", "exact", "error", "heads", "floats kept for each token"]
    return "\n\n".join([*shown, table(columns, [_found(row) for row in exact])])


def _trained(suite: Suite, ours: Row) -> list[dict[str, Any]]:
    """The runs of Adam on the case of a row, the best on its judging examples first."""
    same = [row for row in suite.rows if row is not ours and row.case | {"side": "ours"} == ours.case]
    return sorted((result for row in same for result in row.results), key=lambda result: result["judged"])


def _found(row: Row) -> list[str]:
    """What was found of a layer that has a smaller shape already."""
    sizes = [figure(row.values("shape", name), "{:.0f}") for name in ("heads", "kv_floats")]
    exact = share(sum(bool(result["exact"]) for result in row.results), len(row.results))
    return [row.case["layer"], cases(row), exact, figure(row.values("error"), "{:.2g}"), *sizes]


def _compressed(row: Row, rivals: tuple[str, ...], trained: list[dict[str, Any]]) -> list[str]:
    case = row.case
    sizes = [f"head width {case['head_dim']}"] if case.get("head_dim") else []
    sizes += [f"{case['kv_heads']} keys and values"] if case.get("kv_heads") else []
    sizes += [f"{case['num']:,} sequences"]
    name = ", ".join([case["layer"], f"{case['tokens']} tokens", f"{case['heads']} heads", *sizes])
    errors = [figure(row.values("rivals", rival), "{:.4g}") for rival in rivals]
    own, least = (figure(row.values(key), "{:.4g}") for key in ("error", "least_error"))
    adam, seconds = (
        figure([run[key] for run in trained[:1]], form)
        for key, form in (("error", "{:.4g}"), ("cpu_seconds", "{:.0f}"))
    )
    rates = str(len(trained)) if trained else NOT_RUN
    return [
        name,
        cases(row),
        own,
        least,
        *errors,
        adam,
        rates,
        figure(row.values("cpu_seconds"), "{:.0f}"),
        seconds,
    ]


def whole(suite: Suite) -> str:
    """The loss of a model whose blocks are smaller, beside rivals."""
    rivals = ("mean pooling", "procrustes", "clover", "whitened", "adam")
    sizes = {"kv_heads": "shared keys and values", "head_dim": "narrower heads"}
    rows = []
    for row in suite.rows:
        name = f"{row.case['model']}, d = {row.case['dim']}, {row.case['heads']} heads"
        for size, words in sizes.items():
            losses = [figure(row.values("sides", size, side, "loss"), "{:.4f}") for side in ("ours", *rivals)]
            rows.append([f"{name}, {words}", cases(row), figure(row.values("loss"), "{:.4f}"), *losses])
    return table(["model", "cases", "loss before", "ours", *rivals], rows)


def pairs(suite: Suite) -> str:
    """False certificates and power by kind of candidate."""
    from benchmarks.honesty import interval

    rows: list[list[str]] = []
    kinds = list(dict.fromkeys(row.case["candidate"] for row in suite.rows))
    for kind in [None, *kinds]:
        chosen = [row for row in suite.rows if kind in (None, row.case["candidate"])]
        results = [result for row in chosen for result in row.results]
        right = [result for row in chosen for result in row.results if row.case["right"]]
        counts = (
            (sum(result["false"] for result in results), len(results)),
            (
                sum(result["certified"] for result in right),
                len(right),
            ),
        )
        cells = []
        for hits, total in counts:
            low, high = interval(hits, total)
            cells += [share(hits, total), f"{100 * low:.1f} % to {100 * high:.1f} %" if total else "–"]
        rows.append([kind or "all", *cells])
    return table(["candidate", "false", "95 % interval", "right pairs certified", "95 % interval"], rows)


def scale(suite: Suite) -> str:
    """Time and memory against the size of the data and of the layer, and how they grow."""
    return f"{_large(suite)}\n\n{_growth(suite)}"


def _growth(suite: Suite) -> str:
    """The fitted exponent of every quantity that was varied alone."""
    from benchmarks.scale import GROWTH, exponent

    words, rows = {"dim": "d", "heads": "heads", "num": "examples", "k": "k"}, []
    for name, sizes in GROWTH.items():
        found = [row for row in suite.rows if row.case.get("of") == name and row.results]
        measured = [(row.case[name], row.results[0]) for row in found]
        held = ", ".join(f"{words[key]} = {value:,}" for key, value in sizes[0].items() if key != name)
        values = [", ".join(f"{size:,}" for size, _ in measured) or NOT_RUN, held]
        for key in ("cpu_seconds", "gigabytes_beyond_imports"):
            numbers = [result[key] for _, result in measured]
            values.append(" ".join(f"{number:.3g}" for number in numbers) or "–")
            enough = len(measured) > 2
            values.append(f"{exponent([size for size, _ in measured], numbers):.2f}" if enough else "–")
        certified = sum(result["certified"] for _, result in measured)
        rows.append([words[name], *values, f"{certified} of {len(measured)}"])
    columns = [
        "growth of",
        "values",
        "with",
        "CPU seconds",
        "exponent",
        "GB beyond imports",
        "exponent",
        "certified",
    ]
    return table(columns, rows)


def _large(suite: Suite) -> str:
    rows = []
    for row in suite.rows:
        case = row.case
        if case["kind"] == "growth":
            continue
        source = f"{case['gigabytes']:g} GB on disk" if case["kind"] == "disk" else "drawn on demand"
        name = f"d = {case['dim']}, {case['heads']} heads of rank {case['rank']}, scores of size {case['scale']:g}"
        rows.append([
            f"{name}, {source}", cases(row), figure(row.values("examples"), "{:,.0f}"),
            figure(row.values("seconds"), "{:.0f}"), figure(row.values("planned_seconds"), "{:.0f}"),
            figure(row.values("peak_gigabytes"), "{:.2f}"), figure(row.values("planned_gigabytes"), "{:.2f}"),
            common(row) if row.results else "–", worst(row.values("parameter_error")),
        ])  # fmt: skip
    columns = [
        "layer and data",
        "cases",
        "examples",
        "seconds",
        "planned",
        "peak GB",
        "planned",
        "outcome",
        "error",
    ]
    return table(columns, rows)


def hardness(suite: Suite) -> str:
    """The wall, and certificates on hard layers."""
    return hard_tables(suite.lines)


def install(suite: Suite) -> str:
    """Size of a core install, and how fast it starts."""
    what = {"size": "size, pip left out", "import": "`import attnlearn`", "help": "`attnlearn --help`"}
    rows = []
    for row in suite.rows:
        measure = row.case["measure"]
        measured, unit = row.values("megabytes"), "{:.0f} MB"
        if measure != "size":
            measured, unit = row.values("ratio"), "{:.1f} times `python -c pass`"
        wanted = unit.format(WANTED[measure]).replace(".0", "")
        rows.append([what[measure], cases(row), figure(measured, unit), f"at most {wanted}"])
    return table(["what", "cases", "measured", "wanted"], rows)


def other(suite: Suite) -> str:
    """Any suite without a table of its own: what it says of itself."""
    module = importlib.import_module(f"benchmarks.{suite.name}")
    if not suite.lines:
        return NOT_RUN
    return (
        f"```text\n{module.summary(suite.lines)}\n```" if hasattr(module, "summary") else f"{suite.run} cases"
    )
