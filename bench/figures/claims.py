# SPDX-License-Identifier: MIT
"""The table of docs/performance.md, and its part in README.md."""
import json
import re

from figures.files import RESULTS, File, number, recorded, speed, table
from peers.cuda_suite import class_of
from peers.sweep import MEGABYTE, geometric_mean, percentile

host, cpu, train = File("host-epyc.tsv"), File("cpu-epyc.tsv"), File("train-epyc.tsv")
images = File("images-epyc.tsv")
cuda, attention = recorded("cuda-{}.tsv"), recorded("cuda-{}-attention.tsv")
LIBTORCH = f"libtorch {host.head['torch'].split('+')[0]}, C++, eager"
TORCH = {file: f"PyTorch {file.head['torch'].split('+')[0]}"
         for file in (cpu, images, cuda, attention)}
TORCH_CPU, TORCH_GPU = f"{TORCH[cpu]}, eager", TORCH[cuda]
CPU, GPU = "EPYC", re.search(r"NVIDIA (\w+)", cuda.head["machine"])[1]


def call(case, claim, peer=None):
    """A row of bench_dispatch."""
    other = (f"{LIBTORCH}: {number(float(host.find(case='libtorch.' + peer)['value']))}" if peer
             else "–")
    return (claim, "ns", number(float(host.find(case=case)["value"])), other, "1 thread, f32", CPU,
            host)


def step(threads):
    row = cpu.find(op="training step", threads=str(threads))
    return (f"training step of a GPT, {threads} thread{'s' * (threads > 1)}", "ms",
            number(float(row["ours_us"]) / 1e3),
            f"{TORCH_CPU}: {number(float(row['torch_us']) / 1e3)}",
            "4 layers, B 16, T 128, C 128, f32", CPU, cpu)


def of_torch(row):
    """Speed of Tessera in a row of a CPU suite."""
    return float(row["torch_us"]) / float(row["ours_us"])


def slowest(claim, threads, chosen):
    rows = [row for row in cpu.rows
            if row["threads"] == str(threads) and row["ours_us"] != "-" and chosen(row)]
    row = min(rows, key=of_torch)
    return (f"{claim}, {threads} thread{'s' * (threads > 1)}", "× the peer's speed",
            number(of_torch(row)), TORCH_CPU, f"{row['op']} {row['shape']}", CPU, cpu)


def ops(threads):
    mean, count = cpu.mean(of_torch,
                           lambda row: row["note"] == "step" and row["threads"] == str(threads))
    return (f"ops of that step, {threads} thread{'s' * (threads > 1)}, geometric mean",
            "× the peer's speed", number(mean), TORCH_CPU, f"{count} cases", CPU, cpu)


def spread(names, file, rows, speed_of, peer, machine):
    """Geometric mean and slowest case of `rows`. `names`: the cases in the plural, one of them,
    what follows both, and the dtype."""
    plural, single, rest, dtype = names
    least = min(rows, key=speed_of)
    case = " ".join(least[column] for column in ("op", "layer", "shape", "direction")
                    if column in least)
    return [(f"{plural}{rest}, geometric mean", "× the peer's speed",
             number(geometric_mean([speed_of(row) for row in rows])), peer,
             f"{len(rows)} cases, {dtype}", machine, file),
            (f"slowest {single}{rest}", "× the peer's speed", number(speed_of(least)), peer, case,
             machine, file)]


def cpu_images(threads):
    """Forward and gradients over the layers of ResNet-50 and of a U-Net: convolutions, pools and
    batch norms."""
    peer = f"{TORCH[images]}, eager"
    count = f", {threads} thread{'s' * (threads > 1)}"
    rows = []
    for kind, plural, single in (("conv", "convolutions", "convolution"), ("pool", "pools", "pool"),
                                 ("batch_norm", "batch norms", "batch norm")):
        found = [row for row in images.rows if row["threads"] == str(threads)
                 and row["ours_us"] != "-" and kind in row["op"].split()[0]]
        rows += spread((plural, single, count, "f32"), images, found, of_torch, peer, CPU)
        if kind == "conv":
            for layout, last in (("contiguous", False), ("channels-last", True)):
                part = [row for row in found if row["shape"].endswith(" last") == last]
                rows += spread((f"convolutions, {layout}", "", count, "f32"), images, part,
                               of_torch, peer, CPU)[:1]
    return rows


def memory():
    bound = cpu.find(op="peak bytes / bound", threads="1")  # `speed` has the quotient
    growth = cpu.find(op="growth of process", threads="1")
    ours, torch = re.search(r"ours ([\d.]+) MiB, torch ([\d.]+) MiB", growth["note"]).groups()
    shape = "the same step"
    return [("peak of the library's memory in that step", "× its bound",
             number(float(bound["speed"])), "–", shape, CPU, cpu),
            ("growth of the process in five such steps", "MiB", number(float(ours)),
             f"{TORCH_CPU}: {number(float(torch))}", shape, CPU, cpu)]


def duration(claim, file, shape):
    """Seconds of a training run, if the file has them."""
    return [(claim, "s", row["value"], "–",
             f"{int(file.find(case='steps')['value']):,} steps{shape}", CPU, file)
            for row in file.rows if row["case"] == "seconds"]


def segmentation():
    file = File("segmentation-epyc.tsv")
    return ("IoU of a U-Net on held-out scenes", "", number(float(file.find(case="iou")["value"])),
            "–", f"{int(file.find(case='steps')['value']):,} steps of 8 scenes, 64 × 64", CPU,
            file)


def loss():
    return ("validation loss of the byte-level GPT", "× the unigram entropy",
            number(float(train.find(case="of_unigram_entropy")["value"])), "–",
            f"{int(train.find(case='steps')['value']):,} steps", CPU, train)


def of_roof(claim, kind, shape):
    """Memory-bound kernels of a class: their rate relative to a device copy."""
    def chosen(row):
        return row["of_roof"] != "-" and class_of(row["op"], row["shape"]) == kind

    def of_copy(column):
        return number(cuda.mean(lambda row: float(row["roof_us"]) / float(row[column]), chosen)[0])
    count = cuda.mean(lambda row: 1, chosen)[1]
    least = min((row for row in cuda.rows if chosen(row)), key=lambda row: float(row["of_roof"]))
    return [(f"{claim}, geometric mean", "× a copy's rate", of_copy("ours_us"),
             f"{TORCH_GPU}, eager: {of_copy('eager_us')}, compiled: {of_copy('compiled_us')}",
             f"{count} cases {shape}", GPU, cuda),
            (f"{claim}, slowest case", "× a copy's rate", number(float(least["of_roof"])),
             "–", f"{least['op']} {least['shape']} {least['dtype']}", GPU, cuda)]


def kernel(claim, shape, scale, unit, /, **wanted):
    row = cuda.find(**wanted)
    peers = [f"{mode}: {number(float(row[column]) / scale)}"
             for mode, column in (("eager", "eager_us"), ("compiled", "compiled_us"))
             if row[column] != "-"]
    return (claim, unit, number(float(row["ours_us"]) / scale), f"{TORCH_GPU}, {', '.join(peers)}",
            shape, GPU, cuda)


def gpu_products():
    """Forward and gradient products of linear layers on a GPU."""
    rows = [row for row in cuda.rows if row["op"].split()[0] in ("linear", "mm")
            and row["ours_us"] != "-"]
    return spread(("products", "product", " by cuBLASLt on both sides", "bf16"), cuda, rows,
                  lambda row: float(row["eager_us"]) / float(row["ours_us"]), f"{TORCH_GPU}, eager",
                  GPU)


def vectors_of(file):
    """The instruction set that the command of a file selects, else the machine's."""
    chosen = re.search(r"TS_ISA=avx(\w+)", file.head["command"])
    return ({"2": "AVX2", "512": "AVX-512"}[chosen[1]] if chosen
            else re.search(r"\((AVX[^)]*)\)", file.head["machine"])[1])


def drawn_calls(name, operators, peer, machine):
    """Distribution of the speeds of drawn calls of a file, by threads and size: geometric mean, 5th
    percentile and slowest call."""
    file, lines = recorded(name), []
    rows = [row for row in file.rows if row["peer_us"] != "-"]
    vectors = vectors_of(file) if machine == CPU else None
    for threads in sorted({row["threads"] for row in rows}):
        of = f", {vectors}, {threads} thread{'s' * (threads > '1')}" if vectors else ""
        for size, large in (("of 1 MB and more", True), ("below 1 MB", False)):
            speeds = [speed(row) for row in rows if row["threads"] == threads
                      and (int(row["bytes"]) >= MEGABYTE) == large]
            lines.append((f"drawn calls of {operators}{of}, geometric mean",
                          "× the peer's speed; 5th percentile "
                          f"{number(percentile(speeds, 0.05))}, slowest {number(min(speeds))}",
                          number(geometric_mean(speeds)),
                          f"PyTorch {file.head['torch'].split('+')[0]}, {peer}",
                          f"{len(speeds)} cases {size}", machine, file))
    return lines


def drawn(machine):
    """Drawn calls on one machine, from each file with some."""
    if machine == GPU:
        return drawn_calls("drawn-{}.tsv", "all operators on CUDA", "eager", GPU)
    files = sorted(path.name for path in RESULTS.glob("sweep-*-epyc.tsv"))
    return [row for name in files for row in drawn_calls(name, "all operators", "eager", CPU)
            ] + drawn_calls("images-drawn-epyc.tsv", "image operators", "eager", CPU)


def drawn_compiled():
    """Drawn calls on a GPU, of which both sides may compile: a table of docs/compile.md."""
    return table(("drawn calls", "speed", "peer"), [
        (shape, f"{value} {unit}", peer) for _, unit, value, peer, shape, _, _ in
        drawn_calls("drawn-compiled-{}.tsv", "all operators", "eager or compiled", GPU)])


def unet_rates():
    """Training and inference of a U-Net: eager, and as a graph."""
    file, rows = recorded("unet-{}.tsv"), []
    torch = f"PyTorch {file.head['torch'].split('+')[0]}"
    for batch in ("16", "1"):
        for work in ("training", "inference"):
            for side, peer in (("eager", "torch eager"), ("step graph", "torch.compile, graphs")):
                ours, theirs = (file.find(batch=batch, work=work, side=name)["images_per_s"]
                                for name in (side, peer))
                rows.append((f"{work} of a U-Net, {side}", "images/s", f"{int(ours):,}",
                             f"{torch}, {peer.replace('torch eager', 'eager')}: {int(theirs):,}",
                             f"batch {batch}, 3x256x256, bf16", GPU, file))
    return rows


MODELS = {"small": "4 layers, B 16, T 128, C 128, f32",  # of the suite steps
          "character": "6 layers, B 64, T 256, C 384, dropout 0.2, bf16",
          "GPT-2 124M, B 4": "12 layers, B 4, T 1024, C 768, bf16"}


def gpt_steps():
    """Training steps of GPTs whose loss is read after each step: eager, and replayed as a graph."""
    file, rows = recorded("steps-{}.tsv"), []
    torch = f"PyTorch {file.head['torch'].split('+')[0]}"
    for model, shape in MODELS.items():
        for side, peer in (("eager", "torch eager"), ("replay", "torch.compile, graphs")):
            ours, theirs = (float(file.find(model=model, side=name)["step_us"]) / 1e3
                            for name in (side, peer))
            name = "GPT-2 124M" if model.startswith("GPT-2") else f"the {model} GPT"
            rows.append((f"training step of {name} and its loss, {side}", "ms", number(ours),
                         f"{torch}, {peer.replace('torch eager', 'eager')}: {number(theirs)}",
                         shape, GPU, file))
    return rows


def is_pass(row, backward):
    return (row["op"].startswith("attention_backward") == backward
            and not row["op"].endswith("deterministic"))


def over_cudnn(backward, what):
    mean, count = attention.mean(lambda row: float(row["cudnn_us"]) / float(row["ours_us"]),
                                 lambda row: is_pass(row, backward))
    least = min((row for row in attention.rows if is_pass(row, backward)),
                key=lambda row: float(row["cudnn_us"]) / float(row["ours_us"]))
    ratio = float(least["cudnn_us"]) / float(least["ours_us"])
    return [(f"attention, {what}, geometric mean", "× the peer's speed", number(mean),
             f"{TORCH[attention]}, cuDNN", f"{count} shapes, bf16", GPU, attention),
            (f"attention, {what}, slowest shape", "× the peer's speed", number(ratio),
             f"{TORCH[attention]}, cuDNN", f"{least['op']} {least['shape']}", GPU, attention)]


def rate(op, claim):
    row = attention.find(op=op, shape="4x16x4096")
    return (claim, "TFLOP/s", row["ours_tflops"],
            f"{TORCH[attention]}, cuDNN: {row['cudnn_tflops']}, flash: {row['flash_tflops']}",
            "4x16x4096, depth 128, causal, bf16", GPU, attention)


class Record(File):
    """gpu.json, which has a hash of the sources instead of a commit."""

    def __init__(self):  # pylint: disable=super-init-not-called
        self.name = "gpu.json"
        self.data = json.loads((RESULTS / self.name).read_text("utf-8"))
        self.head = {"date": self.data["date"], "machine": self.data["device"],
                     "commit": f"sources {self.data['sources'][:12]}",
                     "command": "tools/gpu-suite run"}
        File.read[self.name] = self


def samples():
    """The samples of ts-conformance on a GPU, a row of the table of tested hardware."""
    record = Record()
    found = record.data["samples"]
    total = next(line for line in found["totals"] if line.startswith("all ")).split()[-1]
    return table(("GPU, driver", "date", "sources", "samples", "failed", "verdict"), [(
        record.head["machine"], record.head["date"], record.data["sources"][:12],
        f"{int(total):,}", str(found["failed"]), found["verdict"])])


def claims():
    """Every row of the page's table: claim, unit, figure, peer, shape, machine, file."""
    rows = [
        call("noop_call", "call of an op that does nothing, 3 arguments"),
        call("layer_added", "each further layer of a call"),
        call("add_1", "`ts_add` of one element", "cpp_add"),
        call("add_1_out", "`ts_add_out` of one element", "cpp_add_out"),
        call("add_1_grad", "`ts_add` of one element, recorded", "cpp_add_grad"),
        call("add_1_fwd_bwd", "`ts_add` of one element, forward and backward", "cpp_add_fwd_bwd"),
        call("empty_1", "`ts_empty` of one element", "cpp_empty"),
        call("view_1", "`ts_view` of one element", "cpp_view"),
        call("mm_8", "`ts_mm` of 8x8 and 8x8", "cpp_mm8"),
        call("mlp_step", "training step of an MLP of 16, 32 and 4 units, batch 8", "cpp_mlp_step"),
        call("timers_on_per_op", "timers switched on, each call"),
        step(1), step(2), ops(1), ops(2),
        *(slowest("slowest op of that step", n, lambda row: row["note"] == "step") for n in (1, 2)),
        *(slowest("slowest of all cases", n, lambda row: True) for n in (1, 2)), *memory(),
        *cpu_images(1), *cpu_images(2), *drawn(CPU), loss(),
        *duration("training of the byte-level GPT", train, ", 2 threads"), segmentation(),
        *duration("training of that U-Net", File("segmentation-epyc.tsv"),
                  " of 8 scenes, 64 × 64, 2 threads"),
        *of_roof("pointwise", "pointwise", "of 256 MiB"),
        *of_roof("pointwise, backward", "pointwise, backward", "of 256 MiB"),
        *of_roof("softmax and norms", "rows", "of 256 MiB"),
        *of_roof("softmax and norms, backward", "rows, backward", "of 256 MiB"),
        kernel("cross-entropy with its gradient", "8192x50304, bf16", 1, "µs",
               op="cross_entropy_grad"),
        kernel("AdamW", "124 million parameters, f32", 1, "µs", op="adamw"),
        kernel("`ts_linear`, by cuBLASLt on both sides", "8192x768 to 3072, bf16", 1, "µs",
               op="linear", shape="8192x768 -> 3072"),
        kernel("`ts_linear`, by cuBLASLt on both sides", "8192x768 to 50304, bf16", 1, "µs",
               op="linear", shape="8192x768 -> 50304"),
        *gpu_products(),
        kernel("training step of a small GPT", "4 layers, B 16, T 128, C 128, f32", 1e3, "ms",
               op="training step", shape="small"),
        kernel("training step of GPT-2 124M, autocast bf16", "B 8, T 1024", 1e3, "ms",
               op="training step", shape="GPT-2 124M"),
        *gpt_steps(), *unet_rates(),
        rate("attention_hd128_causal", "attention"),
        rate("attention_backward_hd128_causal", "attention, backward"),
        *over_cudnn(False, "forward"), *over_cudnn(True, "backward"), *drawn(GPU)]
    return rows


FRONT = re.compile("does nothing|further layer|^`ts_add` of one element$|of an MLP|GPT, 2 threads|"
                   "^convolutions, 2 threads|slowest convolution, 2 threads|"
                   "^softmax and norms, geometric|^attention|step of GPT-2 124M, autocast")


def performance():
    columns = ("claim", "figure", "peer", "shape", "command", "commit", "file")
    return table(columns, [
        (claim, f"{value} {unit}".rstrip(), peer, shape, f"`{file.command}`",
         file.head["commit"].partition(" (")[0], f"`{file.name}`")
        for claim, unit, value, peer, shape, _, file in claims()])


def front():
    columns = ("measured", "unit", "Tessera", "peer, mode", "shape", "machine", "command")
    chosen = [row for row in claims() if FRONT.search(row[0])]
    File.read.clear()
    File.read.update((row[6].name, row[6]) for row in chosen)
    return table(columns, [(*row[:6], f"`{row[6].command}`") for row in chosen])
