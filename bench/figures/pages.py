# SPDX-License-Identifier: MIT
"""Tables of the pages about attention, convolutions, products, compiled functions and calls."""
import re
import sys

from figures.claims import MODELS, attention
from figures.files import File, number, numbers, recorded, speed, table
from peers.sweep import geometric_mean

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)


def rates():
    """Attention by depth, mask and length."""
    sections = []
    for prefix, suffix, columns in (
            ("attention", "", ("ours", "flash", "cudnn")),
            ("attention_backward", "", ("ours", "flash", "cudnn")),
            ("attention_backward", "_deterministic", ("ours", "flash"))):
        name = {"attention": "forward", "attention_backward": "backward"}[prefix]
        rows = []
        for depth, heads in ((64, 32), (128, 16)):
            for mask in ("full", "causal"):
                found = [attention.find(op=f"{prefix}_hd{depth}_{mask}{suffix}",
                                        shape=f"{16384 // n}x{heads}x{n}") for n in LENGTHS]
                rows.append([f"hd{depth}, {mask}"] + [
                    " ".join(row[f"{column}_tflops"] for row in found) for column in columns])
                if "cudnn" in columns:
                    rows[-1].append(" ".join(
                        f"{float(row['cudnn_us']) / float(row['ours_us']):.2f}" for row in found))
        titles = [name + suffix.replace("_", ", "), "Tessera", "PyTorch, flash"]
        if "cudnn" in columns:
            titles += ["PyTorch, cuDNN", "Tessera over cuDNN"]
        sections.append(table(titles, rows))
    return "\n".join(sections)


def decode():
    """Attention of few rows."""
    return numbers(recorded("decode-{}.tsv"), ("B", "H", "G", "rows", "keys", "D", "mma", "split",
                                             "flash", "cuDNN", "floor"))


def products():
    """Products of uneven sizes; a padded time of "(even)" or "direct" says why there is none."""
    file = recorded("products-{}.tsv")
    rows = [{**row, "gain": number(float(row["direct_us"]) / float(row["padded_us"]))
             if row["padded_us"][0].isdigit() else "-"} for row in file.rows]
    return numbers(file, ("M", "N", "K", "layout", "direct", "padded", "PyTorch",
                          "direct / padded"), rows)


def alignment():
    """Rates of products without padding whose dense dim N differs by a few elements."""
    file = File("study-shapes-h100.tsv")
    kinds = {"4096": "multiple of 8", "4100": "multiple of 4", "4098": "multiple of 2",
             "4097": "odd"}
    return numbers(file, ("K, dense in a", "its alignment", "TFLOP/s"), [
        dict(enumerate((k, kind, file.find(M="4096", N="4096", K=k)["direct_tflops"])))
        for k, kind in kinds.items()])


def waves():
    """Products with N = K = 4,096: 16 tiles of 128 x 256 for each 128 rows, 132 tiles a wave."""
    file = recorded("cuda-{}-matmul.tsv")
    rows = []
    for m in (1024, 1152, 1536, 1664, 2048, 2688, 3072, 3968, 4096, 4224, 4352):
        row = file.find(op="matmul_rows", shape=f"4096x4096x{m}")
        tiles = m // 128 * 16
        rows.append(dict(enumerate((
            str(m), str(tiles), f"{tiles / 132:.2f}", row["first"],
            number(float(row["GFLOP"]) / float(row["first"]) * 1e3)))))
    return numbers(file, ("M", "tiles", "waves", "µs", "TFLOP/s"), rows)


FUNCTIONS = {"bias gelu dropout residual": "add bias, gelu, dropout, add residual",
             "add scale cast": "add, scale, cast to bf16", "cos cos": "cos, cos",
             "mul total": "`-sum(abs(x * y))`", "mul top0": "`-amax(abs(x * y), 0)`",
             "mul mean0": "`-mean(abs(x * y), 0)`"}


def function_of(op):
    """Name of a case of the suite compile: of a drawn one, without its words."""
    if not op.startswith("drawn"):
        return FUNCTIONS.get(op, op)
    name, _, words = op.partition(": ")
    calls = [word for word in words.split() if not re.fullmatch(r"x\d", word)]
    slow = [text for word, text in (("sin", "a sine"), ("cos", "a cosine")) if word in calls]
    return f"{name}, {len(calls)} calls" + f" with {' and '.join(slow)}" * bool(slow)


def groups():
    """Fused groups beside torch.compile. The rows are those of the suite compile, or of an older
    file whose functions are named."""
    file = recorded("compile-{}.tsv")
    rows = [row if "function" in row else dict(enumerate((
        function_of(row["op"]), f"{row['shape'].replace('x', ' × ')} {row['dtype']}",
        *(row[column] for column in ("ours_us", "compiled_us", "eager_us", "roof_us")))))
        for row in file.rows if row.get("ours_us") != "-"]
    return numbers(file, ("function", "sizes, dtype", "groups", "torch.compile", "PyTorch, eager",
                          "copy"), rows)


def steps():
    """Training steps: wall time, time of kernels, and host time before the loss is read."""
    file = recorded("steps-{}.tsv")
    sides = ("eager", "graph", "replay", "torch eager", "torch.compile, graphs")
    names = {"small": "the model of `train_gpt`: ", "GPT-2 124M, B 4": "GPT-2 124M: "}
    rows = []
    for model, shape in MODELS.items():
        text = names.get(model, "") + shape
        found = [file.find(model=model, side=side) for side in sides]
        for name, column in ((text, "step_us"), ("its kernels", "kernels_us"),
                             ("the host before the read", "host_us")):
            rows.append([name] + ["–" if row[column] == "-" else f"{float(row[column]) / 1e3:.2f}"
                                  for row in found])
    return numbers(file, ("step", "eager", "graph", "replay", "PyTorch eager",
                          "compiled, CUDA graphs"), [dict(enumerate(row)) for row in rows])


def peaks():
    """Training steps: peak memory of tensors, and times."""
    file = recorded("memory-{}.tsv")
    names = {"eager": "eager", "replay, kept": "kept", "replay": "values computed again",
             "torch.compile": "torch.compile"}
    rows = []
    for side, text in names.items():
        row = file.find(model="GPT-2 124M, B 32", side=side)
        rows.append([text, f"{int(row['peak_mib']):,}", f"{float(row['step_us']) / 1e3:.1f}",
                     f"{float(row['kernels_us']) / 1e3:.1f}"])
    return numbers(file, ("step", "MiB", "step, ms", "its kernels, ms"),
                   [dict(enumerate(row)) for row in rows])


def epilogues():
    """Linear layers with GELU and bias gradients as epilogues."""
    return numbers(recorded("epilogues-{}.tsv"), (
        "layer", "dtype", "linear", "with bias", "linear_gelu: separate", "fused", "fused, saved",
        "linear_backward: separate", "fused", "without bias"))


DIRECTIONS = (("y", "forward"), ("x", "input"), ("weight", "weight"))
LAYERS = (  # of the suite convolution
    ("ResNet-50, 1 × 1", r"64x\S+ \d+k1"), ("ResNet-50, 3 × 3 and 7 × 7", r"64x\S+ \d+k[37]"),
    ("U-Net, 1 × 1", r"16x\S+ \d+k1"), ("U-Net, 3 × 3", r"16x\S+ \d+k3"),
    ("U-Net, 2 × 2 transposed, stride 2", r"16x\S+ transposed"))


def convolutions():
    """Convolutions beside cuDNN, by kind of layer and direction: chosen kernels, own kernels."""
    files, lines = [recorded("convolution-{}.tsv"), recorded("convolution-own-{}.tsv")], []
    for kind, pattern in LAYERS:
        for direction, name in DIRECTIONS:
            line, number_of_rows = [kind, name], 0
            for file in files:
                ratios = [speed(row, "cudnn_us") for row in file.rows
                          if row["direction"] == direction and re.match(pattern, row["layer"])]
                number_of_rows = len(ratios)
                line += [number(geometric_mean(ratios)), number(min(ratios))]
            lines.append(line[:2] + [str(number_of_rows)] + line[2:])
    if sum(int(line[2]) for line in lines) != len(files[1].rows):
        sys.exit(f"figures: {files[1].name}: some rows have no kind")
    return numbers(files[0], ("layers", "direction", "cases", "chosen, geometric mean", "least",
                              "own kernels, geometric mean", "least"),
                   [dict(enumerate(line)) for line in lines])


def drawn_convolutions():
    """Drawn convolutions beside PyTorch, by direction."""
    file, lines = recorded("convolution-drawn-{}.tsv"), []
    for direction, name in DIRECTIONS:
        rows = [row for row in file.rows if row["direction"] == direction]
        least = min(rows, key=lambda row: speed(row, "cudnn_us"))
        lines.append([name, str(len(rows)), number(file.mean(
            lambda row: speed(row, "cudnn_us"), lambda row: row["direction"] == direction)[0]),
            number(speed(least, "cudnn_us")), f"`{least['layer']}`"])
    return numbers(file, ("direction", "cases", "geometric mean", "slowest", "its layer"),
                   [dict(enumerate(line)) for line in lines])


def unet():
    """Training and inference of a U-Net."""
    file = recorded("unet-{}.tsv")
    rows = [[row["batch"], row["work"], row["side"].replace("torch eager", "PyTorch, eager"),
             row["images_per_s"], f"{float(row['kernels_us']) / 1e3:.2f}", row["peak_mib"]]
            for row in file.rows]
    return numbers(file,
                   ("batch", "work", "side", "images/s", "kernels of a step, ms", "peak, MiB"),
                   [dict(enumerate(row)) for row in rows])


def stations():
    """Time of each station of a call, and its work."""
    return numbers(File("tour-epyc.tsv"), ("station", "ns", "work"))
