/**
 * @file replay.c
 * Runs a fuzz harness without a fuzzer. `FOLDER`: on each file of the folder, unchanged, cut at
 * every byte, and with every bit flipped. `FOLDER N FIRST`: on the random inputs FIRST to
 * FIRST + N - 1; half of them consist of pieces of the folder's files. A crash prints the number of
 * the input. `clang -fsanitize=fuzzer,address` has its own main and does not need this file.
 */
// SPDX-License-Identifier: MIT
#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"

/* Copies each input to its own block, so that a sanitizer detects reads beyond it. */
static void one(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    FUZZ_CHECK(copy);
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

/* --------------------------------------------------------------------------- random inputs ---- */

enum { MOST_FILES = 256 };
static struct {
    uint8_t *data;
    size_t size;
} files[MOST_FILES];
static int nfiles;
static long running = -1;

static void crashed(int signal_number)
{
    char text[64];
    int length = snprintf(text, sizeof text, "input %ld of the random ones\n", running);
    if (running >= 0 && write(2, text, (size_t)length) < 0)
        _exit(1);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static uint64_t next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void random_input(long number)
{
    static uint8_t data[1 << 12];
    uint64_t state = (uint64_t)number * 0x2545f4914f6cdd1du + 1;
    size_t size = 0;
    if (number & 1 && nfiles) {
        for (uint64_t pieces = 1 + next(&state) % 3; pieces; pieces--) {
            int f = (int)(next(&state) % (uint64_t)nfiles);
            size_t from = files[f].size ? next(&state) % files[f].size : 0,
                   n = files[f].size - from;
            n = n ? 1 + next(&state) % n : 0;
            n = n < sizeof data - size ? n : sizeof data - size;
            memcpy(data + size, files[f].data + (pieces & 1 ? 0 : from), n);
            size += n;
        }
        for (uint64_t changes = next(&state) % 6; size && changes; changes--)
            data[next(&state) % size] = (uint8_t)next(&state);
    } else {
        size = next(&state) % 80;
        for (size_t i = 0; i < size; i++)
            data[i] = (uint8_t)next(&state);
    }
    running = number;
    one(data, size);
    running = -1;
}

/** Appends a line to TS_TEST_TALLY, as tests/harness.c does: one passed case with its number of
 *  inputs. */
static bool tally(const char *program, long inputs)
{
    const char *path = getenv("TS_TEST_TALLY"), *slash = strrchr(program, '/');
    FILE *file = path && *path ? fopen(path, "a") : NULL;
    if (!path || !*path)
        return true;
    if (!file)
        return false;
    fprintf(file, "1 0 0 %s fuzz_inputs=%ld\n", slash ? slash + 1 : program, inputs);
    return fclose(file) == 0;
}

int main(int argc, char **argv)
{
    static uint8_t data[1 << 16];
    long inputs = 0;
    DIR *dir = argc == 2 || argc == 4 ? opendir(argv[1]) : NULL;
    struct dirent *entry;
    if (!dir) {
        fprintf(stderr, "usage: %s FOLDER [N FIRST]\n", argv[0]);
        return 2;
    }
    while ((entry = readdir(dir))) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", argv[1], entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "rb");
        if (!file)
            continue;
        size_t size = fread(data, 1, sizeof data, file);
        fclose(file);
        if (argc == 4 && nfiles < MOST_FILES && (files[nfiles].data = malloc(size + 1))) {
            memcpy(files[nfiles].data, data, size);
            files[nfiles++].size = size;
            continue;
        }
        for (size_t length = 0; length <= size; length++, inputs++)
            one(data, length);
        for (size_t bit = 0; bit < 8 * size; bit++, inputs++) {
            data[bit / 8] ^= (uint8_t)(1 << bit % 8);
            one(data, size);
            data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
    }
    closedir(dir);
    if (argc == 4) {
        signal(SIGSEGV, crashed);
        signal(SIGABRT, crashed);
        signal(SIGFPE, crashed);
        signal(SIGBUS, crashed);
        for (long i = 0; i < atol(argv[2]); i++, inputs++)
            random_input(atol(argv[3]) + i);
    }
    while (nfiles)
        free(files[--nfiles].data);
    printf("%ld inputs\n", inputs);
    return inputs && tally(argv[0], inputs) ? 0 : 1;
}
