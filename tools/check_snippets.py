#!/usr/bin/env python3
"""check_snippets.py: the code in the documentation is the text of programs that are built and run.

    check_snippets.py [--write] [ROOT]

In README.md and below docs/, a line "<!-- snippet FILE NAME -->" stands before a fenced block. The block must be the lines of FILE
between the marks [NAME] and [/NAME] (each in a comment on a line of its own), indented to the left; without NAME it is the whole
file. --write puts the text there. Prints one line for each block that differs; exit code 0: none, 1: some, 2: something is missing.
"""

import re
import sys
import textwrap
from pathlib import Path

MARK = re.compile(r"^<!-- snippet (\S+)(?: (\S+))? -->\n```(\w*)\n(.*?)^```$", re.S | re.M)
ANY = re.compile(r"^<!-- snippet ", re.M)
REGION = re.compile(r"^\s*(//|#|/\*) \[/?\w+\]( \*/)?$")


class Missing(Exception):
    pass


def region(text, name, file):
    """The lines between the marks, without marks of others."""
    inside, found, lines = name is None, name is None, []
    for line in text.splitlines():
        if REGION.match(line):
            if name is not None and f"[{name}]" in line:
                inside = found = True
            elif name is not None and f"[/{name}]" in line:
                inside = False
            continue
        if inside:
            lines.append(line)
    if not found or (name is not None and inside):
        raise Missing(f"{file} has no part [{name}]")
    return textwrap.dedent("\n".join(lines)).strip("\n") + "\n"


def check(root, write):
    """Names of the blocks that differed."""
    different = []
    for document in sorted([*root.glob("docs/**/*.md"), root / "README.md"]):
        if not document.exists():
            continue
        text = document.read_text()
        if len(ANY.findall(text)) != len(MARK.findall(text)):
            raise Missing(f"{document.relative_to(root)}: a snippet's mark is not followed by a fenced block")

        def put(match, document=document):
            file, name, language, block = match.groups()
            if not (root / file).exists():
                raise Missing(f"{document.relative_to(root)}: there is no file {file}")
            wanted = region((root / file).read_text(), name, file)
            if block != wanted:
                different.append(f"{document.relative_to(root)}: the block of {file} {name or ''}".rstrip())
            return match.group(0)[: match.start(4) - match.start()] + wanted + "```"

        new = MARK.sub(put, text)
        if write and new != text:
            document.write_text(new)
    return different


def main(arguments):
    write = "--write" in arguments
    rest = [argument for argument in arguments if argument != "--write"]
    try:
        different = check(Path(rest[0] if rest else "."), write)
    except Missing as problem:
        print(f"check_snippets: {problem}", file=sys.stderr)
        return 2
    for name in different:
        print(name, "was brought up to date" if write else "is not the text of the file (tools/check_snippets.py --write mends it)")
    return 1 if different and not write else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
