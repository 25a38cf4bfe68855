# SPDX-License-Identifier: MIT
"""Parses the functions and structs that public headers declare, for generators of tests."""
import pathlib
import re


def plain_text(header):
    """A header without comments."""
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", pathlib.Path(header).read_text("utf-8"), flags=re.S)


def declared(header):
    """(type of the result, name, parameters) of each function of a header."""
    for line in re.findall(r"(?<!define )TS_API\s+(?!extern)([^;]*);", plain_text(header)):
        line = re.sub(r"\s*__attribute__\(\(.*\)\)$", "", " ".join(line.split()))
        result, name, inside = re.match(r"(.*?)\s*\b(ts_\w+)\((.*)\)$", line).groups()
        yield result, name, parameters(inside)


def parameters(text):
    """(type, name) of each parameter; the type of a function pointer is ts_fn."""
    if text == "void":
        return []
    found = []
    for part in re.findall(r"(?:[^,(]|\([^)]*\))+", text):
        part = part.strip()
        pointer = re.search(r"\(\*(\w+)\)", part)
        if pointer:
            found.append(("ts_fn", pointer.group(1)))
        elif part == "...":
            found.append(("...", "..."))
        else:
            kind, name, array = re.match(r"(.*?)(\w+)(\[\w*\])?$", part).groups()
            found.append((kind + "*" if array else kind, name))
    return [(kind.strip(), name) for kind, name in found]


def structs(headers):
    """The structs of headers by name: a list with (type, name) of each field."""
    found = {}
    for header in headers:
        for inside, name in re.findall(r"typedef struct \w+ \{([^}]*)\} (ts_\w+);",
                                       plain_text(header)):
            fields = []
            for field in filter(str.strip, inside.split(";")):
                words = " ".join(field.split())
                pointer = re.match(r".*?\(\*(\w+)\)\(", words)
                if pointer:
                    fields.append(("ts_fn", pointer.group(1)))
                    continue
                kind, names = re.match(r"((?:const )?(?:volatile )?\w+)\s+(.*)$", words).groups()
                for one in names.split(","):
                    stars, plain = re.match(r"([*\s]*(?:const \*)?)\s*(.*)$", one).groups()
                    plain = re.sub(r"\[.*", "", plain)
                    fields.append((f"{kind} {stars.strip()}".strip(), plain))
            found[name] = fields
    return found
