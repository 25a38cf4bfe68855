#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes calls with drawn arguments: generate.py OUT HEADER...

Writes a caller for each function that the headers declare. It draws each argument by its type, with
a function draw_...() of draw.c or objects.c, fills structs field by field, and makes the call
between begin() and end_...(). A type without such a function is an error, unless SKIPPED gives a
reason why the function is not called."""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from headers import declared, plain_text, structs  # noqa: E402

# Parameter type without const -> function that draws it.
DRAWN = {
    "ts_tensor *": "tensor", "ts_tensor *const *": "tensors", "ts_tensor **": "places",
    "int64_t *": "ints", "double *": "doubles", "int *": "int_place", "ts_scalar *": "scalar_place",
    "int": "int", "int64_t": "int64", "double": "double", "bool": "bool", "size_t": "bytes",
    "void *": "buffer", "ts_scalar": "scalar", "ts_dtype": "dtype", "ts_device": "device",
    "ts_rng_state": "rng_state", "uint64_t": "uint64", "char *": "string", "FILE *": "stream",
    "ts_node *": "node", "ts_step_guard *": "guard", "uint8_t": "int", "uint32_t": "int",
    "ts_autocast_state": "int", "char *const *": "strings", "char **": "words",
    "ts_loader_state": "loader_state", "ts_mask_guard": "mask_guard", "ts_rows": "rows",
    "ts_check_place": "check_place", "ts_keyset": "keyset", "ts_key": "key",
    "ts_backend *": "backend",
    "ts_grad_hook": "grad_hook", "ts_node_pre_hook": "pre_hook", "ts_node_post_hook": "post_hook",
    "ts_recompute_fn": "part", "ts_trace_fn": "part", "ts_module_visit": "visit",
    "ts_layer_report_fn": "report_fn", "ts_log_fn": "log_fn", "ts_kernel": "kernel",
    "ts_parameter_filter": "filter", "ts_forward_list_fn": "forward_list", "char": "int",
    "ts_vjp_rule": "rule", "...": "letters", "ts_tensor ***": "place_list",
}
# Buffers for results of a call, which are not checked.
PLACES = {"ts_batch *", "ts_load_report *", "ts_backend_stats *", "ts_memory_stats *", "ts_key *",
          "ts_device *", "ts_named_number *", "ts_space *", "bool *", "char **", "ts_module **",
          "ts_work *"}
# "FUNCTION PARAMETER" or "PARAMETER" -> function that draws it, if the type is not enough.
BY_NAME = {
    "ts_program_begin argv": "words", "ts_program_begin argc": "argc",
    "ts_open_file fd": "descriptor",
    "ts_from_blob data": "memory", "ts_from_array data": "memory", "ts_copy_from data": "memory",
    "ts_copy_to data": "memory", "ts_from_blob sizes": "few", "ts_from_array sizes": "few",
    "ts_from_blob release": "blob_release", "ts_activation_new function": "activation",
    "ts_replace_file write": "replace_write", "path": "path", "dir": "path",
    "ts_mlp_opts activation": "activation", "ts_module_type forward": "module_forward",
    "ts_forward_hook before": "before_forward",
    "ts_forward_hook after": "after_forward",
    "ts_forward_hook before_list": "before_list", "ts_forward_hook after_list": "after_list",
    "ts_module_type free": "end_of_context", "ts_function forward": "forward",
    "ts_function backward": "backward", "release": "end_of_context",
    "ts_c_locale_leave previous": "locale", "ts_progress_opts clock": "clock",
    "ts_op_opts reserve": "reserve", "ts_op_opts cost": "cost", "ts_prof_opts ready": "ready",
}
# Objects and calls in flight.
OBJECTS = {
    "ts_module *": "MODULE", "ts_optimizer *": "OPTIMIZER", "ts_grad_scaler *": "SCALER",
    "ts_loader *": "LOADER", "ts_dataset *": "DATASET", "ts_ema *": "EMA", "ts_npz *": "NPZ",
    "ts_csv *": "CSV", "ts_chart *": "CHART",
    "ts_progress *": "PROGRESS", "ts_run *": "RUN", "ts_safetensors *": "SAFETENSORS",
    "ts_checkpoint *": "CHECKPOINT", "ts_graph *": "GRAPH", "ts_compiled *": "COMPILED",
    "ts_named_tensors *": "LIST", "ts_profile *": "PROFILE",
    "ts_hook *": "HOOK", "ts_registration *": "REGISTRATION", "ts_stream *": "STREAM",
    "ts_event *": "EVENT", "ts_scope *": "SCOPE", "ts_autocast_region *": "REGION",
    "ts_frame *": "FRAME", "ts_vjp_call *": "RULE_CALL", "ts_function_call *": "FUNCTION_CALL",
}
IN_FLIGHT = {"FRAME", "RULE_CALL", "FUNCTION_CALL"}
# "FUNCTION PARAMETER" -> kind of an object that the call takes over or frees; ENDS: endings of
# functions that do so with any parameter.
GIVEN = {"ts_module_add child": "MODULE", "ts_sequential_add child": "MODULE",
         "ts_release t": "KEPT", "ts_adopt t": "KEPT", "ts_node_release node": "KEPT_NODE"}
ENDS = ("_free", "_close")
# Functions that create objects for the caller; other functions return borrowed objects.
MAKES = {"ts_retain": "KEPT", "ts_node_retain": "KEPT_NODE", "ts_c_locale_enter": "LOCALE"}
LENDS = {"ts_module_child", "ts_checkpoint_section_of"}
# Functions for which NULL is a valid result, or that return a NULL argument.
NULL_IS_ANSWER = {"ts_node_leaf", "ts_keep", "ts_adopt", "ts_rule_reduce_to", "ts_rule_grad"}
# Functions that change the process, or the thread beyond its scopes: called in a separate process.
WORLD = {
    "ts_set_default_device", "ts_anomaly_enable", "ts_set_deterministic", "ts_timers_enable",
    "ts_timers_reset", "ts_log_set_callback", "ts_set_num_threads", "ts_layers_report_to",
    "ts_nan_finder", "ts_work_counter", "ts_shape_logger", "ts_determinism_checker",
    "ts_layer_enable_all",
    "ts_key_prefer_fallback", "ts_unregister", "ts_backend_load", "ts_backend_open",
    "ts_device_open", "ts_memory_reset_peak", "ts_device_memory_reset_peak", "ts_stream_use",
    "ts_autocast_register", "ts_prof_start", "ts_prof_stop", "ts_prof_step", "ts_prof_enter",
    "ts_prof_leave",
}
# Functions that change modes of the thread, which the end of a scope puts back.
MODES = re.compile("ts_(mask_p|grad_p|autocast_(e|open)|layer_enable|scope_|nan_|work_|shape_l|"
                   "determ)")
# Functions whose region is open after an error too, as the header says.
OPENS = {"ts_autocast_open"}
# Functions whose caller supplies the text of the error record.
OWN_TEXT = {"ts_error_set", "ts_error_set_hint", "ts_error_memory", "ts_error_within",
            "ts_kernel_error", "ts_status_of_pointer",
            "ts_open_file", "ts_replace_file", "ts_parse_int", "ts_function_apply",
            "ts_program_begin"}
# Functions, besides operators, that only read their tensors, which other threads may use meanwhile.
READS = {
    "ts_ndim", "ts_size", "ts_sizes", "ts_strides", "ts_numel", "ts_dtype_of", "ts_device_of",
    "ts_is_contiguous", "ts_version", "ts_data", "ts_requires_grad", "ts_is_leaf", "ts_keys_of",
    "ts_grad_node", "ts_node_name", "ts_node_inputs", "ts_node_outputs", "ts_node_next",
    "ts_node_leaf", "ts_node_retain", "ts_node_describe", "ts_autograd_write", "ts_backward",
    "ts_backward_ex", "ts_grad_of", "ts_recompute", "ts_recompute_ex", "ts_trace",
    "ts_safetensors_save", "ts_npy_save", "ts_npz_save", "ts_png_save",
}
# Operators that write arguments: the running statistics.
WRITE = {"ts_batch_norm", "ts_batch_norm_relu"}
CAST = {"uint8_t", "uint32_t", "ts_autocast_state", "const ts_tensor *const *"}
# "STRUCT FIELD" -> length, for fields that are arrays; most of their numbers are valid.
ARRAYS = {f"ts_conv_opts {field}": 3
          for field in ("stride", "padding", "dilation", "output_padding")}
ARRAYS |= {f"ts_pool_opts {field}": 3 for field in ("kernel", "stride", "padding", "dilation")}
ARRAYS |= {f"ts_interpolate_opts {field}": 3 for field in ("sizes", "scale_factor")}

# Functions that are not called with drawn arguments, with the reason.
SKIPPED = {
    "ts_tensor_dataset_free": "a loader may use the dataset, as its header says",
    "ts_call_boxed": "misuse.c calls it, from the table of operators",
    "ts_call_for": "odd_kernel() in objects.c calls it, with the arguments of a frame",
    "ts_redispatch_new": "odd_kernel() in objects.c calls it, with the arguments of a frame",
    "ts_operand_number": "odd_kernel() calls it, for an operand of a space",
    "ts_scratch_give": "cannot detect an address that ts_scratch_take() did not return",
    "ts_scratch_take": "misuse.c calls it, and gives the memory back",
    "ts_scalar_store": "reads a value that the dispatcher checked; it has no error",
    "ts_check_null": "needs the text of names that the macros of check.h build",
    "ts_check_tensors": "needs the text of names that TS_CHECK_TENSORS builds",
    "ts_check_other_opts": "needs the sizes that TS_CHECK_OPTS computes",
    "ts_kernel_attention": "reads only frames of attention, as its header says",
    "ts_kernel_convolution": "reads only frames of convolution",
    "ts_kernel_resampling": "reads only frames of pooling and resizing",
    "ts_kernel_windows": "reads only frames of convolution",
    "ts_kernel_window_forms": "reads only frames of convolution",
    "ts_prof_calibrate": "measures for seconds; tests/profile/ calls it",
    "ts_prof_calibrate_device": "measures for seconds; tests/profile/ calls it",
    "ts_profile_take": "measures for seconds; tests/profile/ calls it",
    "ts_prof_try": "measures for seconds; tests/profile/ calls it",
    "ts_kernel_data": "reads a tensor that the dispatcher checked; it has no error",
}


def enums(headers):
    text = "".join(map(plain_text, headers))
    return set(re.findall(r"typedef enum (ts_\w+) \{", text)) - {"ts_dtype"}


class Callers:
    def __init__(self, headers):
        self.headers = headers
        self.shapes = structs(headers)
        self.enums = enums(headers)

    def value(self, owner, kind, name):
        """The C expression that draws a parameter or a field; None if no function draws it."""
        plain = kind.removeprefix("const ")
        for key in (f"{owner} {name}", name):
            if key in BY_NAME and (key != name or "*" in kind or kind == "ts_fn"):
                return f'draw_{BY_NAME[key]}("{name}")'
        if kind == "const char *" and owner.startswith("ts_check_"):
            return f'draw_letters("{name}")'  # text of the macros of check.h
        if f"{owner} {name}" in GIVEN:
            return f'give_object({GIVEN[f"{owner} {name}"]}, "{name}")'
        if (owner, name) == ("ts_scope_enter", "scope"):
            return f'draw_scope("{name}")'  # TS_SCOPE gives the address of its own
        if plain in OBJECTS:
            ends = owner.endswith(ENDS) and owner != "ts_named_tensors_free"
            give = ends and OBJECTS[plain] in {"MODULE", "OPTIMIZER", "SCALER", "LOADER", "CSV",
                                               "CHART", "PROGRESS", "RUN", "SAFETENSORS",
                                               "CHECKPOINT", "GRAPH", "STREAM", "EVENT", "PROFILE",
                                               "EMA", "NPZ"}
            if kind == "ts_named_tensors *" and owner != "ts_named_tensors_free":
                return f'new_object(LIST, "{name}")'  # another list's memory would leak
            return f'{"give" if give else "draw"}_object({OBJECTS[plain]}, "{name}")'
        if plain in PLACES:
            return f'draw_buffer("{name}")'
        if plain.endswith(" **") and plain[:-1] in OBJECTS:
            return f'draw_object_place({OBJECTS[plain[:-1]]}, "{name}")'
        if kind == "char *":
            return f'draw_buffer("{name}")'
        if plain in DRAWN:
            return f'draw_{DRAWN[plain]}("{name}")'
        if plain in self.enums:
            return f'({plain})draw_enum("{name}")'
        return None

    def struct(self, function, i, plain, name, is_list):
        """Lines that draw a struct field by field, and the expression that gives it."""
        fields = self.shapes[plain]
        sized = fields[0][1] in ("size", "struct_size")
        lines = [f"static _Thread_local {plain} a{i}_spare;",
                 f"{plain} *a{i}_struct = arena(sizeof *a{i}_struct);",
                 f"a{i}_struct = a{i}_struct ? a{i}_struct : &a{i}_spare;"]
        for kind, field in fields[1:] if sized else fields:
            if field == "stop" or (plain, field) == ("ts_op_description", "args"):
                continue
            value = self.value(plain, kind, field)
            if value is None:
                sys.exit(f"generate.py: {function}: nothing draws '{kind}' of {plain}.{field}")
            if f"{plain} {field}" in ARRAYS:
                for k in range(ARRAYS[f"{plain} {field}"]):
                    lines.append(f"a{i}_struct->{field}[{k}] = one_in(4) ? {value} : {k == 0:d};")
            elif field.startswith("saves_for"):
                lines.append(f"a{i}_struct->{field}[0] = (uint32_t){value};")
            elif is_count(kind, field):
                lines.append(f"a{i}_struct->{field} = one_in(4) ? ({kind}){value} : 2;")
            else:
                cast = "(uint32_t)" if kind == "uint32_t" else ""
                lines.append(f"a{i}_struct->{field} = {cast}{value};")
        draws = "draw_structs" if is_list else "draw_sized" if sized else "draw_struct"
        return lines, f'{draws}("{name}", a{i}_struct, sizeof *a{i}_struct)' \
            if draws != "draw_struct" else f'draw_struct("{name}", a{i}_struct)'

    def caller(self, result, function, params):
        """The lines of a call, and the kind of call in flight that it is made in."""
        lines, arguments, needs = [], [], "KINDS"
        counted = [i for i, p in enumerate(params) if is_count(*p) and
                   any(kind.endswith("*") for kind, _ in params[:i])]
        if counted:
            lines.append("draw_count();")
        for i, (kind, name) in enumerate(params):
            plain = kind.removeprefix("const ").removesuffix(" *")
            needs = OBJECTS[plain + " *"] if OBJECTS.get(plain + " *") in IN_FLIGHT else needs
            if name == "format" and params[-1][0] == "...":
                arguments.append('"%.40s"')
                continue
            value = None
            if kind.endswith("*") and plain in self.shapes and plain + " *" not in PLACES and \
                    plain + " *" not in DRAWN and plain + " *" not in OBJECTS:
                is_list = counted and \
                    plain in ("ts_checkpoint_section", "ts_argument")
                more, value = self.struct(function, i, plain, name, is_list)
                lines += more
            elif i in counted:
                value = f'({kind})drawn_count("{name}")'
            else:
                value = self.value(function, kind, name)
            if value is None:
                sys.exit(f"generate.py: {function}: nothing draws '{kind}' of '{name}'")
            cast = f"({kind})" if kind in CAST else ""
            lines.append(f"__auto_type a{i} = {cast}{value};")
            arguments.append(f"a{i}")
        call = f"{function}({', '.join(arguments)})"
        if result == "ts_tensor *" and function not in NULL_IS_ANSWER | set(MAKES):
            end = f"end_tensor({call})"
        elif result == "ts_status":
            end = f"end_status({call})"
        elif function in MAKES:
            end = f"end_object({MAKES[function]}, {call})"
        elif result.removeprefix("const ") in OBJECTS and function not in LENDS and \
                OBJECTS[result.removeprefix("const ")] != "STREAM":
            end = f"end_object({OBJECTS[result.removeprefix('const ')]}, {call})"
        else:
            end = f"(void){call}; end_nothing()"
        lines.append(f'begin("{function}", {flags(function)}); {end};')
        if f"{function} child" in GIVEN:
            child = [name for _, name in params].index("child")
            lines.append(f"if (a0 == a{child})\n        add_object(MODULE, a0);  // not freed")
        return lines, needs


def is_count(kind, name):
    return kind in ("int", "int64_t", "size_t") and \
        re.match(r"(n(dims?|\w*s|\w|metadata)?|m|chunks|count|capacity|argc)$", name) is not None


def reads(header, function):
    """True if a function only reads its tensors."""
    operator = pathlib.Path(header).parent.name == "ops"
    return function in READS or (operator and function not in WRITE
                                 and not function.endswith(("_", "_out")))


def flags(function):
    found = ["MODES"] if MODES.match(function) else []
    found += ["OPENS"] if function in OPENS else []
    found += ["OWN_TEXT"] if function in OWN_TEXT else []
    return " | ".join(found) or "0"


def main():
    out, *headers = sys.argv[1:]
    callers = Callers(headers)
    functions, rows, skipped = [], [], set(SKIPPED) | READS
    for header in headers:
        for result, function, params in declared(header):
            skipped.discard(function)
            if function in SKIPPED:
                continue
            lines, needs = callers.caller(result, function, params)
            number = len(rows)
            functions.append(f"static void call_{number}(void)\n{{\n    " + "\n    ".join(lines)
                             + "\n}")
            world = function in WORLD or "ts_register_" in function and "hook" not in function
            rows.append(f'    {{call_{number}, "{function}", {needs}, {str(world).lower()}, '
                        f'{str(reads(header, function)).lower()}}},')
    if skipped:
        sys.exit("generate.py: no such function: " + ", ".join(sorted(skipped)))
    table = ["static const drawn_call calls[] = {", *rows, "};"]
    pathlib.Path(out).write_text("\n".join(functions + table) + "\n", "utf-8")


if __name__ == "__main__":
    main()
