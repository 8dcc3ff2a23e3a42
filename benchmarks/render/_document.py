"""docs/benchmarks.md and the README's table, assembled: honesty first, then speed, examples and queries beside rivals."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from statistics import median

from benchmarks.__main__ import SUITES
from benchmarks.render import _suites
from benchmarks.render._chen_li import chen_li
from benchmarks.render._deora import deora
from benchmarks.render._lines import RESULTS, Row, Suite, read
from benchmarks.render._markdown import NOT_RUN, table
from benchmarks.render._pictures import pictures, svg
from benchmarks.render._ratios import PUBLISHED, fallen, kept, published, ratios

ROOT = Path(__file__).parents[2]
PARTS = (
    ("honesty", "Honesty", "How often a certificate is false, and how often a right answer gets one, on layers and data made to mislead."),
    ("training_honesty", "Honesty of training", "How often a claim of `train.fit` is false, and how often a learnable problem is certified, on coin flips, contradictions, leaked and copied held-out examples and others; the judge has a forward pass of its own."),
    ("recover", "Recovery from random examples", "Everything from the arrays to the certificate is counted, compilation included. Nothing is retried. With noise or rounded data a certificate is not expected; the outcome must then be BELOW_NOISE_FLOOR."),
    ("adam", "Recovery beside a trained student", "Seconds from the arrays to an error of 1e-6 on fresh examples (`recover(..., target=1e-6)`, certified for that error), beside two students of the same form trained by Adam in the same run: one is told the number of heads and learns Theta and W, one is told the rank as well and learns factors. Three learning rates and three lengths, the best run's own time counts. Ratios are shown where both got there; above 1 ours is faster."),
    ("heads", "Examples against heads", "How many random examples a certified recovery takes: their number grows by the square root of two until one is certified; d = 32, k = 8, heads of rank 8. A certificate wants 200 examples in any case. Seconds are those of the run that was certified."),
    ("recorded", "Recorded activations", "A small transformer is trained on digits, inputs and outputs of its attention layers are recorded, and every layer is recovered from them; the truth is read from its weights and compared on the directions in which its tokens vary."),
    ("refine", "Refinement beside L-BFGS", "The same start, examples, precision and threads."),
    ("extract", "Chosen queries", "Every sequence counts: the search for a scale, failed attempts, certification. The published count is 4 m d² − 2 m + 1 scalar answers."),
    ("sculpt", "Sculpting", "The paper's algorithm, and random starts with the same refinement and the same time."),
    ("papers", "The papers' claims", "Lines of the pages [Chen & Li in pictures](chen-li-in-pictures.md) and [Deora et al. in pictures](deora-et-al-in-pictures.md), which are made from them."),
    ("linear", "Linear attention", "Random linear-attention layers of 1 to 8 heads from five tokens a sequence, and data on which no layer is the only one: claim U must not be established there. The error is taken on fresh sequences of another length and three times the size."),
    ("bounds", "Bounds against measurements", "How often a bound of training lies below what it bounds, on random problems, and its smallest ratio to it."),
    ("training", "Training", "Times are taken in turn in one process."),
    ("compress", "Compression", "Error on fresh examples, relative to the spread of the outputs, beside rivals on the same sequences: pruning by importance, closed forms (`benchmarks/rivals/closed_forms.py`), and Adam from the best of them, the best of three rates. Ours keeps a quarter of the sequences apart, to choose and to certify; Adam uses them all."),
    ("whole", "Whole models made smaller", "The loss of a small BERT and GPT-2 on their own task, trained for minutes on English text, when every block keeps half the floats for each token: keys and values that two heads share, or heads of half the width. All sides go through the blocks in turn, on the same recorded sequences."),
    ("pairs", "Certificates for layers that somebody else made", "`certify` on pairs of a layer and a candidate, half of them asked for an error that the candidate does not have: one input in a hundred exceeds it, or 15 in a hundred where the claim is about nine in ten."),
    ("scale", "Scale", "Data larger than memory, and layers of growing dimension from examples drawn on demand. Every case is a process of its own; its peak counts mapped files. *Planned* is what `recover` said before it started."),
    ("conditions", "Conditions", "Predictions against what the learners then did."),
    ("hardness", "Hard families", "Every learner on random layers and on parities of the same shape (two ±1 tokens, d = 12; sculpting d = 8, from six heads on d = 10), with 95 % intervals and the median time of a run. *Learned* is a relative function error of at most 0.1 on fresh examples. The budget: 20,000 examples for the spectral route and for Adam (3,000 steps, the better of two rates), 300,000 for sculpting, for queries what `extract` asks for."),
    ("install", "Install", "A core install into an empty environment, and how fast it starts: processor time of a fresh process."),
)  # fmt: skip
KNOWN = {name for name, _, _ in PARTS}
BEGIN, END = "<!-- results: made by python -m benchmarks render -->", "<!-- end of results -->"


def rendered(folder: Path = RESULTS) -> dict[str, str]:
    """Every file that `render` writes, by its path from the root of the project."""
    names = [name for name in (*(part[0] for part in PARTS), *SUITES) if name != "adam" and _exists(name)]
    suites = {name: read(name, folder) for name in dict.fromkeys(names)}
    now, before = ratios(suites), published(folder)
    files = {"docs/benchmarks.md": _document(suites, fallen(now, before))}
    files |= {f"docs/images/{name}": svg(display) for name, display in pictures(suites).items()}
    for name, make in (("chen-li", chen_li), ("deora-et-al", deora)):
        files[f"docs/{name}-in-pictures.md"], claims = make(suites)
        files |= {f"docs/images/{claim.file}": svg(claim.picture) for claim in claims if claim.picture}
    readme = (ROOT / "README.md").read_text("utf-8")
    files["README.md"] = re.sub(
        rf"{re.escape(BEGIN)}.*?{re.escape(END)}",
        lambda _: f"{BEGIN}\n{_front(suites)}\n{END}",
        readme,
        flags=re.S,
    )
    files[f"benchmarks/results/{PUBLISHED}"] = json.dumps(kept(now, before), indent=2) + "\n"
    return files


def render(folder: Path = RESULTS) -> list[str]:
    """Write the files; returns the ratios that fell."""
    before = published(folder)
    files = rendered(folder)
    for name, text in files.items():
        (ROOT / name).parent.mkdir(exist_ok=True)
        (ROOT / name).write_text(text, encoding="utf-8")
    now = ratios({name: read(name, folder) for name in ("recover", "refine", "training")})
    return fallen(now, before)


def _about(name: str) -> str:
    """The first line of what a suite says of itself."""
    return (importlib.import_module(f"benchmarks.{name}").__doc__ or "").strip().splitlines()[0]


def _exists(name: str) -> bool:
    return (ROOT / "benchmarks" / f"{name}.py").is_file()


def _document(suites: dict[str, Suite], fell: list[str]) -> str:
    text = [
        "# Benchmarks",
        "",
        "Made from the lines in `benchmarks/results/` by `python -m benchmarks render`; no number here was typed. Each row "
        "says on how many cases it rests; what nobody ran is shown as not run. `make bench-full` runs the rest, in pieces.",
        "",
    ]
    if fell:
        text += ["> **A ratio fell by more than a third.**", *(f"> - {line}" for line in fell), ""]
    drawn = pictures(suites)
    others = tuple((name, name.capitalize(), _about(name)) for name in suites if name not in KNOWN)
    for name, title, note in (*PARTS, *others):
        suite = suites.get("recover" if name == "adam" else name)
        if suite is None:
            continue
        make = getattr(_suites, {"adam": "against_adam"}.get(name, name), _suites.other)
        shown = (
            make(suite)
            if suite.lines or name == "honesty"
            else f"**Not run**: {suite.planned} cases are planned."
        )
        text += [f"## {title}", "", note, "", shown, ""]
        for file, display in drawn.items():
            if file.startswith(f"{name}-"):
                text += [f"![{display.title}](images/{file})", ""]
        if name != "adam" and suite.lines:
            text += [
                f"*{suite.run} of {suite.planned} cases of the full tier have a result: {suite.origin()}.*",
                "",
            ]
    return "\n".join(text)


def _front(suites: dict[str, Suite]) -> str:
    """The README's table: the figures a reader asks for first."""
    rows: list[list[str]] = []
    results = [r for row in suites["honesty"].rows for r in row.results]
    truly = [r for r in results if r.get("identifiable", r["truly_right"])]
    rows.append(
        [
            "false claims, certified or not",
            f"{sum(bool(r['broken']) for r in results)} in {len(results)} cases, most of them made to mislead"
            if results
            else NOT_RUN,
        ]
    )
    rows.append(
        [
            "layers that their tokens show by construction, certified",
            f"{sum(r['certified'] for r in truly)} of {len(truly)}" if truly else NOT_RUN,
        ]
    )
    for row in suites["recover"].rows:
        if (
            row.case["layer"] == "random"
            and row.case["dim"] == 32
            and _plain(row.case)
            and row.case["num"] == 20_000
        ):
            told = f"recover random layers, d = 32, m = 8, rank 4, from {row.case['num']:,} random examples"
            rows += [[told, _recovered(row)]] if row.case["rank"] == 4 else []
    for name in ("sapiens-vh-layer0", "rxnmapper-layer"):
        for row in suites["recover"].rows:
            if (
                row.case["layer"] == name
                and row.case["tokens"] == "gaussian"
                and row.case["k"] == 8
                and not row.case["rival"]
            ):
                rows.append([f"recover {name} from {row.case['num']:,} random examples", _recovered(row)])
    for row in suites["recover"].rows:
        if (
            row.case["rival"]
            and row.case["layer"] == "random"
            and row.case["tokens"] == "gaussian"
            and row.case["dim"] == 32
            and row.case["num"] == 20_000
        ):
            for told in ("heads", "heads and rank"):
                whole, compiled = (
                    row.values("students", told, "over_ours", part) for part in ("whole", "compiled")
                )
                reached = (
                    f"its time to error 1e-6 is {median(whole):.1f} times ours, {median(compiled):.1f} once compiled"
                    if whole
                    else "it did not reach 1e-6"
                )
                rows.append(
                    [
                        f"a student trained by Adam that is told {told}, d = 32, m = 8",
                        reached if row.results else NOT_RUN,
                    ]
                )
    for row in suites["extract"].rows:
        if row.case["layer"] == "sapiens-vh-layer0" and not {"rival", "before"} & row.case.keys():
            asked = row.values("sequences")
            rows.append(
                [
                    "extract sapiens-vh-layer0 by chosen queries",
                    f"{median(asked):,.0f} sequences, error {max(row.values('error')):.0e}"
                    if asked
                    else NOT_RUN,
                ]
            )
    return table(["", "measured"], rows)


def _plain(case: dict[str, object]) -> bool:
    """Gaussian tokens, exact outputs, no rival."""
    odd = any(case[name] for name in ("rival", "noise", "stored", "causal", "bias"))
    return case["tokens"] == "gaussian" and not odd


def _recovered(row: Row) -> str:
    if not row.results:
        return NOT_RUN
    error, seconds = row.values("parameter_error"), row.values("seconds")
    certified = sum(result["certified"] for result in row.results)
    told = f"certified {certified} of {len(row.results)}"
    return told + (f", parameter error {max(error):.0e}" if error else "") + f", {median(seconds):.0f} s"
