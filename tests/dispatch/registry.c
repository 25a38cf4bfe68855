/** @file registry.c  Ops, kernels and fallbacks: order, precedence, override, publication. */
// SPDX-License-Identifier: MIT
#include "core/testing.h"
#include "tests/dispatch/common.h"

#include <malloc.h>

#include <pthread.h>
#include <stdatomic.h>

static ts_status k0(ts_frame *f) { (void)f; note('0'); return TS_OK; }
static ts_status k1(ts_frame *f) { (void)f; note('1'); return TS_OK; }
static ts_status k2(ts_frame *f) { (void)f; note('2'); return TS_OK; }
static ts_status pass(ts_frame *f) { note('p'); return ts_redispatch(f); }

/** Registers a layer without kernels, unlike the library's layers. */
static ts_key own_layer(void)
{
    ts_key key = TS_KEY_INVALID;
    OK(ts_register_layer("OWN", "AUTOGRAD", &key));
    return key;
}

/** The dump of an op without its first line, which names the op. */
static void dump(const char *op, char *text, size_t size)
{
    FILE *file = tmpfile();
    OK(ts_op_dump(op, file));
    rewind(file);
    char line[512];
    ck_assert_ptr_nonnull(fgets(line, sizeof line, file));
    size_t n = fread(text, 1, size - 1, file);
    text[n] = 0;
    fclose(file);
}

TS_TEST(every_order_of_registration_gives_the_same_table)
{
    char first[4096] = "", text[4096];
    static const int orders[24][4] = {
        {0, 1, 2, 3}, {0, 1, 3, 2}, {0, 2, 1, 3}, {0, 2, 3, 1}, {0, 3, 1, 2}, {0, 3, 2, 1},
        {1, 0, 2, 3}, {1, 0, 3, 2}, {1, 2, 0, 3}, {1, 2, 3, 0}, {1, 3, 0, 2}, {1, 3, 2, 0},
        {2, 0, 1, 3}, {2, 0, 3, 1}, {2, 1, 0, 3}, {2, 1, 3, 0}, {2, 3, 0, 1}, {2, 3, 1, 0},
        {3, 0, 1, 2}, {3, 0, 2, 1}, {3, 1, 0, 2}, {3, 1, 2, 0}, {3, 2, 0, 1}, {3, 2, 1, 0}};
    for (int p = 0; p < 24; p++) {
        char name[24], schema[64];
        snprintf(name, sizeof name, "test.op%d", p);
        snprintf(schema, sizeof schema, "%s(Tensor a) -> ()", name);
        for (int i = 0; i < 4; i++)
            switch (orders[p][i]) {
            case 0: OK(ts_register_op(schema, NULL)); break;
            case 1: OK(ts_register_kernel(name, TS_KEY_CPU, k0, NULL, NULL)); break;
            case 2: OK(ts_register_kernel(name, TS_KEY_CUDA, k1, NULL, NULL)); break;
            default: OK(ts_register_kernel(name, TS_KEY_TRACING, pass, NULL, NULL));
            }
        dump(name, text, sizeof text);
        if (p == 0)
            strcpy(first, text);
        ck_assert_str_eq(text, first);
    }
}

TS_TEST(a_fallback_serves_ops_old_and_new)
{
    ts_tensor *a = one();
    ts_key own = own_layer();
    OK(ts_register_op("test.old(Tensor a) -> ()", NULL));
    OK(ts_register_kernel("test.old", TS_KEY_CPU, k0, NULL, NULL));
    OK(ts_register_fallback(own, pass, NULL));
    OK(ts_register_op("test.new(Tensor a) -> ()", NULL));
    OK(ts_register_kernel("test.new", TS_KEY_CPU, k0, NULL, NULL));
    OK(ts_layer_enable(own, true));
    const char *const names[] = {"test.old", "test.new"};
    for (int i = 0; i < 2; i++) {
        ts_value arg = ts_value_tensor(a);
        ran[0] = 0;
        OK(ts_call_boxed(ts_op_by_name(names[i]), &arg, 1, NULL, 0));
        ck_assert_str_eq(ran, "p0");
    }
}

TS_TEST(a_backend_may_ask_for_composites_undecomposed)
{
    ts_key key;
    OK(ts_register_backend_key("WHOLEOPS", &key));
    ts_tensor *t = with_key_of(key);
    OK(call_noop(t, t)); /* noop is a composite */
    ck_assert_str_eq(ran, "");
    OK(ts_register_fallback(key, k2, NULL));
    OK(call_noop(t, t)); /* a composite wins over a fallback ... */
    ck_assert_str_eq(ran, "");
    OK(ts_key_prefer_fallback(key, true));
    OK(call_noop(t, t)); /* ... unless the backend wants whole ops */
    ck_assert_str_eq(ran, "2");
    OK(ts_register_kernel("noop", key, k1, NULL, NULL));
    OK(call_noop(t, t)); /* its own kernel wins over both */
    ck_assert_str_eq(ran, "1");
}

TS_TEST(a_kernel_written_for_another_schema_is_refused_in_both_orders)
{
    OK(ts_register_op("test.a(Tensor x, Scalar s) -> Tensor", NULL));
    FAILS(TS_ERR_REGISTRY,
          ts_register_kernel("test.a", TS_KEY_CPU, k0, "test.a(Tensor x) -> Tensor", NULL));
    SAYS("written for 1 arguments");
    FAILS(TS_ERR_REGISTRY,
          ts_register_kernel("test.a", TS_KEY_CPU, k0, "test.a(Tensor x, int s) -> Tensor", NULL));
    SAYS("'s'");
    OK(ts_register_kernel("test.a", TS_KEY_CPU, k0, "test.a(Tensor x, Scalar s) -> Tensor", NULL));

    OK(ts_register_kernel("test.b", TS_KEY_CPU, k0, "test.b(Tensor x) -> Tensor", NULL));
    FAILS(TS_ERR_REGISTRY, ts_register_op("test.b(Tensor x, Tensor y) -> Tensor", NULL));
    ck_assert_int_eq(ts_op_by_name("test.b"), -1); /* nothing was half-registered */
    OK(ts_register_op("test.b(Tensor x) -> Tensor", NULL));
}

TS_TEST(a_second_definition_and_a_second_fallback_name_both_sites)
{
    OK(ts_register_op("test.dup(Tensor x) -> ()", NULL));
    FAILS(TS_ERR_REGISTRY, ts_register_op("test.dup(Tensor x) -> ()", NULL));
    SAYS("first at");
    SAYS("again at");
    ts_key own = own_layer();
    OK(ts_register_fallback(own, pass, NULL));
    FAILS(TS_ERR_REGISTRY, ts_register_fallback(own, k1, NULL));
    SAYS("first at");
    SAYS("again at");
}

TS_TEST(the_newest_kernel_wins_and_removal_restores_the_older)
{
    ts_tensor *a = one();
    const ts_kernel kernels[3] = {k0, k1, k2};
    static const int removals[6][3] = {{0,1,2},{0,2,1},{1,0,2},{1,2,0},{2,0,1},{2,1,0}};
    for (int p = 0; p < 6; p++) {
        ts_registration *r[3];
        bool there[3] = {true, true, true};
        for (int i = 0; i < 3; i++)
            OK(ts_register_kernel("noop", TS_KEY_CPU, kernels[i], NULL, &r[i]));
        for (int i = 0; i <= 3; i++) {
            int newest = there[2] ? 2 : there[1] ? 1 : there[0] ? 0 : -1;
            char expected[2] = {newest < 0 ? 0 : (char)('0' + newest), 0};
            OK(call_noop(a, a));
            ck_assert_str_eq(ran, expected);
            if (i < 3) {
                OK(ts_unregister(r[removals[p][i]]));
                there[removals[p][i]] = false;
            }
        }
    }
}

static char lines[4][512];
static int nlines;
static void keep_line(void *payload, const char *topic, const char *line)
{
    (void)payload;
    if (strcmp(topic, "dispatch") == 0 && nlines < 4)
        snprintf(lines[nlines++], sizeof lines[0], "%s", line);
}

TS_TEST(each_override_is_reported_with_the_right_sites)
{
    ts_log_set_callback(keep_line, NULL);
    OK(ts_register_op("test.one(Tensor x) -> ()", NULL));
    OK(ts_register_op("test.two(Tensor x) -> ()", NULL));
    OK(ts_register_kernel("test.one", TS_KEY_CPU, k0, NULL, NULL));
    OK(ts_register_kernel("test.two", TS_KEY_CPU, k1, NULL, NULL));
    ck_assert_int_eq(nlines, 0);
    OK(ts_register_kernel("test.one", TS_KEY_CPU, k2, NULL, NULL));
    OK(ts_register_kernel("test.two", TS_KEY_CPU, k2, NULL, NULL));
    ck_assert_int_eq(nlines, 2);
    ck_assert_ptr_nonnull(strstr(lines[0], "test.one"));
    ck_assert_ptr_nonnull(strstr(lines[1], "test.two"));
    /* both lines name the same new site and different replaced sites */
    ck_assert_str_ne(strstr(lines[0], "replaces"), strstr(lines[1], "replaces"));
    char *a = strstr(lines[0], " at "), *b = strstr(lines[1], " at ");
    ck_assert_int_eq(strncmp(a, b, (size_t)(strstr(a, " replaces") - a)), 0);
}

static _Atomic bool stop;
static _Atomic long calls, failures;
static void *caller(void *a)
{
    while (!atomic_load(&stop)) {
        if (ts_noop(a, a, ts_scalar_int(1)) != TS_OK)
            atomic_fetch_add(&failures, 1);
        atomic_fetch_add(&calls, 1);
    }
    return NULL;
}
static ts_status kernel_a(ts_frame *f) { (void)f; return TS_OK; }
static ts_status kernel_b(ts_frame *f) { (void)f; return TS_OK; }
static ts_status no_rule(ts_vjp_call *b) { (void)b; return TS_OK; }

/** Bytes in use of the C library's allocator; 0 under a sanitizer, which has its own. */
static int64_t heap_bytes(void) { return (int64_t)mallinfo2().uordblks; }

TS_TEST(kernels_are_registered_while_other_threads_call, .threads = true)
{
    ts_tensor *a = one();
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, caller, a);
    for (int i = 0; i < 300; i++) {
        ts_registration *r;
        OK(ts_register_kernel("noop", TS_KEY_CPU, kernel_a, NULL, &r));
        OK(ts_unregister(r));
    }
    while (atomic_load(&calls) < 1000)
        ;
    atomic_store(&stop, true);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    ck_assert_int_eq(atomic_load(&failures), 0);
}

TS_TEST(kernels_may_be_registered_and_removed_without_end)
{
    ts_key layer = own_layer();
    int64_t before = 0;
    for (int i = 0; i < 400; i++) {
        ts_registration *r[3];
        if (i == 50)
            before = heap_bytes();
        OK(ts_register_kernel("noop", TS_KEY_CPU, i % 2 ? kernel_a : kernel_b, NULL, &r[0]));
        OK(ts_register_kernel("add", TS_KEY_CPU, kernel_a, NULL, &r[1]));
        OK(ts_register_fallback(layer, kernel_a, &r[2]));
        for (int k = 0; k < 3; k++)
            OK(ts_unregister(r[(i + k) % 3]));
        FAILS(TS_ERR_REGISTRY, ts_unregister(r[0]));
    }
    ck_assert_int_le(heap_bytes(), before);
}

TS_TEST(registering_a_kernel_again_uses_no_more_memory)
{
    int64_t before = 0;
    for (int i = 0; i < 400; i++) {
        if (i == 50)
            before = heap_bytes();
        OK(ts_register_kernel("noop", TS_KEY_CPU, kernel_a, NULL, NULL));
        OK(ts_autocast_register("noop", TS_AUTOCAST_KEEP, NULL));
        OK(ts_register_vjp("noop", no_rule, NULL));
    }
    ck_assert_int_le(heap_bytes(), before);
}

TS_TEST(the_dump_gives_each_slot_with_its_reason)
{
    char text[4096];
    own_layer();
    dump("add", text, sizeof text);
    const char *const expected[][2] = {{"CPU", "own kernel"},
                                       {"META", "shapes only"},
                                       {"AUTOGRAD", "fallback"},
                                       {"OWN", "falls through"},
                                       {"CUDA", "missing: error"}};
    for (int i = 0; i < 5; i++) {
        char *line = NULL;
        for (char *p = text; p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL) {
            char key[24];
            int number;
            if (sscanf(p, "%d %23s", &number, key) == 2 && strcmp(key, expected[i][0]) == 0)
                line = p;
        }
        ck_assert_ptr_nonnull(line);
        char *end = strchr(line, '\n'), *found = strstr(line, expected[i][1]);
        ck_assert_msg(found && found < end, "%s is not '%s' in:\n%s", expected[i][0],
                      expected[i][1], text);
    }
    FAILS(TS_ERR_REGISTRY, ts_op_dump("nothing", stdout));
}

TS_TEST(malformed_schemas_say_where)
{
    const char *const bad[] = {"", "f", "f(", "f()", "f() ->", "f(Tensor) -> ()",
                               "f(Tenso a) -> ()", "f(Tensor a,) -> ()",
                               "f(Tensor a, Tensor a) -> ()", "f(Tensor[ a) -> ()",
                               "f(float[] a) -> ()", "f() -> Tensor x", "f(Tensor(A!) a) -> ()",
                               "1f() -> ()", "f() -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
                               "f(Tensor a_name_that_is_longer_than_23) -> ()",
                               "f() -> (Tensor?, ?)", NULL};
    for (int i = 0; bad[i]; i++)
        FAILS(TS_ERR_FORMAT, ts_register_op(bad[i], NULL));
    FAILS(TS_ERR_NULL, ts_register_op(NULL, NULL));
}

static int failing_after;
static bool fail_alloc(size_t bytes) { (void)bytes; return failing_after-- == 0; }

TS_TEST(out_of_memory_while_registering_changes_nothing)
{
    ts_tensor *a = one();
    for (int n = 0; n < 40; n++) {
        failing_after = n;
        ts_alloc_fault = fail_alloc;
        ts_registration *r = NULL;
        ts_status s = ts_register_kernel("noop", TS_KEY_CPU, k0, NULL, &r);
        ts_alloc_fault = NULL;
        OK(call_noop(a, a));
        ck_assert_str_eq(ran, s == TS_OK ? "0" : "");
        if (s != TS_OK) {
            ck_assert_int_eq(s, TS_ERR_MEMORY);
            continue;
        }
        OK(ts_unregister(r));
        break;
    }
    /* registering a fallback changes the table of every op, or none */
    char before[4096], after[4096];
    ts_key own = own_layer();
    dump("add", before, sizeof before);
    failing_after = 5;
    ts_alloc_fault = fail_alloc;
    ts_status s = ts_register_fallback(own, pass, NULL);
    ts_alloc_fault = NULL;
    ck_assert_int_eq(s, TS_ERR_MEMORY);
    dump("add", after, sizeof after);
    ck_assert_str_eq(before, after);
}

TS_TEST(an_op_describes_itself)
{
    ts_op_description d = {.size = sizeof d};
    OK(ts_op_describe(ts_op_by_name("adamw"), &d));
    ck_assert_str_eq(d.name, "adamw");
    ck_assert_int_eq(d.kind, TS_FILL);
    ck_assert_int_eq(d.gradient, TS_GRADIENT_NEVER);
    ck_assert(d.args[0].written && !d.args[1].written && d.args[0].kinds == 1 << TS_TAG_TENSORS);
    ck_assert(!d.random && !d.runtime);
    OK(ts_op_describe(ts_op_by_name("dropout"), &d));
    ck_assert(d.random && d.gradient == TS_GRADIENT_RULE && d.nrets == 1);
    ck_assert_str_eq(d.args[1].name, "p");
    OK(ts_op_describe(ts_op_by_name("transpose"), &d));
    ck_assert_int_eq(d.kind, TS_VIEW);
    int op;
    OK(ts_register_op("test.described(Tensor? a, int n) -> (Tensor, Tensor)", &op));
    OK(ts_op_describe(op, &d));
    ck_assert(d.runtime && d.gradient == TS_GRADIENT_REFUSED && d.nargs == 2 && d.nrets == 2 &&
              d.args[0].optional);
    d.size = offsetof(ts_op_description, schema);
    d.schema = NULL;
    OK(ts_op_describe(op, &d));
    ck_assert(!d.schema && d.name); /* a caller with an older, shorter struct */
    d.size = sizeof d + 8;
    FAILS(TS_ERR_VALUE, ts_op_describe(op, &d));
    d.size = sizeof d;
    FAILS(TS_ERR_REGISTRY, ts_op_describe(ts_op_count(), &d));
    FAILS(TS_ERR_NULL, ts_op_describe(op, NULL));
}

TS_TEST(a_slot_states_the_rule_that_filled_it)
{
    int add = ts_op_by_name("add");
    ck_assert_int_eq(ts_op_slot(add, TS_KEY_CPU), TS_RULE_KERNEL);
    ck_assert_int_eq(ts_op_slot(add, TS_KEY_META), TS_RULE_META);
    ck_assert_int_eq(ts_op_slot(add, TS_KEY_CUDA), TS_RULE_MISSING);
    ck_assert_int_eq(ts_op_slot(ts_op_by_name("transpose"), TS_KEY_CUDA), TS_RULE_VIEW);
    ck_assert_int_eq(ts_op_slot(add, TS_KEY_TRACING + 1), TS_RULE_MISSING);
    ck_assert_int_eq(ts_op_slot(-1, TS_KEY_CPU), TS_RULE_MISSING);
    ts_registration *fallback;
    OK(ts_register_fallback(TS_KEY_CUDA, k0, &fallback));
    ck_assert_int_eq(ts_op_slot(add, TS_KEY_CUDA), TS_RULE_FALLBACK);
    OK(ts_unregister(fallback));
    ck_assert_int_eq(ts_op_slot(add, TS_KEY_CUDA), TS_RULE_MISSING);
}
