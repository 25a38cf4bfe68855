# SPDX-License-Identifier: MIT
"""Pages of the operators: one for each family of ops/ops.def, from its rows, the samples and the
headers."""

GRADIENTS = {"NODIFF": "none", "BY_PARTS": "from the gradients of the operators that it calls"}
AUTOCAST = {"NONE": "runs in the dtypes of its arguments",
            "LOWER": "floating arguments are cast to the region's dtype",
            "F32": "floating arguments are cast to f32",
            "WIDEST": "floating arguments are cast to the widest dtype among them",
            "KEEP": "runs in the dtypes of its arguments, and so do the operators that it calls"}

WORK = {  # ts_cost_...() in ops/, in words
    "product": "2 m n k operations: m n elements of the result, each a sum of k products",
    "addmm": "2 m n k + 3 m n operations: m n elements of the result, each a sum of k products",
    "linear_backward": "2 m n k operations for each requested product of matrices, and m n for the "
                       "gradient of the bias",
    "convolution": "2 operations for each element of the output (input if transposed) and each "
                   "element of its window",
    "convolution_backward": "those of the forward pass for each requested gradient of input and "
                            "weight, and one per element of grad for the bias",
    "gathered": "no operations; only the selected elements of the first argument are read",
    "scaled_dot_product_attention": "2 products over the pairs of a query and a key that it sees",
    "scaled_dot_product_attention_backward": "5 products over the pairs of a query and a key that "
                                             "it sees",
    "adamw": "13 operations per element of the parameters",
    "sgd": "6 operations per element of the parameters",
    "norms": "2 operations per element of the list",
    "scales": "1 operation per element of the list"}

def table(path):
    """Rows of a file of tab separated values, by their first column."""
    with open(path, encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    return {row[0]: row[1:] for row in rows}


def cost(text):
    """The column `cost` of ops.def in words."""
    if text == "MOVE":
        return "each element of arguments and results is read or written once"
    if text == "ALIAS":
        return "none: the result shares the argument's memory"
    kind, value = text.rstrip(")").split("(")
    if kind == "EACH":
        plural = "s" if value != "1" else ""
        return f"{value} operation{plural} per element; each element is read or written once"
    return WORK[value]


def by_backend(dtypes, meta):
    """Dtypes by backend; the samples test the same dtypes on each."""
    said = ", ".join(dtypes)
    without = "none, because sizes depend on values"
    return f"CPU and CUDA: {said}; META: {'the same' if meta else without}"


class Operators:
    def __init__(self, families, reference, data):
        self.families, self.reference = families, reference
        self.samples, self.pytorch = table(data / "samples.tsv"), table(data / "pytorch.tsv")
        self.functions = {item.name: item for header in reference.headers.values()
                          for item in header.items if item.kind == "function"}
        names = {row.name for _, _, rows in families for row in rows}
        for file, known in (("samples.tsv", self.samples), ("pytorch.tsv", self.pytorch)):
            odd = names ^ set(known)
            if odd:
                raise SystemExit(f"docs/data/{file} and ops/ops.def differ in: {', '.join(odd)}")

    def facts(self, row):
        dtypes, meta, sizes = self.samples[row.name]
        pytorch = self.pytorch[row.name][0]
        facts = [
            ("Signature", f"``{row.schema}``"),
            ("Sizes", f"for example ``{sizes.replace('->', '→')}``"),
            ("Dtypes", by_backend(dtypes.split(), meta == "yes")),
            ("Gradient", GRADIENTS.get(row.gradient, "a rule")),
            ("Autocast", AUTOCAST[row.autocast]),
            ("Cost", cost(row.cost)),
            ("PyTorch", "none" if pytorch == "-" else f"``{pytorch}``"),
            ("Functions", self.by_hand(row))]
        return [f":{name}: {said}" for name, said in facts if said] + [""]

    def by_hand(self, row):
        """Links to functions of a row that a header declares by hand; "" for generated ones."""
        if row.functions:
            return ""
        names = [f"ts_{row.name}{form}" for form in ("", "_", "_out", "_ex")]
        links = [f":c:func:`{name}() <{name}>`" for name in names if name in self.functions]
        return ", ".join(links) or "none with its name: other functions and gradient rules call it"

    def summary(self, rows):
        lines = [".. list-table::", "   :header-rows: 1", "   :class: operators", "",
                 "   * - operator", "     - result", "     - gradient", "     - PyTorch"]
        for row in rows:
            pytorch = self.pytorch[row.name][0]
            said = self.reference.plain(row.doc.split("\n")[0])
            gradient = {"NODIFF": "none", "BY_PARTS": "by parts"}.get(row.gradient, "rule")
            lines += [f"   * - :ref:`{row.name} <op-{row.name}>`", f"     - {said}",
                      f"     - {gradient}", f"     - {'' if pytorch == '-' else f'``{pytorch}``'}"]
        return lines + [""]

    def entry(self, row):
        lines = [f".. _op-{row.name}:", "", row.name, "-" * len(row.name), ""]
        if not row.functions or row.functions[0].doc:  # else the first function has this text
            lines += [self.reference.plain(row.doc.split("\n")[0]), ""]
        lines += self.facts(row)
        functions = [self.functions[f"ts_{form.name}"] for form in row.functions]
        return lines + self.reference.entries(functions)

    def page(self, family, words, rows):
        lines = [family, "=" * len(family), ""]
        for paragraph in words.split("\n\n"):
            lines += [self.reference.plain(paragraph.replace("\n", " ")), ""]
        lines += self.summary(rows)
        for row in rows:
            lines += self.entry(row)
        for path, header in self.reference.headers.items():
            stem = path.removeprefix("tessera/ops/").removesuffix(".h")
            if {"slice": "view"}.get(stem, stem) == family and path.startswith("tessera/ops/"):
                title = f"Declared in ``{path}``"
                lines += [title, "-" * len(title), "", *self.reference.introduction(header),
                          *self.reference.body(header, "~")]
        return "\n".join(lines) + "\n"

    def index(self):
        """The page of all families."""
        count = sum(len(rows) for _, _, rows in self.families)
        title = "Operators"
        lines = [title, "=" * len(title), "",
                 f"{count} operators in {len(self.families)} families, from ``ops/ops.def``. A "
                 "page for each family lists its operators, then gives signature, sizes, dtypes, "
                 "gradient, autocast policy, cost and PyTorch's name of each, and the contracts of "
                 "its functions.", "",
                 "A function whose name ends in ``_`` writes to its first argument. One that ends "
                 "in ``_out`` writes to ``out``. ``_scalar`` takes a number. In PyTorch's "
                 "names ``F`` is ``torch.nn.functional``, ``aten`` is ``torch.ops.aten``.", "",
                 "The dtypes are those in which ``ts-conformance`` tests values "
                 "(:doc:`/conformance`). :doc:`/cuda` lists the GPUs on which they ran.", "",
                 ".. list-table::", "   :header-rows: 1", "", "   * - family", "     - operators"]
        for family, _, rows in self.families:
            names = ", ".join(f":ref:`{row.name} <op-{row.name}>`" for row in rows)
            lines += [f"   * - :doc:`operators/{family}`", f"     - {names}"]
        lines += ["", ".. toctree::", "   :hidden:", ""]
        lines += [f"   operators/{family}" for family, _, _ in self.families]
        return "\n".join(lines) + "\n"
