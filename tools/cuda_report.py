#!/usr/bin/env python3
"""cuda_report.py: the tables of the grid that bench/cuda/bench.py --grid measures on a device, in docs/build/cuda.md.

    tools/cuda_report.py [--data docs/build/data/cuda_grid.json] [--doc docs/build/cuda.md]

What stands between <!-- bench:cuda-grid --> and the next <!-- /bench --> is replaced. The file of the data is written anew with a
row a line, in the order of the tables, so that another run shows what changed.
"""

import argparse
import json
from pathlib import Path

from bench_report import replace_parts, table

ROOT = Path(__file__).resolve().parent.parent
CACHES = ("kivi2", "kivi4", "balanced")
HEADS = ((32, 8), (32, 32), (32, 4))


def place(row):
    """Where a row stands: heads as the page has them, then larger heads first."""
    heads = HEADS.index((row["query_heads"], row["kv_heads"]))
    return heads, -row["dim"], row["batch"], row["length"], CACHES.index(row["cache"])


def ordered(rows):
    return sorted((row for row in rows if row.get("cache") in CACHES and "ratio" in row), key=place)


def microseconds(value):
    return "" if not value else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def cell(row):
    """One cache at one shape; a result that was not right has no time."""
    if row is None or not row["us"] > 0:
        return "—"
    return f"{microseconds(row['us'])} / {row['ratio']:.2f}x / {row['tbs']:.2f}"


def grid(rows):
    """A table for every kind of heads."""
    rows, texts = ordered(rows), []
    for group in dict.fromkeys((row["query_heads"], row["kv_heads"], row["dim"]) for row in rows):
        here = [row for row in rows if (row["query_heads"], row["kv_heads"], row["dim"]) == group]
        other = any(row.get("flashinfer_us") for row in here)
        lines = []
        for shape in dict.fromkeys((row["batch"], row["length"]) for row in here):
            by_cache = {row["cache"]: row for row in here if (row["batch"], row["length"]) == shape}
            first = next(iter(by_cache.values()))
            peers = [f"{microseconds(first['sdpa_us'])} {first['sdpa'].removesuffix('-folded')}"]
            peers += [microseconds(first.get("flashinfer_us"))] if other else []
            lines.append([f"B{shape[0]} {shape[1] // 1024}K"] + peers + [cell(by_cache.get(name)) for name in CACHES])
        texts.append("{}/{} heads of {}:\n\n".format(*group)
                     + table(["shape", "SDPA"] + (["FlashInfer"] if other else []) + list(CACHES), lines))
    return summary(rows) + "\n\n" + "\n\n".join(texts)


def summary(rows):
    """Where it pays and where not, in a line for each cache."""
    lines = []
    for name in CACHES:
        here = [row for row in rows if row["cache"] == name and row["us"] > 0]
        if not here:
            continue
        slower = [row for row in here if row["ratio"] < 1]
        best = max(here, key=lambda row: row["ratio"])
        text = f"- `{name}`: faster than SDPA in {len(here) - len(slower)} of {len(here)} shapes, at most {best['ratio']:.2f} times"
        beside = [row for row in here if row.get("flashinfer_ratio")]
        if beside:
            text += f"; faster than FlashInfer in {sum(row['flashinfer_ratio'] > 1 for row in beside)} of {len(beside)}"
        lines.append(text + f". Largest error {max(row['error'] for row in here):.1e}.")
    return "\n".join(lines)


def written(rows):
    """The data, a row a line."""
    def short(value):
        if isinstance(value, dict):
            return {key: short(inner) for key, inner in value.items()}
        return float(f"{value:.5g}") if isinstance(value, float) else value
    return "[\n" + ",\n".join(json.dumps(short(row)) for row in ordered(rows)) + "\n]\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT / "docs/build/data/cuda_grid.json")
    parser.add_argument("--doc", type=Path, default=ROOT / "docs/build/cuda.md")
    options = parser.parse_args()
    rows = json.loads(options.data.read_text(encoding="utf-8"))
    options.data.write_text(written(rows), encoding="utf-8")
    (text,) = replace_parts([options.doc.read_text(encoding="utf-8")], {"cuda-grid": grid(json.loads(written(rows)))})
    options.doc.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
