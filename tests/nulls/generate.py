#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes calls with a wrong pointer or count: generate.py ALLOWED OUT HEADER...

For each function that the headers declare: NULL for each pointer, a list of NULL entries, a
negative count, and a wrong size in structs with a size field. All other arguments are valid objects
of nulls.c. A parameter without such an object is an error, so new functions cannot be forgotten.
ALLOWED lists the pointers that may be NULL and the counts that may be negative, one per line:
FUNCTION PARAMETER meaning."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from headers import declared, structs  # noqa: E402

CALLBACKS = {"ts_module_visit": "visit", "ts_grad_hook": "hook_fn", "ts_node_pre_hook": "before_fn",
             "ts_node_post_hook": "after_fn", "ts_recompute_fn": "traced", "ts_trace_fn": "traced",
             "ts_layer_report_fn": "report_fn", "ts_parameter_filter": "filter",
             "ts_forward_list_fn": "forward_list"}
LISTS = {"const char *const *": "missing_names", "ts_tensor *const *": "missing_tensors"}
COUNTS = {"n", "m", "ninputs", "noutputs", "nsections", "ncolumns", "nkeys", "nmetadata", "ndim",
          "ndims", "nparts", "chunks"}
# Wrong values of a struct's size field: 0, no multiple of 8, too large.
SIZES = ["0", "1", "7", "9", "sizeof({}) - 1", "sizeof({}) + 1", "sizeof({}) + 8", "4096",
         "INT64_MAX", "INT64_MAX - 7", "SIZE_MAX", "SIZE_MAX - 7"]
# Objects that the library lends during a callback: the call is made inside one.
IN_FLIGHT = {"ts_function_call *": "IN_FUNCTION", "ts_vjp_call *": "IN_GRADIENT",
             "ts_frame *": "IN_KERNEL"}
# Parameters whose NULL is recorded also by functions that return no status and no pointer.
RECORDED = {"ts_frame *", "ts_vjp_call *", "ts_operand *", "ts_value *", "ts_window_axis *"}
LEAST = {"int": "INT_MIN", "int64_t": "INT64_MIN"}
# Functions that are not called, by the beginning of their names, with the reason.
SKIPPED = {
    "ts_call_boxed": "tests/misuse/", "ts_from_blob": "tests/core/blob.c",
    "ts_scope_": "TS_SCOPE calls them", "ts_noop": "does nothing", "ts_print": "prints",
    "ts_error_memory": "its argument is the text of the record",
}
# Valid arguments by type and name, or by type only, without const.
OBJECTS = {
    "ts_module * child": "give(&child)", "ts_tensor * loss": "loss", "ts_tensor * root": "loss",
    "ts_tensor * output": "loss", "char * path": "path", "char * dir": "path",
    "char * activation": '"relu"', "char *const * keys": "keys", "char * op": '"add"',
    "double p": "0.5", "ts_dtype dtype": "TS_F32", "int nsections": "1", "int m": "1",
    "int i": "0", "int k": "0", "int arg": "0",
    "int noutputs": "1", "int64_t total_steps": "10", "ts_tensor *const * inputs": "pair",
    "ts_fn function": "ts_relu", "char * text": "text", "char * buffer": "text",
    "char * function": '"f"', "int flags": "0", "void ** previous": "NULL",
    "char ** argv": "words",
    "ts_fn write": "print_nothing", "ts_fn step": "do_nothing",
    "char * format": '"%d"', "double high": "2", "char * json_text": "NULL",
    "ts_tensor * gradient": "TS_NONE", "void * data": "numbers", "int64_t * sizes": "two",
    "int64_t * strides": "two", "int64_t * steps": "two", "int64_t * dims": "two",
    "char * why": "text", "char * schema": '"nulls.op(Tensor a) -> Tensor"',
    "char * above": '"backends"',
    "char * layer": '"CPU"', "ts_tensor *const * tensors": "pair", "ts_tensor ** sum": "places",
    "ts_tensor *** grads": "many",
    "int op": 'ts_op_by_name("add")', "int nargs": "2", "int nrets": "1",
    "ts_tensor *const * list": "pair", "void * list": "pair", "void * copy": "numbers",
    "ts_tensor ** lse": "NULL", "int chunks": "2", "int nparts": "2", "int ndim": "2",
}
TYPES = {
    "ts_module *": "module", "ts_optimizer *": "optimizer", "ts_grad_scaler *": "scaler",
    "ts_loader *": "loader", "ts_dataset *": "&dataset", "ts_ema *": "ema", "ts_npz *": "npz",
    "ts_csv *": "csv", "ts_chart *": "chart",
    "ts_progress *": "progress", "ts_run *": "run_of", "ts_argument *": "NULL",
    "ts_safetensors *": "file",
    "ts_checkpoint *": "checkpoint",
    "ts_tensor *": "x", "ts_tensor *const *": "pair", "ts_tensor **": "places",
    "char *": '"a"', "char *const *": "names", "FILE *": "stream", "double *": "numbers",
    "int64_t *": "&count", "int *": "&number", "ts_batch *": "&batch", "ts_node *": "node",
    "ts_hook *": "hook", "ts_hook **": "&hook", "ts_graph *": "graph",
    "ts_compiled *": "compiled", "ts_profile *": "profile", "ts_work *": "&(ts_work){0}",
    "ts_prof_machine *": "&machine", "ts_profile_shares *": "&shares",
    "ts_graph **": "&traced_graph",
    "ts_module **": "&slot", "ts_named_tensors *": "&list", "ts_named_number *": "&named",
    "ts_load_report *": "&report", "ts_schedule *": "&schedule", "ts_training *": "&training",
    "ts_module_type *": "&type", "ts_forward_hook *": "&forward_hook",
    "ts_checkpoint_section *": "&section", "ts_scalar *": "&scalar",
    "ts_checkpoint **": "&found", "ts_function *": "&function",
    "ts_function_call *": "call", "ts_vjp_call *": "rule_call", "ts_frame *": "frame",
    "ts_vjp_rule": "rule", "ts_vjp_opts *": "NULL", "ts_value *": "&boxed",
    "ts_operand *": "&operand", "ts_window_axis *": "windows", "ts_check_place": "place",
    "char": "'a'", "ts_log_fn": "log_fn", "ts_space *": "&space", "ts_rows": "(ts_rows){0}",
    "uint32_t": "0", "ts_autocast_region *": "&region",
    "ts_registration **": "&handle", "ts_knob *": "knobs",
    "int": "2", "int64_t": "2", "double": "1", "bool": "true", "bool *": "(bool[1]){0}",
    "size_t": "64", "...": "1",
    "ts_device": "TS_DEVICE_CPU", "ts_loader_state": "(ts_loader_state){0, 0}",
    "ts_key *": "&key", "ts_key": "TS_KEY_CPU", "ts_device *": "&device",
    "ts_stream **": "(ts_stream *[1]){0}", "ts_stream *": "NULL",
    "ts_event **": "(ts_event *[1]){0}", "ts_event *": "NULL",
    "ts_memory_stats *": "&(ts_memory_stats){0}",
    "ts_backend_stats *": "&(ts_backend_stats){0}", "ts_backend *": "&backend",
    "ts_op_description *": "&description", "ts_registration *": "handle", "ts_kernel": "kernel",
    "ts_adamw_rule *": "&adamw", "ts_sgd_rule *": "&sgd", "uint8_t": "0", "uint64_t": "1",
    "ts_dtype": "TS_F32", "ts_rng_state": "(ts_rng_state){0, 0}", "ts_scalar": "scalar",
    "ts_keyset": "0",
    "ts_mask_guard": "(ts_mask_guard){0, 0}", "ts_status": "TS_OK",
    "ts_fan": "TS_FAN_IN", "ts_optimizer_kind": "TS_SGD",
}
ENUMS = ("ts_autograd_format", "ts_graph_format", "ts_layer_scope",
         "ts_autocast_policy", "ts_autocast_state", "ts_timers_format", "ts_reduction", "ts_hold",
         "ts_profile_format")
FREED = {"ts_module *": "ts_module_free", "ts_optimizer *": "ts_optimizer_free",
         "ts_grad_scaler *": "ts_grad_scaler_free", "ts_chart *": "ts_chart_free",
         "ts_progress *": "ts_progress_free", "ts_safetensors *": "ts_safetensors_close",
         "ts_csv *": "ts_csv_close", "ts_run *": "ts_run_close",
         "ts_profile *": "ts_profile_free",
         "ts_checkpoint *": "ts_checkpoint_close", "ts_loader *": "ts_loader_close",
         "ts_ema *": "ts_ema_free", "ts_npz *": "ts_npz_close",
         "const ts_dataset *": "ts_tensor_dataset_free"}


def argument(function, kind, name):
    plain = kind.removeprefix("const ")
    if plain in CALLBACKS:
        return CALLBACKS[plain]
    if plain.endswith("_opts *"):
        return "&group" if plain == "ts_group_opts *" else "NULL"
    if plain in ENUMS:
        return f"({plain})0"
    if kind == "const ts_tensor *const *":
        return "(const ts_tensor *const *)pair"
    if plain == "void *":
        return "NULL"
    for table, key in ((OBJECTS, f"{plain} {name}"), (TYPES, plain)):
        if key in table:
            return table[key]
    sys.exit(f"generate.py: {function}: no object for '{kind} {name}'")


def wrong(function, params, allowed, sized):
    """(index, wrong value, expected result) of each wrong call of a function."""
    for i, (kind, name) in enumerate(params):
        plain = kind.removeprefix("const ")
        if kind == "ts_fn" or kind in CALLBACKS or (kind.endswith("*") and kind != "void *"):
            free = (function, name) in allowed
            allowed.pop((function, name), None)
            yield i, "NULL", ("ANYTHING" if free else "RECORDED" if plain in RECORDED else
                              "REFUSED")
        if kind in LISTS:
            yield i, LISTS[kind], "FAILED"
        if plain.removesuffix(" *") in sized and plain.endswith(" *") and \
                not function.endswith("_free"):
            struct = plain.removesuffix(" *")
            for size in SIZES:
                yield (i, f"sized({argument(function, kind, name)}, sizeof({struct}), "
                       f"{size.format(struct)})", "SIZE")
        if name in COUNTS and kind in ("int", "int64_t"):
            expected = "ANYTHING" if allowed.pop((function, name), None) else "COUNT"
            yield i, "-1", expected
            yield i, LEAST[kind], expected


def body(result, function, arguments):
    call = f"{function}({', '.join(arguments)})"
    if result == "ts_status":
        return f"got({call});"
    if result in FREED:
        return f"{result}made = {call}; got_pointer(made); {FREED[result]}(made);"
    if result.endswith("*"):
        return f"got_pointer({call});"
    return f"{call}; got_nothing();"


def main():
    allowed_path, out, *headers = sys.argv[1:]
    allowed, rows, functions = {}, [], []
    for line in pathlib.Path(allowed_path).read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            function, name, meaning = line.split(None, 2)
            allowed[function, name] = meaning
    sized = {name for name, fields in structs(headers).items() if fields[0][1] == "size"}
    for header in headers:
        for result, function, params in declared(header):
            if any(map(function.startswith, SKIPPED)):
                continue
            values = [argument(function, *p) for p in params]
            place = [IN_FLIGHT[plain] for plain in (kind.removeprefix("const ")
                                                    for kind, _ in params) if plain in IN_FLIGHT]
            place = "IN_RULE" if place == ["IN_KERNEL"] and function.startswith("ts_rule_") else \
                place[0] if place else "NOWHERE"
            for i, value, expected in wrong(function, params, allowed, sized):
                arguments = values[:i] + [value] + values[i + 1:]
                if params[i][1] == "format" and params[-1][1] == "...":
                    arguments.pop()  # a NULL format has no further arguments
                number = len(rows)
                functions.append(f"static void call_{number}(void) "
                                 f"{{ {body(result, function, arguments)} }}")
                rows.append(f'    {{call_{number}, "{function}", "{params[i][1]}", "{value}", '
                            f"{expected}, {place}}},")
    if allowed:
        sys.exit("generate.py: no such pointer: " + ", ".join(f"{f} {n}" for f, n in allowed))
    table = ["static const wrong_call calls[] = {", *rows, "};"]
    pathlib.Path(out).write_text("\n".join(functions + table) + "\n", "utf-8")


if __name__ == "__main__":
    main()
