#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The site's tools: findings of docs/site/links.py in test HTML, and output of api.py and
doc-headers for a header (if Doxygen is installed)."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(ROOT, "docs/site")]
import tally  # noqa: E402
import api  # noqa: E402
import links  # noqa: E402

WORDS = "word " * links.FEWEST_WORDS


class Links(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="tessera-site-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.page("a/other.html", '<p id="here">there</p>')

    def page(self, name, body, words=WORDS):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"<html><article>{words}{body}</article></html>")

    def found(self, body, words=WORDS):
        self.page("index.html", body, words)
        mistakes, pages, _ = links.check(self.folder)
        self.assertEqual(pages, 2)
        return mistakes

    def test_links_with_a_target_pass(self):
        self.assertEqual(self.found('<a href="a/other.html#here">x</a> <a href="#me" id="me">y</a>'
                                    '<a href="https://example.org/">z</a>'), [])

    def test_dead_links_and_anchors_are_found(self):
        self.assertEqual(self.found('<a href="gone.html">x</a> <a href="a/other.html#gone">y</a>'
                                    '<a href="#gone">z</a>'),
                         ["index.html: nothing is at gone.html",
                          "index.html: a/other.html#gone: a/other.html has no such anchor",
                          "index.html: #gone: index.html has no such anchor"])

    def test_missing_and_remote_pictures_are_found(self):
        self.assertEqual(self.found('<img src="gone.svg"><img src="https://example.org/a.png">'),
                         ["index.html: shows https://example.org/a.png of another host",
                          "index.html: nothing is at gone.svg"])

    def test_an_empty_page_is_found(self):
        self.assertEqual(self.found("", "few words"),
                         ["index.html: the page is empty: 2 words"])


HEADER = '''/**
 * @file toy.h
 * Toys, as ts_toy_new() makes them.
 */
/** A toy; private. */
typedef struct ts_toy ts_toy;

/* ---------------------------------------------------------------------------- making ---- */

/** What a toy is made of. */
typedef struct ts_toy_opts {
    int wheels; /**< how many */
    void (*honk)(ts_toy *toy); /**< may be NULL */
} ts_toy_opts;
/**
 * Makes a toy, `opts` may be NULL.
 * @param opts  what it is made of
 * @return owned by the caller
 */
TS_API ts_toy *ts_toy_new(const ts_toy_opts *opts);
/** Its size. */
TS_API int ts_toy_width(const ts_toy *toy);
TS_API int ts_toy_height(const ts_toy *toy);
'''


@unittest.skipUnless(shutil.which("doxygen"), "needs doxygen")
class Pages(unittest.TestCase):
    def test_a_page_has_the_sections_and_contracts_of_its_header(self):
        with tempfile.TemporaryDirectory(prefix="tessera-site-") as folder:
            work = pathlib.Path(folder)
            for name, text in (("ops/generated.h", "/** @file generated.h None. */\n"),
                               ("toy.h", HEADER)):
                path = work / "include/tessera" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, "utf-8")
            # as tools/doc-headers does with the second of two declarations
            toy = work / "include/tessera/toy.h"
            toy.write_text(HEADER.replace("TS_API int ts_toy_height",
                                          "/** @copydoc ts_toy_width */ TS_API int ts_toy_height"))
            with open(os.path.join(ROOT, "Doxyfile"), encoding="utf-8") as file:
                settings = file.read()
            for name, where in (("OUTPUT_DIRECTORY", work), ("INPUT", work / "include"),
                                ("STRIP_FROM_PATH", work / "include")):
                settings += f'{name} = "{where}"\n'
            subprocess.run(["doxygen", "-"], input=settings, text=True, check=True)
            page = api.load(work).page("tessera/toy.h")
        for part in ("Toys, as :c:func:`ts_toy_new() <ts_toy_new>` makes them.",
                     ".. c:type:: ts_toy\n", "Making\n------\n",
                     ".. c:member:: void(*honk)(ts_toy *toy)", "      may be NULL",
                     "   Makes a toy, ``opts`` may be NULL.", "   :param opts: what it is made of",
                     "   :returns: owned by the caller",
                     ".. c:function:: int ts_toy_width(const ts_toy *toy)\n"
                     "                int ts_toy_height(const ts_toy *toy)\n\n   Its size."):
            self.assertIn(part, page)


if __name__ == "__main__":
    tally.main()
