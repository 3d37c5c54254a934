#!/usr/bin/env python3
"""Tables and plots of docs/performance.md from what the benchmarks wrote.

    tools/bench_report.py build/bench-report.jsonl [--model build/bench-model.json] [--doc docs/performance.md] [--plots docs/plots]

The JSON lines are those of `tierkv-bench --grid --json-file`; --model is what `tierkv bench --json` wrote. Text between a line
<!-- bench:NAME --> and the next <!-- /bench --> of the document is replaced; everything else of it is left alone.
"""

import argparse
import json
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import svg_plot  # noqa: E402

STANDARD = "32x8x128"
BEST = ("ggml f16", "ggml q8_0", "ggml q4_0")
BY_TOKEN = tuple(peer + " by token" for peer in BEST)
CASE = re.compile(r"^(\w+)/([^/]+)/([^/]+)/(\d+)Kx(\d+x\d+x\d+)_t(\d+)$")
QUIET = 0.02  # of the time without a core: more than this and a row is marked


class Point:
    """One setting at one shape, length and number of threads; its rows differ by peer."""

    def __init__(self, row):
        self.row = row
        self.peers = {}

    def ratio(self, peer):
        return self.peers[peer]["ratio"] if peer in self.peers else None


class Results:
    def __init__(self, rows):
        self.rows = {row["case"]: row for row in rows}
        self.points = {}  # (op, shape, threads, tokens, setting) -> Point
        for row in rows:
            match = CASE.match(row["case"])
            if not match:
                continue
            _, setting, op, kilo, shape, threads = match.groups()
            key = (op, shape, int(threads), int(kilo) * 1024, setting)
            if row.get("tokens", key[3]) != key[3]:
                raise SystemExit(f"{row['case']} has {row['tokens']} tokens: a --quick run is a smoke test, not a result")
            # A point that was measured again replaces the older one as a whole: its ratios belong to one run.
            if key not in self.points or self.points[key].row["median_ms"] != row["median_ms"]:
                self.points[key] = Point(row)
            if "peer_median_ms" in row:
                self.points[key].peers[row["peer"]] = row

    def find(self, op, shape, threads, tokens, setting):
        return self.points.get((op, shape, threads, tokens, setting))

    def values(self, index, **fixed):
        """What occurs at one place of the keys, in the order it was measured."""
        names = ("op", "shape", "threads", "tokens", "setting")
        keys = [k for k in self.points if all(k[names.index(n)] == v for n, v in fixed.items())]
        return list(dict.fromkeys(k[names.index(index)] for k in keys))


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def ms(value):
    return "" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def times(value):
    return "" if value is None else f"{value:.1f}x"


def percent(value):
    return "" if value is None else f"{100 * value:.3g} %"


def name_of(shape):
    heads, kv_heads, dim = shape.split("x")
    return f"{heads}/{kv_heads} d{dim}"


def unquiet(point):
    return max([point.row.get("waited", 0), point.row.get("ceiling_waited", 0)] + [r.get("peer_waited", 0) for r in point.peers.values()]) > QUIET


# --- sections: each gives the text of one part of the document, or None without data


def machine(results):
    row = next(iter(p.row for p in results.points.values()), None) or next(iter(results.rows.values()), None)
    if row is None:
        return None
    peer_isa = next((r["peer_isa"] for p in results.points.values() for r in p.peers.values()), "no peer")
    ceilings = [f"{r['gbps']:.1f} GB/s with {r['threads']:.0f} thread{'s' if r['threads'] > 1 else ''}"
                for name, r in results.rows.items() if name.startswith("base/memory/read/")]
    noisy = [k for k, p in results.points.items() if unquiet(p)]
    lines = [f"{row['hardware']}, our kernels: {row.get('isa', 'unknown')}, ggml's: {peer_isa}; commit {row['commit']}."]
    if ceilings:
        lines.append(f"Plain reading of memory: {', '.join(ceilings)}.")
    if noisy:
        lines.append(f"{len(noisy)} of {len(results.points)} points did not have their cores to themselves and are marked \\*: "
                     "their ratios favour whoever does not spin.")
    return "\n".join(lines)


def targets(results):
    def at(op, setting):
        return results.find(op, STANDARD, 2, 32 * 1024, setting)

    rows = []

    def compare(what, value, least, aim, form, below=False):
        if value is None:
            return
        verdict = "aim reached" if (value <= aim if below else value >= aim) else \
            "reached" if (value <= least if below else value >= least) else "missed"
        sign = "< " if below else ""
        rows.append([what, form(value), sign + form(least), sign + form(aim), verdict])

    def ratios(what, op, setting, wanted):
        point = at(op, setting)
        for peer, least, aim in wanted if point else []:
            compare(f"{what} against {peer}", point.ratio(peer), least, aim, times)

    ratios("decode, `balanced`,", "decode", "balanced", [(BEST[0], 8, 15), (BEST[1], 10, 18), (BEST[2], 20, 45)])
    ratios("decode, `fp16`,", "decode", "fp16", [(BEST[0], 2, 3)])
    ratios("decode, `kivi4`,", "decode", "kivi4", [(BEST[2], 12, 25)])
    if at("decode", "balanced"):
        compare("decode, `balanced`, share of the read ceiling", at("decode", "balanced").row["ceiling_fraction"], 0.45, 0.75, percent)
    for setting in ("fp16", "balanced"):
        ratios(f"prefill of 512, `{setting}`,", "prefill512", setting, [(BEST[0], 1.2, 2.5), (BEST[1], 4, 8)])
    if at("graduate", "balanced"):
        compare("append with its encoding, `balanced`, share of a decode step", at("graduate", "balanced").row["share"], 0.03, 0.01, percent, True)
    for codec in ("kivi2-g64", "rot2"):
        row = results.rows.get(f"quant/{codec}/unpack/1Kx8x128")
        if row:
            compare(f"unpack of 1,024 tokens, 8 heads, `{codec}`, one thread", row["median_ms"], 0.5, 0.2, lambda v: f"{v:.3g} ms", True)
    return table(["at 32K, 32/8 d128, 2 threads", "measured", "at least", "aim", ""], rows) if rows else None


def attention(results, op):
    parts = []
    for shape in results.values("shape", op=op):
        for threads in results.values("threads", op=op, shape=shape):
            rows = []
            for tokens in results.values("tokens", op=op, shape=shape, threads=threads):
                for setting in results.values("setting", op=op, shape=shape, threads=threads, tokens=tokens):
                    point = results.find(op, shape, threads, tokens, setting)
                    row = point.row
                    rows.append([svg_plot.number(tokens), setting + (" \\*" if unquiet(point) else ""), ms(row["median_ms"]), f"{row['bits']:.2f}"]
                                + ([f"{row['gbps']:.2f}", percent(row["ceiling_fraction"])] if op == "decode" else [])
                                + [times(point.ratio(peer)) for peer in BEST])
                peers = next((p.peers for k, p in results.points.items() if k[:4] == (op, shape, threads, tokens) and p.peers), {})
                for peer in BEST + BY_TOKEN:
                    if peer in peers:
                        rows.append([svg_plot.number(tokens), peer, ms(peers[peer]["peer_median_ms"]), ""] + [""] * (5 if op == "decode" else 3))
            head = ["tokens", "setting", "ms", "bits"] + (["GB/s", "of ceiling"] if op == "decode" else []) + ["to " + p for p in BEST]
            parts.append(f"**{name_of(shape)}, {threads} thread{'s' if threads > 1 else ''}**\n\n" + table(head, rows))
    return "\n\n".join(parts) or None


def archives(results):
    """The default archive of a calibrated model, klt, beside rot2: the same tiers but for the archive's codec."""
    rows = []
    for shape in results.values("shape", op="decode", setting="klt"):
        for threads in results.values("threads", op="decode", shape=shape, setting="klt"):
            for tokens in results.values("tokens", op="decode", shape=shape, threads=threads, setting="klt"):
                klt, rot = (results.find("decode", shape, threads, tokens, setting) for setting in ("klt", "rot2"))
                if not rot:
                    continue
                mark = " \\*" if unquiet(klt) or unquiet(rot) else ""
                rows.append([name_of(shape), str(threads), svg_plot.number(tokens) + mark, ms(rot.row["median_ms"]), ms(klt.row["median_ms"]),
                             f"{klt.row['median_ms'] / rot.row['median_ms']:.2f}", f"{rot.row['bits']:.2f}", f"{klt.row['bits']:.2f}"])
    head = ["shape", "threads", "tokens", "rot2 ms", "klt ms", "klt to rot2", "rot2 bits", "klt bits"]
    return "**The calibrated archive beside the plain one**\n\n" + table(head, rows) if rows else None


def decode(results):
    return "\n\n".join(part for part in (attention(results, "decode"), archives(results)) if part) or None


def linearity(results):
    rows = []
    for shape in results.values("shape", op="decode"):
        for threads in results.values("threads", op="decode", shape=shape):
            for setting in results.values("setting", op="decode", shape=shape, threads=threads):
                points = {t: results.find("decode", shape, threads, t, setting) for t in (4096, 16384, 32768, 131072)}
                costs = {t: p.row["ns_per_token"] for t, p in points.items() if p}
                if len(costs) < 2:
                    continue
                first, last = min(costs), max(costs)
                rows.append([name_of(shape), str(threads), setting] + [f"{costs[t]:.3g}" if t in costs else "" for t in points]
                            + [f"{100 * (costs[last] / costs[first] - 1):+.0f} %"])
    return table(["shape", "threads", "setting", "4K", "16K", "32K", "128K", "longest to shortest"], rows) if rows else None


def encode(results):
    rows = []
    for name, row in results.rows.items():
        match = re.match(r"^quant/([^/]+)/(graduate|unpack)/", name)
        if match:
            what = "encode a block of 128" if match[2] == "graduate" else "unpack 1,024 tokens"
            rows.append([what, match[1], f"{row['median_ms']:.3g} ms", f"{row['ns_per_token'] / 1000:.3g} µs", f"{row['bits']:.2f}", "", ""])
    for (op, shape, threads, _, setting), point in results.points.items():
        if op == "graduate":
            row = point.row
            rows.append([f"append one token at 32K, {name_of(shape)}, {threads} thread{'s' if threads > 1 else ''}", setting, "",
                         f"{1000 * row['median_ms']:.3g} µs", f"{row['bits']:.2f}", f"{row['decode_ms']:.3g} ms", percent(row["share"])])
    return table(["what", "codec or setting", "in all", "per token", "bits", "decode step", "share"], rows) if rows else None


def model(points):
    rows = []
    for point in points:
        label = ("stock " if point["stock"] else "") + point["kv"]
        rows.append([point["model"], svg_plot.number(point["depth"]), label, f"{point['decode_tokens_per_second']:.1f}", f"{point['decode_ratio']:.2f}x",
                     f"{point['p50_ms']:.3g}", f"{point['prefill_tokens_per_second']:.0f}" if point["depth"] else "",
                     f"{point['resident_bytes'] / 2**20:.1f}"])
    head = ["model", "depth", "setting", "decode tokens/s", "to stock f16", "p50 ms", "prefill tokens/s", "resident MiB"]
    return table(head, rows) if rows else None


# --- plots


def plots(results, points):
    """File name -> SVG, for everything there is data for."""
    out = {}
    for shape in results.values("shape", op="decode"):
        lengths = sorted(set(results.values("tokens", op="decode", shape=shape, threads=2)))
        if not lengths:
            continue
        series, peers = [], {}
        for setting in results.values("setting", op="decode", shape=shape, threads=2):
            found = [(t, results.find("decode", shape, 2, t, setting)) for t in lengths]
            series.append((setting, [(t, p.row["median_ms"]) for t, p in found if p], False))
            for t, p in found:
                for peer, row in p.peers.items() if p else []:
                    peers.setdefault(peer, {})[t] = row["peer_median_ms"]
        series += [(peer, sorted(peers[peer].items()), True) for peer in BEST + BY_TOKEN if peer in peers]
        out[f"decode-{shape}.svg"] = svg_plot.lines(f"Decode attention of one layer, {name_of(shape)}, 2 threads", "tokens", "ms", series, lengths)

    for op, what in (("decode", "Decode"), ("prefill512", "Prefill of 512")):
        settings = results.values("setting", op=op, shape=STANDARD, threads=2, tokens=32768)
        found = [results.find(op, STANDARD, 2, 32768, s) for s in settings]
        if any(p.peers for p in found):
            series = [(f"to {peer}", [p.ratio(peer) for p in found]) for peer in BEST]
            out[f"{op}-ratio.svg"] = svg_plot.bars(f"{what} at 32K, 32/8 d128, 2 threads", "cache setting", "times faster", settings, series,
                                                   [("as fast", 1.0)])
    settings = results.values("setting", op="decode", shape=STANDARD, tokens=32768)
    series, marks = [], []
    for threads in results.values("threads", op="decode", shape=STANDARD, tokens=32768):
        found = [results.find("decode", STANDARD, threads, 32768, s) for s in settings]
        series.append((f"{threads} thread{'s' if threads > 1 else ''}", [p.row["gbps"] if p else None for p in found]))
        ceilings = [p.row["ceiling_gbps"] for p in found if p]
        marks.append((f"ceiling, {threads} thread{'s' if threads > 1 else ''}", ceilings[0]))
    if series:
        out["decode-bandwidth.svg"] = svg_plot.bars("Bytes of our cache read in a decode step, 32K, 32/8 d128", "cache setting", "GB/s", settings, series, marks)
    if points:
        labels = list(dict.fromkeys((p["stock"], p["kv"]) for p in points))
        depths = sorted({p["depth"] for p in points})
        series = [(("stock " if stock else "") + kv,
                   [next((p["decode_tokens_per_second"] for p in points if (p["stock"], p["kv"], p["depth"]) == (stock, kv, d)), None) for d in depths])
                  for stock, kv in labels]
        out["model-decode.svg"] = svg_plot.bars(f"Decoding with {points[0]['model']}, {points[0]['threads']} threads", "tokens in the cache", "tokens/s",
                                                [svg_plot.number(d) for d in depths], series)
    return out


def replace_parts(document, parts):
    """The document with every part that has a text; a part without a place is an error."""
    for name, text in parts.items():
        pattern = re.compile(rf"(<!-- bench:{name} -->\n).*?(<!-- /bench -->)", re.S)
        if not pattern.search(document):
            raise SystemExit(f"the document has no lines <!-- bench:{name} --> and <!-- /bench -->")
        if text:
            document = pattern.sub(lambda m, t=text: f"{m[1]}\n{t}\n\n{m[2]}", document, count=1)
    return document


def main():
    parser = argparse.ArgumentParser(description="Tables and plots of docs/performance.md from what the benchmarks wrote.")
    parser.add_argument("lines", help="JSON lines of tierkv-bench --grid --json-file")
    parser.add_argument("--model", help="what tierkv bench --json wrote")
    parser.add_argument("--doc", default="docs/performance.md")
    parser.add_argument("--plots", default="docs/plots")
    options = parser.parse_args()
    with open(options.lines, encoding="utf-8") as file:
        results = Results([json.loads(line) for line in file if line.strip()])
    points = []
    if options.model:
        with open(options.model, encoding="utf-8") as file:
            points = json.load(file)
    drawn = plots(results, points)
    folder = os.path.relpath(options.plots, os.path.dirname(os.path.abspath(options.doc)))
    pictures = "\n".join(f"![{name[:-4]}]({folder}/{name})" for name in drawn)
    with open(options.doc, encoding="utf-8") as file:
        document = file.read()
    document = replace_parts(document, {
        "machine": machine(results), "targets": targets(results), "plots": pictures, "decode": decode(results),
        "prefill": attention(results, "prefill512"), "encode": encode(results), "linearity": linearity(results), "model": model(points)})
    os.makedirs(options.plots, exist_ok=True)
    for name, svg in drawn.items():
        with open(os.path.join(options.plots, name), "w", encoding="utf-8") as file:
            file.write(svg)
    with open(options.doc, "w", encoding="utf-8") as file:
        file.write(document)
    print(f"{options.doc}: {len(results.points)} points, {len(drawn)} plots in {options.plots}")


if __name__ == "__main__":
    main()
