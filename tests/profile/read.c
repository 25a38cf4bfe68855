/** @file read.c  Tests of a profile's formats, of reading it, of invalid files, and of the file
 * with a machine's ceilings. */
// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <stdlib.h>

#include "core/files.h"
#include "core/testing.h"
#include "tests/dispatch/common.h"
#include "tests/profile/machine.h"
#include "tests/profile/rival.h"
#include "tests/profile/small.h"

static char folder[64];

static const char *in_folder(const char *name)
{
    static char path[128];
    if (!folder[0]) {
        snprintf(folder, sizeof folder, "/tmp/tessera-profile-XXXXXX");
        ck_assert_ptr_nonnull(mkdtemp(folder));
    }
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void end_folder(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    ck_assert_int_eq(system(command), 0);
}

static const char *put(const char *text)
{
    FILE *out = fopen(in_folder("profile.json"), "w");
    ck_assert_ptr_nonnull(out);
    fputs(text, out);
    fclose(out);
    return in_folder("profile.json");
}

static char *printed(const ts_profile *p, ts_profile_format format)
{
    char *text;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    OK(ts_profile_write(p, out, format));
    fclose(out);
    return text;
}

static ts_profile *small_run(void)
{
    use_fixed_machine();
    ts_tensor *a = ts_ones(TS_SIZES(64, 64), TS_F32);
    OK(ts_prof_start(NULL));
    for (int i = 0; i < 5; i++) {
        TS_PROF_SCOPE("quo\"te\\d");
        OK(ts_mm(a, ts_exp(a)));
        ts_prof_step();
    }
    OK(ts_prof_stop());
    ts_profile *p = ts_profile_take();
    OK(p);
    return p;
}

/** A profile that is written, read and written again has the same bytes. */
TS_TEST(a_profile_survives_its_file)
{
#if !TS_TIMERS
    TS_SKIP("built without timers");
#endif
    ts_profile *p = small_run();
    char *first = printed(p, TS_PROFILE_JSON), *tables = printed(p, TS_PROFILE_TABLES);
    ts_profile *again = ts_profile_read(put(first));
    OK(again);
    char *second = printed(again, TS_PROFILE_JSON), *same = printed(again, TS_PROFILE_TABLES);
    ck_assert_msg(strcmp(first, second) == 0, "%.300s\n%.300s", first, second);
    ck_assert_msg(strcmp(tables, same) == 0, "%.300s\n%.300s", tables, same);
    ck_assert_ptr_nonnull(strstr(tables, "mm"));
    ck_assert_ptr_nonnull(strstr(tables, "GFLOP/s"));
    for (char *line = tables, *end; *line; line = end + (*end == '\n')) {
        end = line + strcspn(line, "\n");
        ck_assert_msg(end - line <= 240, "%.*s", (int)(end - line), line);
    }
    char *csv = printed(p, TS_PROFILE_CSV), *folded = printed(p, TS_PROFILE_FOLDED);
    ck_assert_ptr_nonnull(strstr(csv, "\"quo\"\"te"));
    ck_assert_ptr_nonnull(strstr(folded, ";mm;CPU "));
    double sum = 0;
    for (char *line = folded, *end; *line; line = end + 1) {
        end = line + strcspn(line, "\n");
        *end = 0;
        sum += strtod(strrchr(line, ' '), NULL);
    }
    ck_assert_double_eq_tol(sum, p->wall_ns, 0.01 * p->wall_ns + 100);
    char *text;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    OK(ts_profile_compare(p, again, out));
    fclose(out);
    ck_assert_ptr_nonnull(strstr(text, "1.000 times"));
    FAILS(TS_ERR_VALUE, ts_profile_write(p, stdout, (ts_profile_format)9));
    SAYS("format");
    for (int format = 0; format <= 4; format++) { /* 4: a comparison */
        static char large[1 << 20]; /* has room for all, so that only a flush fails */
        static const ts_profile_format formats[] = {TS_PROFILE_JSON, TS_PROFILE_TABLES,
                                                    TS_PROFILE_CSV, TS_PROFILE_FOLDED};
        out = fopen("/dev/full", "w");
        setvbuf(out, large, _IOFBF, sizeof large);
        FAILS(TS_ERR_IO, format < 4 ? ts_profile_write(p, out, formats[format])
                                    : ts_profile_compare(p, p, out));
        fclose(out);
    }
    ts_profile_shares s = {.size = sizeof s};
    OK(ts_profile_get_shares(p, &s));
    ck_assert_int_eq(s.steps, 5);
    ts_profile_free(p);
    ts_profile_free(again);
    free(first), free(second), free(tables), free(same), free(csv), free(folded), free(text);
    end_folder();
}

/** Replaces the first `from` of the small profile. */
static char *changed(const char *from, const char *to)
{
    static char text[4096];
    const char *at = strstr(small_profile, from);
    ck_assert_msg(at != NULL, "%s", from);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - small_profile), small_profile, to,
             at + strlen(from));
    return text;
}

/** The part of a profile about memory, with one owner's bytes, before the member first_step. */
#define MEMORY(peak, capacity)                                                                     \
    "\"memory\": {\"device\": \"cpu\", \"before\": 0, \"capacity\": " capacity                     \
    ", \"peak_ns\": 1, \"peak_bytes\": " peak ", \"lost\": 0, \"peak\": [64, 0, 0, 0, 0, 0], "     \
    "\"points\": [], \"holders\": []}, \"first_step\""

TS_TEST(invalid_files_are_refused_with_the_field)
{
    static const struct {
        const char *from, *to, *says;
    } wrong[] = {
        {"\"schema_version\": 1", "\"schema_version\": 2", "schema_version 1, got 2"},
        {"\"schema_version\": 1", "\"schema\": 1", "schema_version"},
        {"\"measured\": true", "\"measured\": 1", "measured"},
        {"\"wall_ns\": 100", "\"wall_ns\": \"x\"", "wall_ns"},
        {"\"wall_ns\": 100", "\"wall_ns\": 1e999", "expected JSON"},
        {"\"op\": \"add\"", "\"op\": 5", "op"},
        {"\"op\": \"add\"", "\"op\": \"0123456789012345678901234567890123456789012345678901\"",
         "op"},
        {"\"op\": \"add\"", "\"op\": \"a\\u0000b\"", "expected"},
        {"\"calls\": 1", "\"calls\": -1", "calls"},
        {"\"calls\": 1", "\"calls\": 1.5", "calls"},
        {"[[100, 60, 0, 30, 10]]", "[[100, 60]]", "steps"},
        {"[[100, 60, 0, 30, 10]]", "[7]", "steps"},
        {"[[100, 60, 0, 30, 10]]", "{}", "steps"},
        {"[8, 9e9]", "[8]", "bandwidth"},
        {"[8, 9e9]", "[8, -1]", "bandwidth"},
        {"\"gemm_flops\": 1e11", "\"gemm_flops\": 0", "ceilings"},
        {"\"machine\": {", "\"machin\": {", "name"},
        {"\"integrity\": {", "\"integrit\": {", "missing_share"},
        {"\"rows\": [", "\"rows\": [[],", "op"},
        {"\"wall_ns\": 100", "\"wall_ns\": 0", "wall_ns"},
        {"\"wall_ns\": 100", "\"wall_ns\": -5", "wall_ns"},
        {"\"wall_ns\": 100", "\"wall_ns\": 1e-300", "wall_ns"},
        {"\"wall_ns\": 100", "\"wall_ns\": 200", "wall_ns"},
        {"\"self_ns\": 60", "\"self_ns\": 1e308", "self_ns"},
        {"\"self_ns\": 60", "\"self_ns\": -600", "self_ns"},
        {"\"self_ns\": 60", "\"self_ns\": 6e9", "self_ns"},
        {"\"missing_share\": 0", "\"missing_share\": 3", "missing_share"},
        {"\"flops\": 15", "\"flops\": 1e300", "flops"},
        {"\"bytes\": 180", "\"bytes\": -1", "bytes"},
        {"\"calls\": 1", "\"calls\": 9223372036854775807", "calls"},
        {"\"first_step\": 1", "\"first_step\": 9223372036854775807", "first_step"},
        {"\"gemm_flops\": 1e11", "\"gemm_flops\": 1e-300", "gemm_flops"},
        {"[8, 9e9]", "[8, 1e-300]", "bandwidth"},
        {"[[100, 60, 0, 30, 10]]", "[[100, -600, 0, 30, 10]]", "steps"},
        {"[[100, 60, 0, 30, 10]]", "[[1, 6000, 0, 30, 10]]", "steps"},
        {"[[100, 60, 0, 30, 10]]", "[[1e9, 60, 0, 30, 10]]", "steps"},
        {"\"first_step\"", MEMORY("0.5", "0"), "peak_bytes"},
        {"\"first_step\"", MEMORY("64", "1e-300"), "capacity"},
        {"\"first_step\"", MEMORY("-64", "0"), "peak_bytes"},
    };
    static const char *const right[][2] = {
        {"\"self_ns\": 60", "\"self_ns\": 60"},
        {"\"first_step\"", MEMORY("64", "128")},
        {"60, 0, 30, 10]]", "64, -4, 30, 10]]"}, /* the cost of a stamp is subtracted */
    };
    for (int i = 0; i < TS_COUNTOF(right); i++) {
        ts_profile *p = ts_profile_read(put(changed(right[i][0], right[i][1])));
        OK(p);
        ts_profile_free(p);
    }
    for (int i = 0; i < (int)(sizeof wrong / sizeof wrong[0]); i++) {
        ts_profile *p = ts_profile_read(put(changed(wrong[i].from, wrong[i].to)));
        ck_assert_msg(p == NULL, "%s was read", wrong[i].to);
        ck_assert_int_eq(ts_error_code(), TS_ERR_FORMAT);
        SAYS(wrong[i].says);
    }
    FAILS(TS_ERR_IO, ts_profile_read(in_folder("none")));
    FAILS(TS_ERR_IO, ts_profile_read(folder));
    FAILS(TS_ERR_NULL, ts_profile_read(NULL));
    /* the file cut at each length, and with random bytes */
    size_t whole = strlen(small_profile);
    char text[sizeof small_profile];
    srandom(5);
    for (size_t i = 0; i < 1500; i++) {
        memcpy(text, small_profile, sizeof text);
        text[i < whole ? i : whole] = 0;
        if (i % 3) {
            memcpy(text, small_profile, sizeof text);
            for (int k = 0; k < 3; k++)
                text[(size_t)random() % whole] = (char)(' ' + random() % 95);
        }
        ts_profile *p = ts_profile_read(put(text));
        ck_assert(p || ts_error_code() == TS_ERR_FORMAT);
        if (p)
            free(printed(p, TS_PROFILE_TABLES));
        ts_profile_free(p);
    }
    end_folder();
}

/** The file of a machine, in the folder of this process. */
static const char *machine_file(void)
{
    static char path[256];
    char command[256];
    snprintf(command, sizeof command, "ls %s/tessera/machine-*.txt", own_cache());
    FILE *p = popen(command, "r");
    ck_assert_ptr_nonnull(fgets(path, sizeof path, p));
    pclose(p);
    path[strcspn(path, "\n")] = 0;
    return path;
}

static double products(void)
{
    ts_prof_machine m = {.size = sizeof m};
    OK(ts_prof_calibrate(false, &m));
    ck_assert_double_gt(m.vector_flops, 0);
    ck_assert_double_gt(m.bandwidth[0], 0);
    ck_assert_double_gt(m.call_ns, 0);
    return m.gemm_flops;
}

static void write_machine(const char *path, const char *gemm)
{
    FILE *out = fopen(path, "w");
    fprintf(out, "tessera-machine 5\n%s\n2e9\n1\n0\n1e9\n0\n0\n0\n", gemm);
    for (int i = 0; i < 2 * TS_PROF_CURVE; i++)
        fprintf(out, "%d\n", 1000 * (i + 1));
    fclose(out);
}

TS_TEST(a_machine_is_measured_once_and_its_file_is_checked, .timeout = 600)
{
#if !TS_TIMERS
    TS_SKIP("built without timers");
#endif
    own_cache();
    ts_measure_time = 0.1;
    double measured = products();
    ck_assert_double_gt(measured, 0);
    struct stat status;
    char path[256];
    snprintf(path, sizeof path, "%s", machine_file());
    ck_assert_int_eq(stat(path, &status), 0);
    ck_assert_int_eq(status.st_mode & 0777, 0600);
    /* Another measurement would differ. Six digits are kept. */
    ck_assert_double_eq_tol(products(), measured, 1e-5 * measured);
    write_machine(path, "12345");
    ck_assert_double_eq(products(), 12345);
    /* if a file is invalid, or others may write it, the ceilings are measured again */
    ts_measure_time = 0.02;
    static const char *const wrong[] = {"nan", "12345 x"};
    for (int i = 0; i < 2; i++) {
        write_machine(path, wrong[i]);
        ck_assert_double_ne(products(), 12345);
    }
    write_machine(path, "12345");
    ck_assert_int_eq(chmod(path, 0666), 0); /* anybody may have written it */
    ck_assert_double_ne(products(), 12345);
    setenv("XDG_CACHE_HOME", "/proc/no/such", 1); /* the file cannot be written */
    ck_assert_double_gt(products(), 0);
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%.*s'", (int)(strstr(path, "/tessera/") - path),
             path);
    ck_assert_int_eq(system(command), 0);
}

static int measurements;
static ts_status measure_fake(void *ctx, ts_prof_machine *m)
{
    measurements++;
    *m = (ts_prof_machine){.size = sizeof *m, .threads = 1, .gemm_flops = 1e13,
                           .vector_flops = 2e12, .half_flops = *(const double *)ctx,
                           .double_flops = 3e12, .kernel_ns = 2000, .call_ns = 3000,
                           .measured_at = 1};
    for (int i = 0; i < TS_PROF_CURVE; i++)
        m->bytes_at[i] = m->bandwidth[i] = 1000 * (i + 1);
    return TS_OK;
}

static ts_prof_machine stored_machine(const char *identity, bool anew, double half)
{
    ts_prof_machine m = {.size = sizeof m, .threads = 1};
    OK(ts_machine_kept(identity, anew, measure_fake, &half, &m));
    return m;
}

/** A device has a file per identity, which names device and driver, so an update of the driver
 *  measures again. */
TS_TEST(ceilings_of_a_device_are_kept_by_its_identity)
{
    own_cache();
    measurements = 0;
    ck_assert_double_eq(stored_machine("GPU 1, driver 1", false, 3e13).half_flops, 3e13);
    ck_assert_double_eq(stored_machine("GPU 1, driver 1", false, 4e13).half_flops, 3e13);
    ck_assert_int_eq(measurements, 1);
    ck_assert_double_eq(stored_machine("GPU 1, driver 2", false, 5e13).half_flops, 5e13);
    ck_assert_double_eq(stored_machine("GPU 1, driver 1", false, 6e13).half_flops, 3e13);
    ck_assert_double_eq(stored_machine("GPU 1, driver 1", true, 7e13).half_flops, 7e13);
    ts_prof_machine m = stored_machine("GPU 1, driver 1", false, 8e13);
    ck_assert_double_eq(m.half_flops, 7e13);
    ck_assert_double_eq(m.vector_flops, 2e12);
    ck_assert_double_eq(m.double_flops, 3e12);
    ck_assert_double_eq(m.kernel_ns, 2000);
    ck_assert_double_eq(m.call_ns, 3000);
    ck_assert_double_eq(m.bandwidth[2], 3000);
    ck_assert_int_eq(measurements, 3);
    stored_machine(NULL, false, 9e13); /* a device without an identity has no file */
    ck_assert_double_eq(stored_machine(NULL, false, 1e13).half_flops, 1e13);
    ck_assert_int_eq(measurements, 5);
    end_cache();
}

static char warning[512];
static void keep_warning(void *payload, const char *topic, const char *line)
{
    (void)payload;
    if (strcmp(topic, "warning") == 0)
        snprintf(warning, sizeof warning, "%s", line);
}

static ts_status measure_for_a_while(void *ctx, ts_prof_machine *m)
{
    static const double half = 1;
    for (double begin = seconds(); seconds() < begin + *(const double *)ctx;)
        ;
    return measure_fake((void *)(uintptr_t)&half, m);
}

TS_TEST(a_measurement_beside_other_threads_logs_a_warning, .threads = true)
{
    if (!waits_are_counted())
        TS_SKIP("the system does not count the time in which a thread is ready and does not run");
    own_cache();
    ts_log_set_callback(keep_warning, NULL);
    rival other;
    rival_start(&other);
    ts_prof_machine m = {.size = sizeof m, .threads = 1};
    double time = 0.4;
    OK(ts_machine_kept("loaded", false, measure_for_a_while, &time, &m));
    ck_assert_msg(strstr(warning, "the processors ran other threads for ") != NULL, "'%s'",
                  warning);
    rival_stop(&other);
    char first_warning[sizeof warning];
    memcpy(first_warning, warning, sizeof warning);
    warning[0] = 0; /* the file stores the share */
    OK(ts_machine_kept("loaded", false, measure_for_a_while, &time, &m));
    ck_assert_str_eq(warning, first_warning);
    warning[0] = 0;
    OK(ts_machine_kept("loaded", false, measure_for_a_while, &time, &m));
    ck_assert_str_eq(warning, ""); /* once per process */
    ts_log_set_callback(NULL, NULL);
    end_cache();
}

static int scripted_open(const char *path, int flags, mode_t mode)
{
    return strncmp(path, "/proc/self/task/", 16) == 0 ? -1 : open(path, flags, mode);
}

/** A share that is unknown, because the system does not count, is none. */
TS_TEST(a_measurement_on_a_system_without_counts_logs_no_warning)
{
    own_cache();
    ts_file_table real = ts_files;
    ts_files.open = scripted_open;
    ts_log_set_callback(keep_warning, NULL);
    warning[0] = 0;
    stored_machine("idle", false, 3e13);
    ck_assert_double_eq(stored_machine("idle", false, 4e13).half_flops, 3e13);
    ck_assert_str_eq(warning, "");
    ts_log_set_callback(NULL, NULL);
    ts_files = real;
    end_cache();
}

TS_TEST(only_devices_that_exist_can_be_calibrated)
{
#if !TS_TIMERS
    TS_SKIP("built without timers");
#endif
    ts_prof_machine m = {.size = sizeof m};
    FAILS(TS_ERR_DEVICE, ts_prof_calibrate_device(TS_DEVICE_CPU, false, &m));
    FAILS(TS_ERR_DEVICE, ts_prof_calibrate_device((ts_device){1, 200}, false, &m));
    FAILS(TS_ERR_NULL, ts_prof_calibrate_device((ts_device){1, 0}, false, NULL));
    OK(ts_prof_start(NULL));
    FAILS(TS_ERR_STATE, ts_prof_calibrate_device((ts_device){1, 0}, false, &m));
    OK(ts_prof_stop());
}
