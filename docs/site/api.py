# SPDX-License-Identifier: MIT
"""Pages of the public headers, in reStructuredText, from Doxygen's XML.

A page keeps the order and the sections of its header. Declarations that share a comment become one
entry with several signatures. An XML element that this file does not know is an error.
"""
import pathlib
import re
import xml.etree.ElementTree as tree

BANNER = re.compile(r"^/\* -{3,} (.+?) -+ \*/$")
ROLES = {"function": "c:func", "define": "c:macro", "enum": "c:enum", "enumvalue": "c:enumerator",
         "typedef": "c:type", "struct": "c:struct", "union": "c:union", "variable": "c:var"}
SYMBOLS = {"ndash": "–", "mdash": "—", "zwj": "", "times": "×", "minus": "−", "le": "≤", "ge": "≥"}


class Unknown(Exception):
    """An XML element that this file does not convert."""


def escaped(text):
    return re.sub(r"([\\*`|]|_(?!\w))", r"\\\1", text)


def declaration(element):
    """The C declaration of a member; for a function without its parameters."""
    said = re.sub(r"^(typedef|extern) |\b[\w@]+(::[\w@]+)*::", "", element.findtext("definition"))
    after = element.findtext("argsstring") or ""
    bits = element.findtext("bitfield")
    said += after if after.startswith("[") else ""
    return said.replace("* ", "*").replace(") (", ")(") + (f" : {bits}" if bits else "")


def linked(text):
    """Turns names of pages, such as docs/files.md, into links."""
    return re.sub(r"\bdocs/([\w-]+)\.md\b", r":doc:`/\1`", text)


def indented(lines, by="   "):
    return [by + line if line else "" for line in lines]


class Item:
    """A declaration: its place, its signature in C, its description."""

    def __init__(self, kind, name, line, element):
        self.kind, self.name, self.line, self.element = kind, name, line, element

    def words(self):
        """Text of the description, to find declarations that share one."""
        return "".join("".join(self.element.find(tag).itertext()) for tag in
                       ("briefdescription", "detaileddescription")).strip()


class Header:
    def __init__(self, path, element, text):
        self.path, self.element, self.text = path, element, text
        self.items = []


class Reference:
    """All headers of a folder of Doxygen's XML. targets: kind and name by Doxygen's id."""

    def __init__(self, xml, headers):
        self.targets, self.headers, self.xml = {}, {}, xml
        index = tree.parse(xml / "index.xml").getroot()
        compounds = [tree.parse(xml / f"{c.get('refid')}.xml").getroot().find("compounddef")
                     for c in index if c.get("kind") in ("file", "struct", "union")]
        for compound in compounds:
            if compound.get("kind") == "file":
                path = compound.find("location").get("file")
                self.headers[path] = Header(path, compound, (headers / path).read_text("utf-8"))
                self.targets[compound.get("id")] = ("file", path)
        self.records = {c.get("id"): c for c in compounds if c.get("kind") != "file"}
        for refid, record in self.records.items():
            self.record(refid, record)
        names = {name for kind, name in self.targets.values()}
        for header in self.headers.values():
            for member in header.element.iter("memberdef"):
                self.member(header, member, names)
            header.items.sort(key=lambda item: item.line)
        # A function that generated.h declares too is listed only there, with its operator.
        made = {item.name for item in self.headers["tessera/ops/generated.h"].items}
        for path, header in self.headers.items():
            if not path.endswith("/generated.h"):
                header.items = [item for item in header.items if item.name not in made]

    def record(self, refid, record):
        name = record.findtext("compoundname")
        where = record.find("location")
        self.targets[refid] = (record.get("kind"), name)
        for member in record.iter("memberdef"):
            self.targets[member.get("id")] = ("member", f"{name}.{member.findtext('name')}")
        if "@" not in name:
            self.headers[where.get("file")].items.append(
                Item(record.get("kind"), name, int(where.get("line")), record))

    def member(self, header, member, names):
        kind, name = member.get("kind"), member.findtext("name")
        if kind == "typedef" and name in names:  # of a struct that bears the name itself
            return
        item = Item(kind, name, int(member.find("location").get("line")), member)
        if kind == "define" and not item.words():
            return
        self.targets[member.get("id")] = (kind, name)
        for value in member.findall("enumvalue"):
            self.targets[value.get("id")] = ("enumvalue", value.findtext("name"))
        header.items.append(item)

    # ------------------------------------------------------------------------------ text ----

    def link(self, element):
        kind, name = self.targets.get(element.get("refid"), (None, None))
        text = "".join(element.itertext())
        if kind is None:
            return escaped(text)
        if kind == "file":
            return f":doc:`{escaped(text)} </{page_of(name)}>`"
        if kind == "member":
            return f":c:member:`{text} <{name}>`"
        if kind == "function":
            text = text.removesuffix("()") + "()"
        return f":{ROLES[kind]}:`{text} <{name}>`"

    def inline(self, element):
        parts = [escaped(element.text or "")]
        for child in element:
            if child.tag == "ref":
                said = self.link(child)
            elif child.tag == "computeroutput":
                said = f"``{''.join(child.itertext()).strip()}``"
            elif child.tag in SYMBOLS:
                said = SYMBOLS[child.tag]
            else:
                raise Unknown(f"<{child.tag}> in a sentence")
            before, after = "".join(parts)[-1:], (child.tail or "")[:1]
            if said.endswith("`"):  # a role needs separators around it
                said = ("\\ " if before and before not in " \n([{/\"'-" else "") + said
                said += "\\ " if after and after not in " \n.,;:!?)]}/\"'-" else ""
            parts += [said, escaped(child.tail or "")]
        return linked(re.sub(r"\s+", " ", "".join(parts)).strip())

    def blocks(self, description, skip_fields=False):
        """Lines of a description; fields (parameters, result) come last."""
        lines, fields = [], []
        for para in description if description is not None else ():
            if para.tag != "para":
                raise Unknown(f"<{para.tag}> in a description")
            lines += self.paragraph(para, fields)
        return lines if skip_fields else lines + fields

    def paragraph(self, para, fields):
        lines, plain = [], tree.Element("para")
        plain.text = para.text

        def flush():
            said = self.inline(plain)
            if said:
                lines.extend([said, ""])
            for child in list(plain):
                plain.remove(child)
            plain.text = ""

        for child in para:
            if child.tag in ("verbatim", "programlisting"):
                flush()
                code = "".join(child.itertext()).rstrip().strip("\n").split("\n")
                shift = min(len(line) - len(line.lstrip()) for line in code if line.strip())
                lines += [".. code-block:: c", "   :force:", "",
                          *indented([line[shift:] for line in code]), ""]
                plain.text = child.tail
            elif child.tag == "blockquote":
                flush()
                lines += self.blocks(child)
                plain.text = child.tail
            elif child.tag == "itemizedlist":
                flush()
                for item in child.findall("listitem"):
                    first, *more = "\n".join(self.blocks(item)).strip().split("\n")
                    lines += ["* " + first, *indented(more, "  ")]
                lines.append("")
                plain.text = child.tail
            elif child.tag == "parameterlist":
                for item in child.findall("parameteritem"):
                    said = " ".join(self.blocks(item.find("parameterdescription"))).strip()
                    for name in item.iter("parametername"):
                        fields.append(f":param {name.text}: {said}")
            elif child.tag == "simplesect" and child.get("kind") == "return":
                fields.append(f":returns: {' '.join(self.blocks(child)).strip()}")
            else:
                plain.append(child)
        flush()
        return lines

    def description(self, element):
        """Brief and details, then the fields of both."""
        lines, fields = [], []
        for tag in ("briefdescription", "detaileddescription"):
            for para in element.find(tag):
                lines += self.paragraph(para, fields)
        return lines + fields + [""] * bool(fields)

    # ---------------------------------------------------------------------------- entries ----

    def signature(self, item):
        element = item.element
        if item.kind == "define":
            names = [p.findtext("defname") for p in element.findall("param")]
            return item.name + (f"({', '.join(n or '...' for n in names)})" if names else "")
        if item.kind in ("struct", "union", "enum"):
            return item.name
        said = re.sub(r"^(struct|union|enum) (\w+) \2$", r"\2", declaration(element))
        return said + (element.findtext("argsstring") if item.kind == "function" else "")

    def entry(self, items):
        """One entry for declarations that share a description."""
        first = items[0]
        directive = {"define": "macro", "typedef": "type", "variable": "var"}.get(first.kind,
                                                                                  first.kind)
        head = f".. c:{directive}:: "
        lines = [head + self.signature(first)]
        lines += [" " * len(head) + self.signature(item) for item in items[1:]]
        body = self.description(first.element)
        if first.kind == "enum":
            for value in first.element.findall("enumvalue"):
                body += [f".. c:enumerator:: {value.findtext('name')}", "",
                         *indented(self.description(value))]
        if first.kind in ("struct", "union"):
            body += self.members(first.element, "")
        return lines + [""] + indented(body) + [""]

    def members(self, record, prefix):
        lines = []
        for member in record.iter("memberdef"):
            name, type_ = member.findtext("name"), "".join(member.find("type").itertext())
            inner = re.search(r"::(@\d+)", type_)
            if inner:  # anonymous: its members are those of the record around it
                for other in self.records.values():
                    if other.findtext("compoundname").endswith(inner[1]):
                        lines += self.members(other, prefix + (f"{name}." if name else ""))
                continue
            lines += [f".. c:member:: {declaration(member)}", "",
                      *indented(self.description(member))]
            lines += [""] * (lines[-1] != "")
        return lines

    def entries(self, items):
        """Entries of items in their order."""
        lines, run = [], []
        for item in [*items, None]:
            if run and (item is None or item.kind not in ("function", "typedef")
                        or item.kind != run[0].kind or item.words() != run[0].words()):
                lines += self.entry(run)
                run = []
            if item is not None:
                run.append(item)
        return lines

    def introduction(self, header):
        element = header.element
        lines = self.blocks(element.find("briefdescription"))
        return lines + self.blocks(element.find("detaileddescription"))

    def body(self, header, underline="-"):
        """Sections and entries of a header, in its order."""
        marks = list(sections(header.text))
        lines, items = [], list(header.items)
        for (line, title, words), (end, _, _) in zip(marks, [*marks[1:], (10 ** 9, "", [])]):
            here = [item for item in items if line <= item.line < end]
            if title and (here or words):
                title = title[0].upper() + title[1:]
                lines += [title, underline * len(title), ""]
            for paragraph in words:
                lines += [self.plain(paragraph), ""]
            lines += self.entries(here)
        return lines

    def plain(self, text):
        """Converts text that Doxygen has not read: functions become links, `code` stays code."""
        known = {name for kind, name in self.targets.values() if kind in ("function", "define")}
        parts = re.split(r"(`[^`]+`)|\b(ts_\w+|TS_\w+)(?:\(\))", text)
        parts = [part for i, part in enumerate(parts) if i % 3 == 0 or part]  # one of the two
        for i in range(1, len(parts), 2):
            if parts[i].startswith("`"):
                parts[i] = f"`{parts[i]}`"
            elif parts[i] in known:
                role = "c:func" if parts[i].startswith("ts_") else "c:macro"
                parts[i] = f":{role}:`{parts[i]}() <{parts[i]}>`"
            else:
                parts[i] += "()"
        return linked("".join(p if i % 2 else escaped(p) for i, p in enumerate(parts)))

    def page(self, path):
        header = self.headers[path]
        title = f"``{path}``"
        return "\n".join([title, "=" * len(title), "", *self.introduction(header),
                          *self.body(header)]) + "\n"


def sections(text):
    """(line, title, paragraphs) wherever a banner or an ordinary comment begins a section."""
    lines = text.split("\n")
    yield 0, "", []
    number = 0
    while number < len(lines):
        line, title = lines[number], ""
        banner = BANNER.match(line)
        at = number
        if banner:
            title = banner[1]
            while number + 1 < len(lines) and not lines[number + 1]:
                number += 1
            line = lines[number + 1]
            number += 1
        words = []
        if re.match(r"/\*( |$)", line) and not BANNER.match(line):
            said = []
            while True:
                said.append(re.sub(r"^(/\*| \*/?)", "", lines[number]).replace("*/", "").strip())
                if lines[number].endswith("*/"):
                    break
                number += 1
            words = [" ".join(p.split("\n")) for p in "\n".join(said).strip().split("\n\n")]
        if title or words:
            yield at + 1, title, words
        if not banner or words:
            number += 1


def page_of(path):
    """tessera/nn/module.h -> api/nn/module; operators have a page for each family."""
    stem = path.removeprefix("tessera/").removesuffix(".h")
    if stem.startswith("ops/"):
        family = stem.removeprefix("ops/")
        return {"generated": "operators", "slice": "operators/view"}.get(family,
                                                                         f"operators/{family}")
    return f"api/{stem}"


def load(folder):
    folder = pathlib.Path(folder)
    return Reference(folder / "xml", folder / "include")
