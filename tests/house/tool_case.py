# SPDX-License-Identifier: MIT
"""The base of the tests of tools/: a temporary folder in which a tool runs."""
import os
import shutil
import subprocess
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = os.path.join(os.path.dirname(os.path.dirname(HERE)), "tools")


def plain_environment(**variables):
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TS_", "MESON", "GIT_"))}
    return {**inherited, **variables}


class ToolCase(unittest.TestCase):
    def setUp(self):
        self.folder = os.path.realpath(tempfile.mkdtemp(prefix="tessera-tools-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def write(self, path, text, mode=0o644):
        whole = os.path.join(self.folder, path)
        os.makedirs(os.path.dirname(whole), exist_ok=True)
        with open(whole, "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        os.chmod(whole, mode)
        return whole

    def text_of(self, path):
        with open(os.path.join(self.folder, path), encoding="utf-8") as file:
            return file.read()

    def run_tool(self, name, *arguments, env=None, command=()):
        done = subprocess.run([*command, os.path.join(TOOLS, name), *arguments], text=True,
                              check=False, cwd=self.folder, env=env or plain_environment(),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        return done.returncode, done.stdout
