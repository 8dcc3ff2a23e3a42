"""
Recover a real attention layer from examples only
=================================================

The layer belongs to a published antibody language model: 8 heads of rank 16 on tokens of dimension 128, with large
query biases. ``recover`` sees nothing but random inputs and the layer's outputs. ``attnlearn demo`` does the same.
"""

# %%
from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import attnlearn
from attnlearn import data, distance

ROOT = next(folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / "tests" / "layers").is_dir())

# %%
# The truth, used only to make examples and to judge the answer.
truth = attnlearn.load(ROOT / "tests" / "layers" / "sapiens-vh-layer0.safetensors", dtype=np.float64)
x = data.Gaussian(tokens=8, dim=truth.dim).sample(20_000, seed=1)
y = truth(x)
print(f"{len(x):,} examples of {x.shape[1]} Gaussian tokens, dimension {truth.dim}")

# %%
# Everything from here on sees x and y only.
solution = attnlearn.recover(x, y, progress="bar" if sys.stderr.isatty() else "plain", raise_on_failure=False)
print(f"\n{solution}")

# %%
# How far the answer is from the truth.
if solution.layer is not None:
    error = distance(solution.layer, truth)
    print(f"\nheads    found {solution.layer.num_heads}, true {truth.num_heads}")
    print(
        f"errors   theta {error.theta:.1e}, w {error.w:.1e}, query bias {error.query_bias:.1e}, "
        f"output bias {error.output_bias:.1e}"
    )

# %%
# Layer, result and report: the report is one HTML file that opens without a network.
folder = ROOT / "demo"
folder.mkdir(exist_ok=True)
if solution.layer is not None:
    solution.layer.save(folder / "layer.safetensors")
    solution.save_json(folder / "result.json", folder / "layer.safetensors")
    print("wrote    demo/layer.safetensors, demo/result.json")
attnlearn.report(solution, folder / "report.html")
print("\nOpen the report in a browser:\ndemo/report.html")

# %%
# Mean attention of four recovered heads: what a query at each place looks at.
import matplotlib.pyplot as plt

from attnlearn.reporting import Heatmap

if solution.layer is not None:
    patterns = solution.layer.patterns(x[:256]).mean(axis=0)
    figure, axes = plt.subplots(1, 4, figsize=(11, 2.6), layout="constrained")
    for head, ax in enumerate(axes):
        Heatmap(f"head {head}", matrix=patterns[head], signed=False, x_label="key", y_label="query").plot(ax)
    plt.show()

if not solution.certified:
    sys.exit(3)
