#!/usr/bin/env python3
"""The tables of docs/use/performance.md and docs/build/measurements.md, and the grid behind them as data, from what the
benchmarks wrote. `make plots` draws from that data.

    tools/bench_report.py build/bench-report.jsonl [--model build/bench-model.json] [--doc PAGE]... [--data CSV] [--model-data CSV]

The JSON lines are those of `tierkv-bench --grid --json-file`; --model is what `tierkv bench --json` wrote. Text between a line
<!-- bench:NAME --> and the next <!-- /bench --> of a page is replaced; everything else of it is left alone. The pages show what
matters; every point that was measured is a line of the CSV.
"""

import argparse
import csv
import io
import json
import os
import re

PAGES = ["docs/use/performance.md", "docs/build/measurements.md"]
STANDARD = "32x8x128"
BEST = ("ggml f16", "ggml q8_0", "ggml q4_0")
BY_TOKEN = tuple(peer + " by token" for peer in BEST)
CASE = re.compile(r"^(\w+)/([^/]+)/([^/]+)/(\d+)Kx(\d+x\d+x\d+)_t(\d+)$")
QUIET = 0.02  # of the time without a core: more than this and a row is marked
SHOWN = ("balanced",)  # what the page shows of every shape; of the standard shape it shows all, and the data has everything
COLUMNS = ("op", "heads", "kv_heads", "head_dim", "threads", "tokens", "setting", "ms", "bits", "gbps", "ceiling_fraction",
           "times_ggml_f16", "times_ggml_q8_0", "times_ggml_q4_0", "decode_ms", "share", "disturbed", "commit")


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


def kilo(value):
    """A number of tokens: 4K, 8150."""
    return f"{value // 1024}K" if value >= 1024 and value % 1024 == 0 else str(value)


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
    waited = [point.row.get("waited", 0), point.row.get("ceiling_waited", 0)]
    return max(waited + [row.get("peer_waited", 0) for row in point.peers.values()]) > QUIET


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
        compare("decode, `balanced`, share of the read ceiling", at("decode", "balanced").row["ceiling_fraction"], 0.45, 0.75,
                percent)
    for setting in ("fp16", "balanced"):
        ratios(f"prefill of 512, `{setting}`,", "prefill512", setting, [(BEST[0], 1.2, 2.5), (BEST[1], 4, 8)])
    if at("graduate", "balanced"):
        compare("append with its encoding, `balanced`, share of a decode step", at("graduate", "balanced").row["share"], 0.03, 0.01,
                percent, True)
    for codec in ("kivi2-g64", "rot2"):
        row = results.rows.get(f"quant/{codec}/unpack/1Kx8x128")
        if row:
            compare(f"unpack of 1,024 tokens, 8 heads, `{codec}`, one thread", row["median_ms"], 0.5, 0.2, lambda v: f"{v:.3g} ms",
                    True)
    return table(["at 32K, 32/8 d128, 2 threads", "measured", "at least", "aim", ""], rows) if rows else None


def marked(setting, point):
    return setting + (" \\*" if unquiet(point) else "")


def joined(*parts):
    return "\n\n".join(part for part in parts if part) or None


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
                times_of = [point.row["median_ms"] for point in (rot, klt)]
                rows.append([name_of(shape), str(threads), kilo(tokens) + mark, ms(times_of[0]), ms(times_of[1]),
                             f"{times_of[1] / times_of[0]:.2f}", f"{rot.row['bits']:.2f}", f"{klt.row['bits']:.2f}"])
    head = ["shape", "threads", "tokens", "rot2 ms", "klt ms", "klt to rot2", "rot2 bits", "klt bits"]
    return "**The calibrated archive beside the plain one**\n\n" + table(head, rows) if rows else None


def shapes(results, op):
    """What the page shows at 32K with two threads."""
    rows = []
    for shape in results.values("shape", op=op, threads=2, tokens=32768):
        for setting in results.values("setting", op=op, shape=shape, threads=2, tokens=32768):
            if shape == STANDARD or setting in SHOWN:
                point = results.find(op, shape, 2, 32768, setting)
                row = point.row
                rows.append([name_of(shape), marked(setting, point), ms(row["median_ms"]), f"{row['bits']:.2f}"]
                            + [times(point.ratio(peer)) for peer in BEST])
    return table(["heads", "setting", "ms", "bits"] + ["to " + peer for peer in BEST], rows) if rows else None


def lengths(results):
    """Milliseconds of a decode step of the standard shape by length, ours and the peer's; last, cost per token at both ends."""
    here = {"op": "decode", "shape": STANDARD, "threads": 2}
    tokens = sorted(results.values("tokens", **here))
    rows = []

    def add(name, found):
        costs = [found[t] / t for t in tokens if t in found]
        growth = f"{round(100 * (costs[-1] / costs[0] - 1)):+d} %" if len(costs) > 1 else ""
        rows.append([name] + [ms(found.get(t)) for t in tokens] + [growth])

    for setting in results.values("setting", **here):
        points = {t: results.find("decode", STANDARD, 2, t, setting) for t in tokens}
        add(setting, {t: point.row["median_ms"] for t, point in points.items() if point})
    for peer in BEST + BY_TOKEN:
        found = {}
        for (op, shape, threads, length, _), point in results.points.items():
            if (op, shape, threads) == ("decode", STANDARD, 2) and peer in point.peers:
                found.setdefault(length, point.peers[peer]["peer_median_ms"])
        if found:
            add(peer, found)
    return table(["ms"] + [kilo(t) for t in tokens] + ["per token, longest to shortest"], rows) if rows else None


def encode(results):
    rows = []
    for name, row in results.rows.items():
        match = re.match(r"^quant/([^/]+)/(graduate|unpack)/", name)
        if match:
            what = "encode a block of 128" if match[2] == "graduate" else "unpack 1,024 tokens"
            rows.append([what, match[1], f"{row['bits']:.2f}", f"{row['median_ms']:.3g} ms", f"{row['ns_per_token'] / 1000:.3g} µs",
                         ""])
    for (op, shape, threads, _, setting), point in results.points.items():
        if op == "graduate" and threads == 2:
            row = point.row
            rows.append([f"append one token at 32K, {name_of(shape)}, 2 threads", setting, f"{row['bits']:.2f}", "",
                         f"{1000 * row['median_ms']:.3g} µs", percent(row["share"])])
    return table(["what", "codec or setting", "bits", "in all", "per token", "of a decode step"], rows) if rows else None


# --- data


def measured(results):
    """Every point as a line of the CSV; empty where a column does not apply."""
    for name, row in results.rows.items():
        read = re.match(r"^base/memory/read/", name)
        codec = re.match(r"^quant/([^/]+)/(graduate|unpack)/(\d+)(K?)x(\d+)x(\d+)$", name)
        if read:
            yield {"op": "read", "threads": row["threads"], "gbps": row["gbps"], "commit": row["commit"]}
        elif codec:
            tokens = int(codec[3]) * (1024 if codec[4] else 1)
            yield {"op": "encode" if codec[2] == "graduate" else "unpack", "kv_heads": codec[5], "head_dim": codec[6], "threads": 1,
                   "tokens": tokens, "setting": codec[1], "ms": row["median_ms"], "bits": row["bits"], "commit": row["commit"]}
    peers = {}
    for (op, shape, threads, tokens, setting), point in results.points.items():
        heads, kv_heads, head_dim = shape.split("x")
        row = point.row
        place = {"op": "append" if op == "graduate" else op, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim,
                 "threads": threads,
                 "tokens": tokens, "commit": row["commit"]}
        line = {**place, "setting": setting, "ms": row["median_ms"], "disturbed": int(unquiet(point))}
        line.update({key: row[key] for key in ("bits", "decode_ms", "share") if key in row})
        if op == "decode":
            line.update(gbps=row["gbps"], ceiling_fraction=row["ceiling_fraction"])
        line.update({"times_" + peer.replace(" ", "_"): point.ratio(peer) for peer in BEST if peer in point.peers})
        yield line
        for peer, theirs in point.peers.items():
            peers.setdefault((op, shape, threads, tokens, peer), {**place, "setting": peer, "ms": theirs["peer_median_ms"]})
    yield from peers.values()


def data(results):
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for line in measured(results):
        writer.writerow({key: f"{value:.5g}" if isinstance(value, float) else value for key, value in line.items()})
    return text.getvalue()


# --- the model's own speed


def label_of(point):
    return ("stock " if point["stock"] else "") + point["kv"]


def model(points):
    rows = []
    for point in points:
        if point["depth"] == 0:
            continue  # an empty cache is as fast as any other
        rows.append([kilo(point["depth"]), label_of(point), f"{point['decode_tokens_per_second']:.1f}",
                     f"{point['decode_ratio']:.2f}x",
                     f"{point['p50_ms']:.3g}", f"{point['prefill_tokens_per_second']:.0f}",
                     f"{point['resident_bytes'] / 2**20:.1f}"])
    head = ["tokens", "setting", "decode tokens/s", "to stock f16", "p50 ms", "prefill tokens/s", "resident MiB"]
    name = points[0]["title"] if rows else ""
    return f"{name}, {points[0]['threads']} threads.\n\n" + table(head, rows) if rows else None


def model_data(points):
    """What the table shows, as a CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["tokens", "setting", "decode_tokens_per_second", "times_stock_f16", "p50_ms", "prefill_tokens_per_second",
                     "resident_mib"])
    for point in points:
        if point["depth"] > 0:
            values = [point["decode_tokens_per_second"], point["decode_ratio"], point["p50_ms"], point["prefill_tokens_per_second"],
                      point["resident_bytes"] / 2**20]
            writer.writerow([point["depth"], label_of(point)] + [f"{value:.5g}" for value in values])
    return text.getvalue()


def replace_parts(documents, parts):
    """The documents with every part that has a text in its place; a part without a place in any is an error."""
    for name, text in parts.items():
        pattern = re.compile(rf"(<!-- bench:{name} -->\n).*?(<!-- /bench -->)", re.S)
        if not any(pattern.search(document) for document in documents):
            raise SystemExit(f"no document has lines <!-- bench:{name} --> and <!-- /bench -->")
        if text:
            documents = [pattern.sub(lambda m, t=text: f"{m[1]}\n{t}\n\n{m[2]}", document, count=1) for document in documents]
    return documents


def main():
    parser = argparse.ArgumentParser(description="Tables and data of the benchmarks, from what they wrote.")
    parser.add_argument("lines", help="JSON lines of tierkv-bench --grid --json-file")
    parser.add_argument("--model", help="what tierkv bench --json wrote")
    parser.add_argument("--doc", action="append", help="a page with places for tables; may be repeated")
    parser.add_argument("--data", default="docs/build/data/performance.csv")
    parser.add_argument("--model-data", default="docs/build/data/model.csv")
    options = parser.parse_args()
    with open(options.lines, encoding="utf-8") as file:
        results = Results([json.loads(line) for line in file if line.strip()])
    points = []
    if options.model:
        with open(options.model, encoding="utf-8") as file:
            points = json.load(file)
    paths = options.doc or PAGES
    documents = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            documents.append(file.read())
    documents = replace_parts(documents, {
        "machine": machine(results), "targets": targets(results),
        "decode": joined(shapes(results, "decode"), archives(results)), "lengths": lengths(results),
        "prefill": shapes(results, "prefill512"), "encode": encode(results), "model": model(points)})
    written = dict(zip(paths, documents))
    written[options.data] = data(results)
    if points:
        written[options.model_data] = model_data(points)
    for path, text in written.items():
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    print(f"{', '.join(paths)}: {len(results.points)} points in {options.data}")


if __name__ == "__main__":
    main()
