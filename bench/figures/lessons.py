# SPDX-License-Identifier: MIT
"""Tables of the lessons, docs/regimes.md, and of the cost of a profile."""
from figures.files import File, numbers, pivot

STUDY = "h100"  # GPU of the lessons: bench/results/study-*-h100.tsv


def study_repeat():
    """Times of repeated operations, and the rate of the compiled function."""
    file = File(f"study-repeat-{STUDY}.tsv")
    rows = []
    for row in file.rows:
        if row["mode"] == "compiled":
            eager = [other["us"] for other in file.rows if other["mode"] == "eager"
                     and (other["op"], other["repeats"]) == (row["op"], row["repeats"])]
            rows.append({**row, "mode": eager[0] if eager else "-"})
    return numbers(file, ("op", "times", "eager, µs", "compiled, µs", "compiled, GFLOP/s",
                          "compiled, GB/s"), rows)


def study_softmax():
    return pivot(f"study-softmax-{STUDY}.tsv", ("width",), "way", "GB_per_s", ("width",))


def study_chains():
    return pivot("study-chains-epyc.tsv", ("function", "elements"), "mode", "us",
                 ("function", "elements"), ("eager", "tiles", "compiled"))


def study_batch():
    return numbers(File(f"study-batch-{STUDY}.tsv"),
                   ("batch", "µs", "time / time of half the batch", "samples/s"))


def study_launch():
    return pivot(f"study-launch-{STUDY}.tsv", ("elements",), "mode", "us_per_op", ("elements",))


def study_streams():
    file = File(f"study-streams-{STUDY}.tsv")
    for row in file.rows:
        row["streams"] = ("graph" if row["mode"] == "graph" else
                          f"{row['streams']} stream{'s' * (row['streams'] != '1')}")
    groups = {}
    for row in file.rows:
        groups.setdefault(row["elements"], {})[row["streams"]] = row["us_per_op"]
    return numbers(file, ("elements", *next(iter(groups.values()))),
                   [dict(enumerate([n, *found.values()])) for n, found in groups.items()])


def study_layers():
    return pivot("study-layers-epyc.tsv", ("elements",), "stations", "ns", ("elements",))


def study_shapes():
    return numbers(File(f"study-shapes-{STUDY}.tsv"), (
        "M", "N", "K", "layout", "direct, µs", "TFLOP/s", "padded, µs", "TFLOP/s, padded"))


def study_convolution():
    """Stages of a convolution's kernels: a row per layer and stage."""
    file, lines = File(f"study-convolution-{STUDY}.tsv"), {}
    stages = {"naive": "naive", "naive, split": "naive, split", "matrix": "matrix of windows",
              "mma": "implicit, mma", "own": "implicit, TMA and wgmma", "cudnn": "cuDNN"}
    layers = list(dict.fromkeys(row["layer"] for row in file.rows))
    for layer in layers:
        for stage, name in stages.items():
            cells = [f"`{layer}`", name]
            for result in ("y", "weight"):
                found = [(f"{float(row['us']):,.0f}", row["tflops"]) for row in file.rows
                         if (row["layer"], row["stage"], row["result"]) == (layer, stage, result)]
                cells += found[0] if found else ("-", "-")
            lines[layer, stage] = dict(enumerate(cells))
    return numbers(file, ("layer", "stage", "y, µs", "TFLOP/s", "gradient of the weight, µs",
                          "TFLOP/s"), list(lines.values()))


def study_precision():
    return numbers(File(f"study-precision-{STUDY}.tsv"),
                   ("op", "dtype", "µs", "rate", "unit", "relative error"))


def study_classes():
    """Shares of FLOPs and of time, of three profiles."""
    names = {("train_gpt", "epyc"): "`train_gpt`, CPU", ("train_gpt", STUDY): "`train_gpt`, GPU",
             ("gpt2", STUDY): "GPT-2 124M, GPU"}
    files = {machine: File(f"study-classes-{machine}.tsv") for machine in ("epyc", STUDY)}
    classes = list(dict.fromkeys(row["class"] for file in files.values() for row in file.rows))
    classes.sort(key=lambda name: name in ("idle device", "calls, program", "unattributed"))
    rows = []
    for name in classes:
        cells = [name]
        for program, machine in names:
            found = [row for row in files[machine].rows
                     if (row["program"], row["class"]) == (program, name)]
            cells += [found[0]["flops_percent"], found[0]["time_percent"]] if found else ["-", "-"]
        rows.append(dict(enumerate(cells)))
    titles = [text for name in names.values() for text in (f"{name}: FLOPs, %", "time, %")]
    return numbers(files[STUDY], ("class", *titles), rows)


def study_try():
    return numbers(File(f"study-try-{STUDY}.tsv"), (
        "model", "knob", "from", "to", "before, ms", "after, ms", "predicted, %", "measured, %",
        "noise, %", "measured / predicted"))


def study_regimes():
    files = {"CPU": File("study-regimes-epyc.tsv"), "GPU": File(f"study-regimes-{STUDY}.tsv")}
    rows = [{"machine": name, **row} for name, file in files.items() for row in file.rows]
    return numbers(files["GPU"],
                   ("on", "program", "expected", "verdict", "its share, %"), rows)


def study_kernels():
    """Times of calls by three profilers."""
    titles = {"call": "call", "ours_us": "profile, µs", "torch_profiler_us": "torch.profiler, µs",
              "ncu_us": "ncu, µs", "over_torch": "profile / torch.profiler",
              "over_ncu": "profile / ncu"}
    file = File(f"study-kernels-{STUDY}.tsv")
    return numbers(file, tuple(titles.values()),
                   [{name: row[name] for name in titles} for row in file.rows])


def profile_cost():
    """What a profile adds to a call."""
    file = File("profile-cost-epyc.tsv")
    states = (("the call itself, without timers or profile", "add_1"), ("off", "timers_off"),
              ("timers", "timers_on_per_op"), ("profile", "profile_on_per_op"),
              ("profile with a trace", "trace_on_per_op"))
    return numbers(file, ("state", "row of `bench_dispatch`", "ns"),
                   [dict(enumerate((state, f"`{case}`", file.find(case=case)["value"])))
                    for state, case in states])


def study_cost():
    rows = {}  # each model's run also times the call; the first one counts
    for name, machine in (("CPU", "epyc"), ("GPU", STUDY)):
        for row in File(f"study-cost-{machine}.tsv").rows:
            rows.setdefault((name, row["what"], row["state"]), {"machine": name, **row})
    return numbers(File(f"study-cost-{STUDY}.tsv"),
                   ("on", "call", "profile", "shortest, µs", "median, µs", "/ before"),
                   list(rows.values()))
