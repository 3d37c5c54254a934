#!/usr/bin/env python3
"""Checks who includes whom, that no file is past 800 lines, and that the map of rooms in docs/build/HACKING.md is the table below.

    tools/check_includes.py [--write-map] [ROOT]

Prints one line per violation, "file:line: what and what is allowed", and exits with 1 when there is any. --write-map brings the map
up to date first.
"""

import os
import re
import sys

# Room -> (what it is, the rooms below it that it may include, beside itself and the public headers). The one table: the map in
# docs/build/HACKING.md is written from it (--write-map), and a room that is not there, or is there without a folder, is an error.
ROOMS = {
    "base": ("16-bit floats, arena, thread pool, checksums, files", ()),
    "calib": ("what calibration knows of a model: RoPE as pairs and angles, statistics, tables and their file", ("base",)),
    "solve": ("calibration's solvers: statistics in, tables out. Eigen is used here and nowhere else", ("base", "calib")),
    "quant": ("codecs: rows of one KV head <-> block bytes, and attention on those bytes. One registry table", ("base", "calib")),
    "learn": ("a model learnt in passing: sums and a sample of the rows that go by, and the tables that come of them",
              ("base", "calib", "solve", "quant")),
    "deep": ("the deep archive: many tokens of all layers as one string of bytes, 20 to 45 times smaller",
             ("base", "calib", "quant")),
    "policy": ("eviction as pure decisions: statistics and a budget in, what stays out. Moves no bytes", ("base",)),
    "config": ("what can be configured, from TOML, JSON and one line. Touches no token", ("base", "quant", "policy")),
    "plan": ("which codec and which tier length: configuration, calibration, thresholds", ("base", "calib", "config", "quant")),
    "attn": ("attention over block views: scores, online softmax, merge", ("base", "quant")),
    "cuda": ("attention on a CUDA device: descriptors of a launch and their scalar twin, the kernels, a mirror of sealed blocks",
             ("base", "calib", "quant", "attn")),
    "store": ("sealed blocks: headers and bytes apart, who holds them, where they are: memory, packed, a file. Knows no codec",
              ("base",)),
    "tiers": ("the tokens of one sequence: hot tail, blocks, graduation, demotion, eviction, views",
              ("base", "quant", "store", "plan", "attn")),
    "snapshot": ("sequences to bytes and back, plain and packed",
                 ("base", "calib", "quant", "store", "deep", "policy", "plan", "attn", "tiers")),
    "cache": ("the conductor: append, attend, evict, park, save",
              ("base", "calib", "quant", "store", "deep", "learn", "policy", "config", "plan", "attn", "tiers", "snapshot")),
    "capi": ("the C API (tierkv/c.h) on top of it: handles, and the wall no exception passes",
             ("base", "quant", "policy", "config", "cache")),
    "llama": ("the host for unmodified libllama, and calibration through it", ("base", "calib", "solve", "quant", "learn")),
    "engine": ("models, tokens, samplers, sessions: what the command and a server share, on the public headers and libllama's",
               ()),
}
ALLOWED = {room: set(below) for room, (_, below) in ROOMS.items()}
# Rooms that are too large for one folder: folder -> (what is in it, the folders of the room that it may include beside itself).
# "" is the room's own folder. Tests, and what makes their data, may include all of the room.
FOLDERS = {
    "cuda": {
        "": ("the backend: what a call, a step or a piece of a prompt sends, and in which order",
             ("launch", "plan", "memory", "mass", "prompt", "encode")),
        "launch": ("what a launch reads: plain arrays that the host fills in, and how bytes of blocks are read", ()),
        "plan": ("from views and queries to what a launch reads: ways to read a codec, pieces of equal work", ("launch",)),
        "memory": ("the device as a machine, and the books of its memory: copies of blocks, hot rows, descriptors, staging",
                   ("launch", "plan")),
        "simt": ("the instructions of a device, and a machine that runs kernels on the processor, for tests", ()),
        "decode": ("kernels of attention of few queries, one a path, and the merge", ("launch", "simt")),
        "mass": ("what rows receive: the kernel, and the processor's part", ("launch", "decode")),
        "prompt": ("attention of many queries: the kernels and what is sent for them",
                   ("launch", "plan", "memory", "decode", "simt")),
        "encode": ("blocks coded on a device, to the codec's very bytes, and decoded where they are coded anew",
                   ("launch", "plan", "memory")),
        "runtime": ("all that nvcc compiles: launches, CUDA's memory, streams and graphs. Nothing is decided here",
                    ("", "launch", "plan", "memory", "simt", "decode", "mass", "prompt", "encode")),
    },
}
# Folders outside src/ that live on the public headers, and the rooms they may include beside them.
PUBLIC_ONLY = {"apps": ("engine",), "python": ()}
CODE = (".h", ".hpp", ".cc", ".cpp", ".c", ".cu", ".cuh")
LENGTH_CHECKED = CODE + (".py", ".cmake", ".sh")
CHECKED_FOLDERS = ("include", "src", "apps", "python", "bench", "tests", "fuzz", "tools", "cmake")
MAX_LINES = 800
# The map lies between these lines. A tree without docs/ (the tests of this checker) has no map and need not have every room.
MAP = "docs/build/HACKING.md"
MAP_BEGIN = "<!-- rooms: written by tools/check_includes.py --write-map -->\n"
MAP_END = "<!-- /rooms -->\n"

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
# What the public headers may take from outside: headers of the C and C++ standard libraries, which have no folder.
STANDARD = re.compile(r"^[a-z_0-9]+$|^(assert|errno|float|inttypes|limits|math|stdbool|stddef|stdint|stdio|stdlib|string)\.h$")


def code_without_comments(text):
    """Blanks out /* */ comments and keeps the line numbers; // comments cannot start an #include line."""
    return re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group(0).count("\n"), text, flags=re.S)


def folder_of(path):
    """(top folder, room or None) of a path relative to the root."""
    parts = path.split("/")
    if parts[0] == "src" and len(parts) > 2:
        return "src", parts[1]
    return parts[0], None


def check_include(path, bracket, target):
    """Why `path` may not include `target`, or None."""
    top, room = folder_of(path)
    if ".." in target.split("/"):
        return f'"{target}": paths start at src/ or include/, never with ..'
    first = target.split("/")[0] if "/" in target else None
    public = first == "tierkv"
    ours = public or first in ALLOWED

    if top == "include":
        if public or (bracket == "<" and STANDARD.match(target)):
            return None
        return f"{target}: public headers include only tierkv/ and the standard library"
    if top in PUBLIC_ONLY:
        if first in ALLOWED and first not in PUBLIC_ONLY[top]:
            rooms = "".join(f" and {room}/" for room in PUBLIC_ONLY[top])
            return f"{target}: {top}/ may include public headers{rooms} only (tierkv/...)"
        return None
    if top != "src":
        return None
    if room not in ALLOWED:
        return f"room src/{room} is not in tools/check_includes.py: say there what it may include"
    if bracket == '"' and not ours:
        return f'"{target}": write "room/file.h" for our own headers and <...> for others'
    if public or not ours or first == room or first in ALLOWED[room]:
        return None
    if path.endswith(("_test.cc", "testing.h")) and target.endswith("testing.h"):
        return None  # what makes a test's data may come from any room
    allowed = ", ".join(sorted(ALLOWED[room])) or "no other room"
    return f"{target}: {room} may include {allowed} (and itself and tierkv/)"


def check_folder(path, target):
    """Why `path` may not include `target`, which is in the same room, or None: the folders of a large room."""
    here, there = path.split("/")[1:-1], target.split("/")[:-1]
    folders = FOLDERS.get(here[0]) if path.startswith("src/") else None
    if not folders or there[:1] != here[:1] or path.endswith(("_test.cc", "testing.h")):
        return None
    here, there = "/".join(here[1:]), "/".join(there[1:])
    for folder in (here, there):
        if folder not in folders:
            return f"folder {folder} of src/{path.split('/')[1]} is not in tools/check_includes.py: say there what it may include"
    if here == there or there in folders[here][1]:
        return None
    allowed = ", ".join(sorted(folder or "the room's own" for folder in folders[here][1])) or "no other"
    return f"{target}: folder {here or 'of the room itself'} may include {allowed} of this room (and itself)"


def check_file(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        text = file.read()
    problems = []
    lines = text.count("\n") + (not text.endswith("\n"))
    if lines > MAX_LINES:
        problems.append(f"{path}:{MAX_LINES + 1}: {lines} lines, at most {MAX_LINES} are allowed: split it")
    if path.endswith(CODE):
        for number, line in enumerate(code_without_comments(text).split("\n"), 1):
            match = INCLUDE.match(line)
            problem = match and (check_include(path, match.group(1), match.group(2)) or check_folder(path, match.group(2)))
            if problem:
                problems.append(f"{path}:{number}: {problem}")
    return problems


def source_files(root):
    for top in CHECKED_FOLDERS:
        for folder, subfolders, names in os.walk(os.path.join(root, top)):
            subfolders.sort()
            for name in sorted(names):
                if name.endswith(LENGTH_CHECKED):
                    yield os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")


def map_of_rooms():
    lines = ["| room | what it is | may include |", "|---|---|---|"]
    for room, (what, below) in ROOMS.items():
        lines.append(f"| `src/{room}/` | {what} | {', '.join(below) or 'no other room'} |")
        for folder, (part, inside) in FOLDERS.get(room, {}).items():
            if folder:
                inside = "all" if "" in inside else ", ".join(inside) or "itself"
                lines.append(f"| … `{folder}/` | {part} | of this room: {inside} |")
    return "\n".join(lines) + "\n"


def check_map(root, files, write):
    """Problems of the document and of rooms that are in the table or in the tree alone; `write` mends the document."""
    there = {folder_of(path)[1] for path in files if path.startswith("src/")} - {None}
    problems = [f"src/{room}: a room in tools/check_includes.py without a folder" for room in ROOMS if room not in there]
    problems += [f"src/{room}: a folder that is not in tools/check_includes.py" for room in sorted(there) if room not in ROOMS]
    try:
        with open(os.path.join(root, MAP), encoding="utf-8") as file:
            document = file.read()
    except FileNotFoundError:
        return problems + [f"{MAP}: missing, the map of rooms belongs there"]
    before, begin, rest = document.partition(MAP_BEGIN)
    _, end, after = rest.partition(MAP_END)
    if not begin or not end:
        return problems + [f"{MAP}: has no lines {MAP_BEGIN.strip()} and {MAP_END.strip()}"]
    wanted = before + begin + "\n" + map_of_rooms() + "\n" + end + after
    if document != wanted and write:
        with open(os.path.join(root, MAP), "w", encoding="utf-8") as file:
            file.write(wanted)
    elif document != wanted:
        problems.append(f"{MAP}: the map of rooms is not the table (tools/check_includes.py --write-map mends it)")
    return problems


def main():
    write = "--write-map" in sys.argv[1:]
    arguments = [argument for argument in sys.argv[1:] if argument != "--write-map"]
    root = arguments[0] if arguments else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    files = list(source_files(root))
    if not any(path.startswith("src/") for path in files):
        print(f"{root}: no sources under src/ to check")
        return 1
    problems = [problem for path in files for problem in check_file(root, path)]
    if os.path.isdir(os.path.join(root, "docs")):
        problems += check_map(root, files, write)
    print("\n".join(problems + [f"{len(files)} files checked, {len(problems)} violations"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
