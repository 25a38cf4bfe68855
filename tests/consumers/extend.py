#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Extends the library as a new user would: with the installed files only.

    extend.py BUILD SOURCE

Installs into an empty folder and copies the examples out of the source tree, so that they cannot
use its files. Builds examples/my_backend as a separate project; compiles the drivers and the
examples of a layer and an op with pkg-config's flags; runs them, so that a small network trains on
the backend."""
import os
import shutil
import subprocess
import sys
import tempfile


def run(command, folder, environment):
    done = subprocess.run(command, cwd=folder, env=environment, text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}")
    return done.stdout


def find(root, name):
    for folder, _, names in os.walk(root):
        if name in names:
            return os.path.join(folder, name)
    sys.exit(f"{name} was not installed")


def main():
    build, source = map(os.path.abspath, sys.argv[1:3])
    with tempfile.TemporaryDirectory(prefix="tessera-consumer-") as folder:
        root, work = os.path.join(folder, "root"), os.path.join(folder, "work")
        plain = dict(os.environ, OPENBLAS_NUM_THREADS="1")
        run(["meson", "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", root], folder,
            plain)
        package = os.path.dirname(find(root, "tessera.pc"))
        library = os.path.dirname(find(root, "libtessera.so"))
        environment = dict(plain, PKG_CONFIG_SYSROOT_DIR=root, PKG_CONFIG_PATH=package,
                           LD_LIBRARY_PATH=library)
        shutil.copytree(os.path.join(source, "examples/my_backend"),
                        os.path.join(work, "my_backend"))
        backend = os.path.join(work, "my_backend")
        run(["meson", "setup", "build"], backend, environment)
        run(["ninja", "-C", "build"], backend, environment)
        flags = run(["pkg-config", "--cflags", "--libs", "tessera"], work, environment).split()
        for name in ["mlp", "my_layer", "my_op"]:
            shutil.copy(os.path.join(source, f"examples/{name}.c"), work)
            run(["cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", f"{name}.c", "-o", name,
                 *flags, "-lm", "-pthread"], work, environment)
        plugin = find(backend, "libmy_backend.so")
        print(run(["./mlp", "--plugin", plugin, "1000"], work, environment))
        print(run(["./my_layer"], work, environment))
        print(run(["./my_op"], work, environment))


if __name__ == "__main__":
    main()
