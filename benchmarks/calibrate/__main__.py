"""Every script, one after the other; `--list` names them with the constants that they measure."""

from __future__ import annotations

import argparse
import time

from benchmarks.calibrate import SCRIPTS, script


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.calibrate", description=__doc__)
    parser.add_argument("--list", action="store_true", help="only the names, and what each measures")
    listed = parser.parse_args(argv).list
    for package, names in SCRIPTS.items():
        for name in names:
            module = script(name)
            if listed:
                print(f"{name:<12} {package}: {', '.join(module.COVERS)}")
                continue
            began = time.process_time()
            print(f"--- {package}: {name}")
            module.main()
            print(f"--- {time.process_time() - began:.0f} s of CPU\n", flush=True)


if __name__ == "__main__":
    main()
