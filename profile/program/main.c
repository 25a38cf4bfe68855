/** @file main.c  ts-prof: reads, compares and draws profiles; measures the machine. */
// SPDX-License-Identifier: MIT
#include <string.h>
#include <time.h>

#include "html.h"

typedef struct settings {
    const char *command, *file, *after, *html, *csv, *folded, *device;
    bool anew;
} settings;

typedef struct output {
    const ts_profile *profile;
    ts_profile_format format;
} output;

static ts_status print_profile(FILE *out, void *ctx)
{
    const output *o = ctx;
    return ts_profile_write(o->profile, out, o->format);
}

static ts_status write_to(const char *path, const ts_profile *p, ts_profile_format format)
{
    output o = {p, format};
    return path ? ts_replace_file("report", path, print_profile, &o) : TS_OK;
}

static ts_status report(const settings *s)
{
    ts_profile *p = ts_profile_read(s->file);
    ts_status status = p ? TS_OK : ts_error_code();
    if (status == TS_OK && !s->html && !s->csv && !s->folded)
        status = ts_profile_write(p, stdout, TS_PROFILE_TABLES);
    if (status == TS_OK)
        status = write_to(s->csv, p, TS_PROFILE_CSV);
    if (status == TS_OK)
        status = write_to(s->folded, p, TS_PROFILE_FOLDED);
    if (status == TS_OK && s->html)
        status = write_html(p, s->html);
    ts_profile_free(p);
    return status;
}

static ts_status compare(const settings *s)
{
    ts_profile *before = ts_profile_read(s->file);
    ts_profile *after = before ? ts_profile_read(s->after) : NULL;
    ts_status status = after ? ts_profile_compare(before, after, stdout) : ts_error_code();
    ts_profile_free(before);
    ts_profile_free(after);
    return status;
}

static ts_status calibrate(const settings *s)
{
    ts_device device = TS_DEVICE_CPU;
    ts_prof_machine m = {.size = sizeof m};
    if (s->device)
        TS_TRY(ts_device_open(s->device, &device, NULL, 0));
    bool cpu = device.backend == TS_DEVICE_CPU.backend;
    TS_TRY(cpu ? ts_prof_calibrate(s->anew, &m) : ts_prof_calibrate_device(device, s->anew, &m));
    TS_C_LOCALE;
    double days = ((double)time(NULL) - m.measured_at) / 86400;
    printf("%s, %d thread%s, measured %.1f days ago\n", m.name, m.threads,
           m.threads == 1 ? "" : "s", days);
    const struct {
        const char *dtype;
        double flops;
    } products[] = {{"f64", m.double_flops}, {"f32", m.gemm_flops}, {"bf16", m.half_flops}};
    for (int i = 0; i < 3; i++)
        if (products[i].flops > 0)
            printf("products     %10.1f GFLOP/s, %s\n", products[i].flops / 1e9, products[i].dtype);
    if (cpu || m.vector_flops != m.gemm_flops)
        printf("elementwise  %10.1f GFLOP/s, f32, unfused\n", m.vector_flops / 1e9);
    for (int i = 0; i < TS_PROF_CURVE; i++)
        printf("%8.0f KiB %11.1f GB/s\n", m.bytes_at[i] / 1024, m.bandwidth[i] / 1e9);
    printf("ridge        %10.1f FLOP/byte\n", m.gemm_flops / m.bandwidth[TS_PROF_CURVE - 1]);
    if (!cpu) {
        printf("launch       %10.1f ns on the host\n", m.call_ns);
        printf("kernel       %10.1f ns, of one element, with the gap before it\n", m.kernel_ns);
        return TS_OK;
    }
    printf("call         %10.1f ns in its backend, %.1f ns before\n", m.call_ns, m.entry_ns);
    printf("stamp        %10.1f ns, a recorded call %.1f ns more\n", m.stamp_ns, m.record_ns);
    return TS_OK;
}

/** Removes TS_PROF from the environment: ts-prof itself is not profiled, and so it never replaces
 *  the files that it reads. Runs before the library's initialisers, which read the variable. */
static void unset_variable(int argc, char **argv, char **environment)
{
    (void)argc, (void)argv;
    char **kept = environment;
    for (char **at = environment; *at; at++)
        if (strncmp(*at, "TS_PROF=", 8) != 0)
            *kept++ = *at;
    *kept = NULL;
}
__attribute__((section(".preinit_array"), used)) static void (*const begin)(int, char **, char **) =
    unset_variable;

/** Number of the command among the words of the program; -1: none of them is one. */
static int find_command(int argc, char **argv)
{
    static const char *const names[] = {"report", "compare", "calibrate"};
    for (int i = 1; i < argc; i++)
        for (int k = 0; k < 3; k++)
            if (strcmp(argv[i], names[k]) == 0)
                return k;
    return -1;
}

int main(int argc, char **argv)
{
    enum { REPORT = 1, COMPARE = 2, CALIBRATE = 4, ALL = 7 };
    settings s = {0};
    int status, command = find_command(argc, argv), count = 0;
    const struct {
        int of; /* the commands that take the argument */
        ts_argument argument;
    } all[] = {
        {ALL, {.name = "COMMAND", .help = "command", .text = &s.command, .required = true,
               .one_of = "report|compare|calibrate"}},
        {REPORT | COMPARE, {.name = "FILE", .help = "a profile.json, for report and compare",
                            .text = &s.file, .required = command >= 0}},
        {COMPARE, {.name = "AFTER", .help = "second profile.json, for compare", .text = &s.after,
                   .required = command >= 0}},
        {REPORT, {.name = "--html", .help = "report: write an HTML page to this file",
                  .text = &s.html, .value = "FILE"}},
        {REPORT, {.name = "--csv", .help = "report: write the rows as CSV to this file",
                  .text = &s.csv, .value = "FILE"}},
        {REPORT, {.name = "--folded",
                  .help = "report: write folded stacks, for flame graphs, to this file",
                  .text = &s.folded, .value = "FILE"}},
        {CALIBRATE, {.name = "--anew",
                     .help = "calibrate: measure again, even if results are stored",
                     .flag = &s.anew}},
        {CALIBRATE, {.name = "--device",
                     .help = "calibrate: the device, such as cuda; default cpu",
                     .text = &s.device, .value = "NAME"}},
    };
    ts_argument arguments[sizeof all / sizeof all[0]]; /* of the command, or all */
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (command < 0 || (all[i].of & (1 << command)))
            arguments[count++] = all[i].argument;
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        printf("ts-prof %s\n", ts_version_string());
        return ts_program_end(0);
    }
    if (!ts_program_begin(argc, argv,
                          "TS_PROF=1 PROGRAM prints a profile when the program ends.\n"
                          "TS_PROF=out=FOLDER PROGRAM also writes FOLDER/profile.json, a FILE.\n"
                          "report prints FILE or writes it in other formats, compare prints the\n"
                          "differences from FILE to AFTER, and calibrate measures this machine.\n"
                          "ts-prof COMMAND --help prints the arguments of a command; ts-prof\n"
                          "--version prints the version.\n",
                          arguments, count, &status))
        return status;
    ts_status (*const run[])(const settings *) = {report, compare, calibrate};
    ts_status done = run[command](&s);
    if (done != TS_OK)
        fprintf(stderr, "ts-prof: %s\n", ts_error_message());
    return ts_program_end(done == TS_OK ? 0 : 1);
}
