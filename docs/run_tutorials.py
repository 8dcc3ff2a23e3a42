"""Run the tutorials again and keep their outputs: python docs/run_tutorials.py [NAME ...] (or `make tutorials`)."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "tutorials"


def run(path: Path, timeout: int = 900) -> None:
    """Execute one notebook in its folder and write it back with its outputs, without times and warnings that change from run to run."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=timeout, resources={"metadata": {"path": str(path.parent)}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":  # warnings of other packages name folders of this machine
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.ipynb")):
        if len(sys.argv) == 1 or path.stem in sys.argv[1:]:
            run(path)
            print(f"ran {path.name}", flush=True)
