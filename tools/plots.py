#!/usr/bin/env python3
"""plots.py: the pictures of docs/plots, from the tables in docs/build/data.

    make plots                        in a virtual environment with tools/plots_requirements.txt
    tools/plots.py [--data FOLDER] [--out FOLDER]

For maintainers: neither the build nor a test needs it. A setting has the colour that `tierkv report` gives it
(apps/tierkv/report_assets/colours.json). Pictures are SVG that follows the reader's choice of light or dark.
"""

import argparse
import csv
import json
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
COLOURS = json.loads((ROOT / "apps/tierkv/report_assets/colours.json").read_text())
INK, PAPER, GRID = "#1d2127", "#fffffe", "#d8dce2"  # each occurs nowhere else, so that it can be exchanged in the SVG
THEME = (
    "<style>:root{--ink:#1d2126;--paper:#ffffff;--grid:#d8dce1}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e7eaee;--paper:#14171b;--grid:#3a4048}}</style>"
)
STANDARD = "32x8x128"
PEERS = ("ggml f16", "ggml q8_0", "ggml q4_0")
OURS = ("fp16", "int8", "kivi4", "kivi2", "balanced")


def colour(name):
    """As setting_colours.cc has it, for one name alone. A layout's name is its type's."""
    name = name.removesuffix(" by token")
    if name in COLOURS["settings"]:
        return COLOURS["settings"][name]
    value = 2166136261
    for byte in name.encode():
        value = (value ^ byte) * 16777619 % 2**32
    return COLOURS["others"][value % len(COLOURS["others"])]


def is_peer(name):
    return name.startswith(("stock ", "ggml "))


def number(value, _=None):
    return f"{value // 1024:.0f}K" if value >= 1024 and value % 1024 == 0 else f"{value:g}"


def rows(path):
    with open(path, encoding="utf-8", newline="") as file:
        return [{key: value or None for key, value in row.items()} for row in csv.DictReader(file)]


def start(title, x_label, y_label, height=5.2):
    figure, axes = plt.subplots(figsize=(6.4, height), layout="constrained")
    figure.suptitle(title, fontsize=14, fontweight="bold")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_axisbelow(True)
    return figure, axes


def key(figure, axes, columns=2):
    """Below the picture, where names can be as long as they are and cover nothing."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns, frameon=False)


def save(figure, path):
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    text = path.read_text(encoding="utf-8")
    for value, name in ((INK, "ink"), (PAPER, "paper"), (GRID, "grid")):
        text = text.replace(value, f"var(--{name})")
    text = text.replace("<defs>", THEME + "\n <defs>", 1)
    path.write_text("".join(line.rstrip() + "\n" for line in text.splitlines()), encoding="utf-8")


def log_ticks(axis, values):
    axis.set_major_locator(FixedLocator(values))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(number))


def frontier(points):
    """Those that no other beats in both: less is better."""
    best = []
    for x, y in sorted(points):
        if not best or y < best[-1][1]:
            best.append((x, y))
    return best


def quality(data, out):
    table = rows(data / "quality.csv")
    about = "SmolLM2-135M-Instruct, WikiText-2 test, 4 windows of 4,096 tokens"
    for name, title, column, label in (("pareto", "What a bit buys: perplexity", "delta", "added to FP16's perplexity"),
                                       ("divergence", "What a bit buys: divergence", "kld", "divergence from FP16 (nats)")):
        figure, axes = start(title + "\n", f"bits a value of the whole cache at 4,096 tokens\n{about}", label, 6.4)
        axes.set_xscale("log")
        log_ticks(axes.xaxis, [2, 3, 4, 6, 8, 12, 16])
        if column == "delta":
            axes.set_yscale("symlog", linthresh=0.1, linscale=0.7)
            log_ticks(axes.yaxis, [-0.05, 0, 0.05, 0.1, 0.2, 0.4, 0.8])
        else:
            axes.set_yscale("log")
            log_ticks(axes.yaxis, [0.004, 0.006, 0.01, 0.02, 0.04])
        points = []
        for row in table:
            if row[column] is None:
                continue
            x, y = float(row["bits_total"]), float(row[column])
            points.append((x, y))
            error = float(row["delta_se"]) if column == "delta" and row["delta_se"] else None
            axes.errorbar(x, y, yerr=error, fmt="s" if is_peer(row["setting"]) else "o", color=colour(row["setting"]), markersize=9,
                          capsize=4, label=row["name"])
        axes.plot(*zip(*frontier(points)), linestyle=(0, (4, 4)), color=INK, linewidth=1, zorder=0)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend([h[0] for h in handles], labels, loc="outside lower center", ncols=2, frameon=False)
        save(figure, out / f"{name}.svg")


def decode_lengths(table, out):
    shapes = dict.fromkeys(f"{r['heads']}x{r['kv_heads']}x{r['head_dim']}" for r in table if r["op"] == "decode")
    for shape in shapes:
        heads, kv_heads, dim = shape.split("x")
        here = [r for r in table if (r["op"], r["heads"], r["kv_heads"], r["head_dim"], r["threads"])
                == ("decode", heads, kv_heads, dim, "2")]  # fmt: skip
        figure, axes = start(f"Decode attention of one layer, {heads}/{kv_heads} d{dim}, 2 threads", "tokens in the cache", "ms", 6)
        axes.set_xscale("log")
        axes.set_yscale("log")
        for name in dict.fromkeys(r["setting"] for r in here):
            points = sorted((int(r["tokens"]), float(r["ms"])) for r in here if r["setting"] == name)
            style = ":" if name.endswith("by token") else "--" if is_peer(name) else "-"
            axes.plot(*zip(*points), style, color=colour(name), marker="s" if is_peer(name) else "o", label=name)
        log_ticks(axes.xaxis, sorted({int(r["tokens"]) for r in here}))
        axes.yaxis.set_major_formatter(FuncFormatter(number))
        key(figure, axes, 3)
        save(figure, out / f"decode-{shape}.svg")


def bars(axes, groups, series, colours):
    """series: name -> a value for each group, or None."""
    width = 0.8 / len(series)
    for i, (name, values) in enumerate(series.items()):
        places = [g - 0.4 + width * (i + 0.5) for g, value in enumerate(values) if value is not None]
        drawn = axes.bar(places, [v for v in values if v is not None], width * 0.92, label=name, color=colours[name])
        axes.bar_label(drawn, fmt=lambda v: f"{v:.3g}", fontsize=9, padding=2)
    axes.set_xticks(range(len(groups)), groups)
    axes.grid(axis="x", visible=False)
    axes.margins(y=0.1)


def ratios(table, out):
    for op, what in (("decode", "Decode"), ("prefill512", "Prefill of 512")):
        here = {r["setting"]: r for r in table if (r["op"], r["heads"], r["kv_heads"], r["head_dim"], r["threads"], r["tokens"])
                == (op, "32", "8", "128", "2", "32768")}  # fmt: skip
        settings = [s for s in OURS if s in here]
        columns = {f"to {peer}": [here[s]["times_" + peer.replace(" ", "_")] for s in settings] for peer in PEERS}
        figure, axes = start(f"{what} at 32K, 32/8 d128, 2 threads", "cache setting", "times faster than ggml's type")
        bars(axes, settings, {name: [v and float(v) for v in values] for name, values in columns.items()},
             {f"to {peer}": colour(peer) for peer in PEERS})
        axes.axhline(1, color=INK, linestyle=(0, (6, 4)), linewidth=1, label="as fast")
        key(figure, axes)
        save(figure, out / f"{op}-ratio.svg")


def bandwidth(table, out):
    place = ("decode", "32", "8", "128", "32768")
    here = {(r["setting"], r["threads"]): r for r in table
            if (r["op"], r["heads"], r["kv_heads"], r["head_dim"], r["tokens"]) == place and r["gbps"]}  # fmt: skip
    settings = [s for s in OURS if (s, "2") in here]
    figure, axes = start("Bytes of our cache read in a decode step,\n32K, 32/8 d128", "cache setting", "GB/s")
    shades = {"1 thread": "#8fa3bd", "2 threads": "#47617f"}
    bars(axes, settings, {name: [float(here[s, name[0]]["gbps"]) if (s, name[0]) in here else None for s in settings]
                          for name in shades}, shades)  # fmt: skip
    for name, shade in shades.items():
        ceiling = next((float(r["gbps"]) for r in table if r["op"] == "read" and r["threads"] == name[0]), None)
        if ceiling:
            axes.axhline(ceiling, color=shade, linestyle=(0, (6, 4)), label=f"plain reading, {name}")
    key(figure, axes)
    save(figure, out / "decode-bandwidth.svg")


def model(data, out):
    table = rows(data / "model.csv")
    depths = list(dict.fromkeys(int(r["tokens"]) for r in table))
    names = list(dict.fromkeys(r["setting"] for r in table))
    series = {n: [next((float(r["decode_tokens_per_second"]) for r in table if (r["setting"], int(r["tokens"])) == (n, d)), None)
                  for d in depths] for n in names}  # fmt: skip
    figure, axes = start("Decoding with SmolLM2-135M-Instruct, 2 threads", "tokens in the cache", "tokens/s")
    bars(axes, [f"{d:,}" for d in depths], series, {n: colour(n) for n in names})
    key(figure, axes)
    save(figure, out / "model-decode.svg")


# What is timed on a device, and the shapes that the project is judged by.
DEVICE = ("kivi2", "kivi4", "klt", "balanced")
DEVICE_SHAPES = {
    (8, 8, 131072): "8 x 128K", (8, 8, 32768): "8 x 32K", (1, 8, 131072): "1 x 128K", (1, 32, 131072): "1 x 128K\n32/32"
}  # fmt: skip


def device(data, out):
    """Attention on a CUDA device beside SDPA (bench/cuda/bench.py)."""
    table = {}
    for row in json.loads((data / "cuda.json").read_text()):
        shape = (row.get("batch"), row.get("kv_heads"), row.get("length"))
        if row.get("dim") == 128 and shape in DEVICE_SHAPES:
            table[row["cache"], shape] = row["ratio"]
    figure, axes = start("Attention on an H200 beside SDPA", "sequences x tokens, 32/8 heads of 128", "times as fast as SDPA, fp16")
    series = {name: [table[name, shape] for shape in DEVICE_SHAPES] for name in DEVICE}
    colours = {name: colour("klt1.875" if name == "klt" else name) for name in DEVICE}
    bars(axes, list(DEVICE_SHAPES.values()), series, colours)
    axes.axhline(1, color=INK, linestyle=(0, (6, 4)), linewidth=1, label="as fast")
    key(figure, axes, 3)
    save(figure, out / "cuda-ratio.svg")


def device_grid(data, out):
    """How the ratio grows with tokens and sequences (bench/cuda/bench.py --grid); nothing where it was not measured."""
    if not (data / "cuda_grid.json").exists():
        return
    table = [row for row in json.loads((data / "cuda_grid.json").read_text())
             if (row["query_heads"], row["kv_heads"], row["dim"]) == (32, 8, 128)]
    figure, axes = start("Attention on an H200 beside SDPA, 32/8 d128", "tokens of a sequence", "times as fast as SDPA, fp16", 5.6)
    axes.set_xscale("log")
    for name in ("kivi2", "kivi4", "balanced"):
        for batch, style in ((1, ":"), (8, "--"), (32, "-")):
            points = sorted((row["length"], row["ratio"]) for row in table if (row["cache"], row["batch"]) == (name, batch))
            if points:
                axes.plot(*zip(*points), style, color=colour(name), marker="o", label=f"{name} B{batch}")
    axes.axhline(1, color=INK, linestyle=(0, (6, 4)), linewidth=1, label="as fast")
    axes.set_ylim(bottom=0)
    log_ticks(axes.xaxis, sorted({row["length"] for row in table}))
    key(figure, axes, 3)
    save(figure, out / "cuda-grid.svg")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT / "docs/build/data")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/plots")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    plt.rcParams.update({
        "svg.hashsalt": "tierkv", "svg.fonttype": "path", "font.size": 12, "text.color": INK, "axes.labelcolor": INK,
        "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK, "figure.facecolor": PAPER, "axes.facecolor": PAPER,
        "savefig.facecolor": PAPER, "axes.grid": True, "grid.color": GRID, "axes.spines.top": False, "axes.spines.right": False,
    })
    performance = rows(options.data / "performance.csv")
    quality(options.data, options.out)
    decode_lengths(performance, options.out)
    ratios(performance, options.out)
    bandwidth(performance, options.out)
    model(options.data, options.out)
    device(options.data, options.out)
    device_grid(options.data, options.out)
    for path in sorted(options.out.glob("*.svg")):
        print(path)


if __name__ == "__main__":
    main()
