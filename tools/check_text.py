#!/usr/bin/env python3
"""Refuses what no compiler sees: lines of code past 132 columns, conflict markers, and dead links in *.md.

    tools/check_text.py [ROOT]

Columns are characters, not bytes. A link is dead when it names a file or a heading (#anchor) that is not there; the network is not
asked. Looks at the files that git knows or would add, or at every file where there is no git. Prints one line per violation,
"file:line: what", and exits with 1 when there is any.
"""

import os
import re
import subprocess
import sys

COLUMNS = 132
CODE = (".h", ".hpp", ".cc", ".cpp", ".c", ".cu", ".cuh", ".py", ".sh", ".cmake", ".cmake.in")
CODE += ("CMakeLists.txt", "Makefile", ".ci/run")
CONFLICT = re.compile(r"^(<{7} |>{7} |\|{7} |={7}$)")
FENCE = re.compile(r"^ {0,3}(```+|~~~+)")
HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)\s*#*\s*$")
# [text](target), ![text](target), [text](target "title"), and [name]: target
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s+<?([^\s>]+)>?")
ANCHOR = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")
OUTSIDE = re.compile(r"^([a-z][a-z0-9+.-]*:|//)", re.I)


def files_of(root):
    """Paths relative to the root."""
    if os.path.exists(os.path.join(root, ".git")):
        command = ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        try:
            listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            return sorted({path for path in listed.split("\0") if path and os.path.isfile(os.path.join(root, path))})
        except (OSError, subprocess.CalledProcessError):
            pass  # no git, or one that does not trust this folder: every file, then
    found = []
    for folder, subfolders, names in os.walk(root):
        top = folder == root
        subfolders[:] = sorted(s for s in subfolders if s not in (".git", "__pycache__") and not (top and s.startswith("build")))
        found += [os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/") for name in names]
    return sorted(found)


def text_of(path):
    """The text of a file, or None for what is not text."""
    with open(path, "rb") as file:
        data = file.read()
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def prose(text):
    """(number, line) of what is not inside a fenced block."""
    fence = None
    for number, line in enumerate(text.split("\n"), 1):
        match = FENCE.match(line)
        if match and fence is None:
            fence = match.group(1)
        elif match and match.group(1).startswith(fence):
            fence = None
        elif fence is None:
            yield number, line


def slug(heading):
    """The anchor that GitHub gives a heading: its text, small, without punctuation, words joined by dashes."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.replace("`", "")).strip().lower().replace(" ", "-")


def anchors(text):
    """Every anchor of a document; headings of one text are numbered from the second on."""
    found, counts = set(), {}
    for _, line in prose(text):
        found.update(ANCHOR.findall(line))
        match = HEADING.match(line)
        if match:
            name = slug(match.group(1))
            seen = counts.get(name, 0)
            counts[name] = seen + 1
            found.add(f"{name}-{seen}" if seen else name)
    return found


def links(text):
    """(number, target) of every link; what stands in `code` is none."""
    for number, line in prose(text):
        plain = re.sub(r"`[^`]*`", "``", line)
        for target in LINK.findall(plain) + REFERENCE.findall(plain):
            yield number, target


def check_link(root, path, target):
    """Why a link is dead, or None."""
    if OUTSIDE.match(target):
        return None
    file, _, anchor = target.partition("#")
    full = os.path.normpath(os.path.join(root, os.path.dirname(path), file)) if file else os.path.join(root, path)
    if not os.path.exists(full):
        return f"dead link {target}: there is no such file"
    if not os.path.abspath(full).startswith(os.path.abspath(root) + os.sep):
        return f"dead link {target}: it leaves the repository"
    if anchor and full.endswith(".md") and anchor not in anchors(text_of(full) or ""):
        return f"dead link {target}: there is no such heading"
    return None


def check_file(root, path):
    text = text_of(os.path.join(root, path))
    if text is None:
        return []
    problems = []
    for number, line in enumerate(text.split("\n"), 1):
        if CONFLICT.match(line):
            problems.append(f"{path}:{number}: a conflict marker")
        if path.endswith(CODE) and len(line) > COLUMNS:
            problems.append(f"{path}:{number}: {len(line)} columns, at most {COLUMNS} are allowed")
    if path.endswith(".md"):
        dead = ((number, check_link(root, path, target)) for number, target in links(text))
        problems += [f"{path}:{number}: {why}" for number, why in dead if why]
    return problems


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    files = files_of(root)
    if not files:
        print(f"{root}: no files to check")
        return 1
    problems = [problem for path in files for problem in check_file(root, path)]
    print("\n".join(problems + [f"{len(files)} files read, {len(problems)} violations"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
