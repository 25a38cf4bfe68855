/** @file describe.c  Public queries about an op. */
// SPDX-License-Identifier: MIT
#include "dispatch/registry.h"
#include "include/tessera/check.h"

#include <math.h>
#include <string.h>

ts_status ts_op_describe(int op, ts_op_description *description)
{
    ts_op_description d;
    TS_TRY(TS_CHECK_POINTERS(description));
    TS_TRY(TS_CHECK_OPTS(&d, description));
    if (op < 0 || op >= ts_op_count())
        return ts_error_set(TS_ERR_REGISTRY,
                            "op_describe: argument 'op': expected a number below %d, got %d",
                            ts_op_count(), op);
    const ts_op_info *info = &ts_ops[op];
    const ts_vjp *vjp = atomic_load_explicit(&ts_tables[op], memory_order_acquire)->vjp;
    d = (ts_op_description){
        .size = description->size,
        .name = info->name,
        .schema = info->schema_text,
        .doc = info->doc,
        .kind = info->kind,
        .gradient = vjp                            ? TS_GRADIENT_RULE
                    : info->flags & TS_OP_BY_PARTS ? TS_GRADIENT_PARTS
                    : info->flags & TS_OP_NODIFF   ? TS_GRADIENT_NEVER
                                                   : TS_GRADIENT_REFUSED,
        .random = info->flags & TS_OP_RANDOM,
        .composite = info->composite != NULL,
        .runtime = info->flags & TS_OP_RUNTIME,
        .nargs = info->schema.nargs,
        .nrets = info->schema.nrets,
    };
    for (int i = 0; i < d.nargs; i++) {
        const ts_param *p = &info->schema.args[i];
        d.args[i] = (ts_op_arg){
            .name = p->name, .kinds = p->kinds, .optional = p->optional, .written = p->written};
    }
    memcpy(description, &d, description->size);
    return TS_OK;
}

ts_slot_rule ts_op_slot(int op, ts_key key)
{
    if (op < 0 || op >= ts_op_count() || key >= TS_KEY_COUNT || ts_key_name(key)[0] == '?')
        return TS_RULE_MISSING;
    return (ts_slot_rule)atomic_load_explicit(&ts_tables[op], memory_order_acquire)->rule[key];
}

ts_status ts_op_cost(const ts_frame *frame, ts_work *work)
{
    TS_TRY(TS_CHECK_POINTERS(frame, work));
    ts_cost cost = ts_ops[frame->op].cost;
    *work = cost ? cost(frame) : (ts_work){NAN, NAN};
    return TS_OK;
}
