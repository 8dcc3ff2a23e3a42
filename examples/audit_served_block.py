"""
Audit of a served attention block
=================================

A block answers queries in another process; the auditor sees no weights, only answers. How many queries give it away,
and what would rounding the answers change? Every query is counted on this side of the pipe.
"""

# %%
from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import attnlearn
from attnlearn import AttentionLayer, distance
from attnlearn.extraction import leak
from attnlearn.oracle import parse

folder = Path(tempfile.mkdtemp())

# %%
# The service: a layer behind a pipe. Its weights never enter this process's computation.
served = AttentionLayer.random(num_heads=3, dim=8, rank=4, bias=True, seed=7)
served.save(folder / "served.safetensors")
service = f"process:{sys.executable} -m attnlearn.oracle.serve_process {folder / 'served.safetensors'}"

# %%
# The attack: every head from chosen queries, with a certificate.
solution = attnlearn.extract(parse(service), dim=8, raise_on_failure=False)
print(solution)
spent = {name: solution.stats[name] for name in ("sequences", "tokens", "scalars")}
print("spent    " + ", ".join(f"{value:,} {name}" for name, value in spent.items()))

# %%
# The owner, who has the weights, can check it.
error = distance(solution.layer, served).max
print(f"error    {error:.1e} (worst parameter)")

# %%
# The defence: what rounding the answers would change.
curve = leak(parse(service), dim=8, decimals=(None, 3), progress=False)
print(f"\n{curve}")

# %%
# Both as pages for people.
attnlearn.report(solution, folder / "extraction.html")
rows = {"schema": "attnlearn/leak", "version": 1, "rows": curve.rows}
attnlearn.report(rows, folder / "leak.html")
print(f"\nreports  {folder / 'extraction.html'}, {folder / 'leak.html'}")
assert solution.certified
assert error < 1e-6

# %%
# The error that an attacker reaches, against the queries spent.
import matplotlib.pyplot as plt

curve.plot(plt.gca())
plt.show()
