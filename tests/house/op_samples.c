/**
 * @file op_samples.c
 * Writes docs/data/samples.tsv to stdout: for each operator that has samples its name, their
 * dtypes, "yes" if META runs it, and the sizes of one call. Exit status 1 if a call fails.
 */
// SPDX-License-Identifier: MIT
#include <string.h>

#include "conformance/drive.h"

static void write_sizes(const ts_tensor *t)
{
    char text[64];
    printf("%s", ts_format_sizes(text, sizeof text, ts_sizes(t), ts_ndim(t)));
}

static void write_value(const ts_value *v)
{
    switch (v->tag) {
    case TS_TAG_TENSOR:
        write_sizes(v->t);
        break;
    case TS_TAG_TENSORS:
        printf("[");
        for (uint32_t i = 0; i < v->count; i++) {
            printf("%s", i ? ", " : "");
            write_sizes(v->list[i]);
        }
        printf("]");
        break;
    case TS_TAG_INTS:
        printf("[");
        for (uint32_t i = 0; i < v->count; i++)
            printf("%s%lld", i ? ", " : "", (long long)v->ints[i]);
        printf("]");
        break;
    case TS_TAG_BOOL:
        printf("%s", v->i ? "true" : "false");
        break;
    case TS_TAG_FLOAT:
        printf("%g", v->d);
        break;
    case TS_TAG_DTYPE:
        printf("%s", ts_dtype_name((ts_dtype)v->i));
        break;
    case TS_TAG_NONE:
        printf("none");
        break;
    default:
        printf("%lld", (long long)v->i);
    }
}

/** Writes the sizes of a call's tensors and its other arguments. False if the call fails. */
static bool write_call(ts_case c)
{
    TS_SCOPE;
    ts_made m;
    ts_value rets[TS_MAX_RETS] = {{0}};
    ts_tensor *results[TS_MAX_RETS + TS_MAX_ARGS];
    if (!made_build(&m, &c, NULL))
        return false;
    if (sample_call(&c, &m, rets) != TS_OK) {
        made_free(&m);
        return false;
    }
    bool first = true;
    for (int i = 0; i < m.nargs; i++)
        if (m.args[i].tag != TS_TAG_DEVICE) {
            printf("%s%s ", first ? "" : ", ", c.info->args[i].name);
            write_value(&m.args[i]);
            first = false;
        }
    int n = sample_results(&m, rets, c.info->nrets, results);
    for (int i = 0; i < n; i++) {
        printf("%s", i ? ", " : " -> ");
        write_sizes(results[i]);
    }
    made_free(&m);
    return true;
}

/** Writes an operator's line. False if its call fails. */
static bool write_op(const ts_sample_family *family, int first)
{
    const ts_sample *s = &family->samples[first];
    uint16_t dtypes = 0;
    bool meta = false, ok = true;
    ts_case c;
    for (int i = first; i < family->count; i++)
        if (!strcmp(family->samples[i].op, s->op)) {
            dtypes |= sample_dtypes(&family->samples[i]);
            meta = meta || !family->samples[i].no_meta;
        }
    printf("%s\t", s->op);
    for (int d = 0, any = 0; d < TS_DTYPE_COUNT; d++)
        if (dtypes >> d & 1)
            printf("%s%s", any++ ? " " : "", ts_dtype_name((ts_dtype)d));
    printf("\t%s\t", meta ? "yes" : "no");
    if (sample_case(s, &c)) {
        c.dtype = sample_dtypes(s) >> TS_F32 & 1 ? TS_F32
                                                 : (ts_dtype)__builtin_ctz(sample_dtypes(s));
        c.sweep = 4;
        ok = write_call(c);
    }
    printf("\n");
    return ok;
}

int main(void)
{
    bool ok = true;
    for (int f = 0; f < ts_sample_family_count; f++) {
        const ts_sample_family *family = ts_sample_families[f];
        for (int i = 0; i < family->count; i++) {
            int before = 0;
            while (strcmp(family->samples[before].op, family->samples[i].op))
                before++;
            if (before == i)
                ok &= write_op(family, i);
        }
    }
    return !ok;
}
