# SPDX-License-Identifier: MIT
"""Sphinx's configuration. tools/make-site collects the pages in one folder and runs Sphinx."""
import pathlib
import re

from docutils import nodes
from sphinx.util.nodes import make_refnode

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

project = "Tessera"
copyright = "the Tessera authors"  # pylint: disable=redefined-builtin
version = release = re.search(r"version: '(.*?)'", (ROOT / "meson.build").read_text("utf-8"))[1]
extensions = ["myst_parser"]
myst_heading_anchors = 4
highlight_language = "none"
nitpicky = True
# Types and functions of the C library, which is documented elsewhere.
nitpick_ignore = [("c:identifier", name) for name in (
    "size_t", "int64_t", "uint64_t", "int32_t", "uint32_t", "uint16_t", "int16_t", "uint8_t",
    "int8_t", "FILE", "sig_atomic_t", "va_list", "uintptr_t")]
html_theme = "furo"
html_title = f"Tessera {version}"
html_static_path = [str(pathlib.Path(__file__).parent / "static")]
html_css_files = ["site.css"]
smartquotes = False
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
c_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

CODE_IN_C = re.compile(r"\bts_|\bTS_|#include|;$|^}", re.M)


def guess_languages(_app, doctree):
    """Sets the language of indented blocks, which Markdown cannot name: C if it looks like C."""
    for block in doctree.findall(nodes.literal_block):
        if "language" not in block or block["language"] in ("default", "none"):
            in_c = CODE_IN_C.search(block.astext())
            block["language"], block["force"] = "c" if in_c else "none", True


def link_literals(app, doctree, docname):
    """Names of functions, macros, types and examples in `code` become links; so do calls."""
    env = app.env
    if not hasattr(env, "tessera_names"):
        env.tessera_names = {o[0]: (o[3], o[4], o[0]) for o in env.domains["c"].get_objects()}
        env.tessera_names |= {name: (name, "", name) for name in env.found_docs
                              if name.startswith("examples/")}
    for literal in list(doctree.findall(nodes.literal)):
        name = re.sub(r"\(.*\);?$|;$|\.c$", "", literal.astext())
        parent = literal.parent
        if name not in env.tessera_names:
            continue
        while parent is not None and not isinstance(parent, (nodes.reference, nodes.title)):
            parent = parent.parent
        to, anchor, _ = env.tessera_names[name]
        if parent is None and (to != docname or anchor):
            literal.replace_self(make_refnode(app.builder, docname, to, anchor, literal.deepcopy()))


def name_pages(app, doctree, docname):
    """Replaces the text of a link that is a file name by the title of the page."""
    for link in doctree.findall(nodes.reference):
        target = re.match(r"([\w-]+)\.html", link.get("refuri", ""))
        if target and re.fullmatch(r"(docs/)?[\w-]+\.md", link.astext()) \
                and target[1] in app.env.titles and "/" not in docname:
            link.children = [nodes.inline("", app.env.titles[target[1]].astext())]


def setup(app):
    app.connect("doctree-resolved", name_pages)
    app.connect("doctree-read", guess_languages)
    app.connect("doctree-resolved", link_literals)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
