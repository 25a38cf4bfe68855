#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes calls with drawn arguments: generate.py OUT HEADER...

A function for each one that the headers declare: it draws every argument by its type (misuse.c has
a draw_...() for each), makes the call between begin() and end_...(), and fills structs of options
field by field. A type that nothing draws is an error, unless SKIPPED says why its functions are
left to other tests."""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "nulls"))
from generate import declared  # noqa: E402

# Of a parameter's type less const: what draws it.
DRAWN = {
    "ts_tensor *": "tensor", "ts_tensor *const *": "tensors", "ts_tensor **": "places",
    "int64_t *": "ints", "double *": "doubles", "int *": "int_place", "ts_scalar *": "scalar_place",
    "int": "int", "int64_t": "int64", "double": "double", "bool": "bool", "size_t": "bytes",
    "void *": "buffer", "ts_scalar": "scalar", "ts_dtype": "dtype", "ts_device": "device",
    "ts_rng_state": "rng_state", "uint64_t": "uint64", "char *": "string", "FILE *": "stream",
    "ts_node *": "node", "ts_step_guard *": "guard",
}
# Enums that have no draw of their own are small numbers, some of them unknown.
ENUMS = {"ts_reduction", "ts_autograd_format", "ts_timers_format", "ts_status"}
RESULTS = {"ts_tensor *": "tensor", "ts_status": "status"}
NULL_IS_ANSWER = {"ts_node_leaf"}
# Types whose functions misuse.c calls by hand, or tests/nulls/ alone.
LEFT = {"ts_device *", "ts_grad_hook", "ts_hook *", "ts_node_pre_hook", "ts_node_post_hook",
        "const ts_function *", "const ts_function_call *", "ts_function_call *",
        "ts_recompute_fn", "ts_tensor ***"}
# What is not called with drawn arguments, by function.
SKIPPED = {
    "ts_print": "prints",
    "ts_scope_enter": "misuse.c enters and leaves scopes itself", "ts_scope_leave": "the same",
    "ts_retain": "a count that nobody gives up is no mistake of the library",
    "ts_release": "a release too many is one of the program's that nobody can see",
    "ts_drop": "the same", "ts_keep": "the same", "ts_adopt": "the same",
    "ts_from_blob": "tests/core/blob.c", "ts_from_array": "reads as much as the sizes say",
    "ts_set_default_device": "changes the calls that follow",
    "ts_anomaly_enable": "the same", "ts_set_deterministic": "the same",
    "ts_timers_enable": "the same", "ts_error_set": "no check of its own",
    "ts_error_set_hint": "the same", "ts_log_set_callback": "the same",
    "ts_log_write": "the same", "ts_error_print": "prints", "ts_error_clear": "the oracle's",
    "ts_grad_push": "scenarios push and pop", "ts_mask_push": "the same",
    "ts_mask_pop": "the same", "ts_format_sizes": "reads as many sizes as are said",
    "ts_set_num_threads": "changes the calls that follow", "ts_node_release": "as ts_release",
    "ts_node_retain": "the same", "ts_status_of_pointer": "makes a record of its own",
    "ts_copy_from": "reads and writes as many bytes as are said",
    "ts_check_value": "takes any text",
}


def structs(headers):
    """(type, name) of each field of each struct whose first field is its size."""
    found = {}
    for header in headers:
        text = pathlib.Path(header).read_text("utf-8")
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
        for inside, name in re.findall(r"typedef struct \w+ \{([^}]*)\} (ts_\w+);", text):
            fields = []
            for field in filter(str.strip, inside.split(";")):
                words = " ".join(field.split())
                kind, names = re.match(r"((?:const )?\w+)\s+(.*)$", words).groups()
                for one in names.split(","):
                    stars, plain = re.match(r"([*\s]*(?:const \*)?)\s*(.*)$", one).groups()
                    fields.append((f"{kind} {stars.strip()}".strip(), plain))
            found[name] = fields
    return found


def draw(kind, name, shapes):
    """The expression that draws a parameter or a field; None where nothing does."""
    plain = kind.removeprefix("const ")
    if kind == "char *":
        return f'draw_buffer("{name}")'
    if plain in DRAWN:
        return f'draw_{DRAWN[plain]}("{name}")'
    if plain in ENUMS:
        return f'({plain})draw_enum("{name}")'
    return None


def is_count(kind, name):
    return kind in ("int", "int64_t") and re.match(r"(n(dims?|\w*s|\w)?|chunks)$", name) is not None


def one(result, function, params, shapes):
    """The lines of a call, or the type that nothing draws."""
    lines, arguments, lists = [], [], False
    counted = [i for i, p in enumerate(params) if is_count(*p)]
    if counted and any(kind.endswith("*") for kind, _ in params[:counted[0]]):
        lines.append("draw_count();")
        lists = True
    for i, (kind, name) in enumerate(params):
        plain = kind.removeprefix("const ").removesuffix(" *")
        if kind.endswith("*") and plain in shapes:
            fields = shapes[plain]
            sized = fields[0][1] == "size"
            lines.append(f"{plain} a{i}_room = {{0}};")
            for field_kind, field in fields[1:] if sized else fields:
                value = draw(field_kind, field, shapes)
                if value is None:
                    return None, field_kind
                lines.append(f"a{i}_room.{field} = {value};")
            if sized:
                lines.append(f"const void *a{i} = draw_sized(\"{name}\", &a{i}_room, "
                             f"sizeof a{i}_room);")
            else:
                lines.append(f"const void *a{i} = draw_struct(\"{name}\", &a{i}_room);")
        elif lists and i in counted and any(k.endswith("*") for k, _ in params[:i]):
            lines.append(f"{kind} a{i} = ({kind})drawn_count(\"{name}\");")
        else:
            value = draw(kind, name, shapes)
            if value is None:
                return None, kind
            lines.append(f"{kind} a{i} = {value};")
        arguments.append(f"a{i}")
    call = f"{function}({', '.join(arguments)})"
    if result in RESULTS and function not in NULL_IS_ANSWER:
        lines.append(f"begin(\"{function}\"); end_{RESULTS[result]}({call});")
    elif result == "void":
        lines.append(f"begin(\"{function}\"); {call}; end_nothing();")
    else:
        lines.append(f"begin(\"{function}\"); (void){call}; end_nothing();")
    return lines, None


def main():
    out, *headers = sys.argv[1:]
    shapes = {name: fields for name, fields in structs(headers).items()
              if fields and name.endswith(("_opts", "_rule"))}
    functions, rows = [], []
    for header in headers:
        for result, function, params in declared(header):
            if function in SKIPPED:
                continue
            lines, unknown = one(result, function, params, shapes)
            if unknown:
                if unknown not in LEFT:
                    sys.exit(f"generate.py: {function}: nothing draws '{unknown}'")
                continue
            number = len(rows)
            functions.append(f"static void call_{number}(void)\n{{\n    " + "\n    ".join(lines)
                             + "\n}")
            rows.append(f'    {{call_{number}, "{function}"}},')
    table = ["static const drawn_call calls[] = {", *rows, "};"]
    pathlib.Path(out).write_text("\n".join(functions + table) + "\n", "utf-8")


if __name__ == "__main__":
    main()
