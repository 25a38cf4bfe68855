# SPDX-License-Identifier: MIT
"""Checks built HTML: links and anchors within the site exist, no page is empty, and pages load
nothing from other hosts."""
import html.parser
import os
import urllib.parse

SHOWN = {"img": "src", "script": "src", "link": "href", "source": "src", "iframe": "src"}
FEWEST_WORDS = 25


class Page(html.parser.HTMLParser):
    """Anchors, links and the number of words of a page."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links, self.foreign, self.words = set(), [], [], 0
        self.within = 0  # depth inside of <article>
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        for key in ("id", "name") if tag == "a" else ("id",):
            if attrs.get(key):
                self.anchors.add(attrs[key])
        if tag == "article":
            self.within += 1
        where = attrs.get(SHOWN.get(tag, "href" if tag == "a" else ""))
        if not where or where.startswith(("data:", "mailto:", "javascript:")):
            return
        if urllib.parse.urlsplit(where).scheme or where.startswith("//"):
            if tag != "a" and attrs.get("rel") != "canonical":
                self.foreign.append(where)
        else:
            self.links.append(where)

    def handle_endtag(self, tag):
        self.within -= tag == "article"

    def handle_data(self, data):
        if self.within:
            self.words += len(data.split())


def check(folder):
    """Returns (mistakes, number of pages, number of links)."""
    pages = {}
    for root, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".html"):
                path = os.path.join(root, name)
                with open(path, encoding="utf-8") as file:
                    pages[os.path.relpath(path, folder)] = Page(file.read())
    mistakes, links = [], 0
    for name, page in sorted(pages.items()):
        generated = name in ("search.html", "genindex.html")
        if page.words < FEWEST_WORDS and not generated:
            mistakes.append(f"{name}: the page is empty: {page.words} words")
        mistakes += [f"{name}: shows {where} of another host" for where in page.foreign]
        for where in page.links:
            links += 1
            parts = urllib.parse.urlsplit(where)
            path = urllib.parse.unquote(parts.path)
            target = os.path.normpath(os.path.join(os.path.dirname(name), path)) if path else name
            if not os.path.exists(os.path.join(folder, target)):
                mistakes.append(f"{name}: nothing is at {where}")
            elif parts.fragment and target in pages and \
                    urllib.parse.unquote(parts.fragment) not in pages[target].anchors:
                mistakes.append(f"{name}: {where}: {target} has no such anchor")
    return mistakes, len(pages), links
