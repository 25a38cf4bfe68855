/**
 * @file replay.c
 * Runs a harness over the files of a folder, each as it is, cut at every byte and with every bit
 * flipped. With a fuzzer it is left out: `clang -fsanitize=fuzzer,address` brings a main of its own.
 */
// SPDX-License-Identifier: MIT
#include <dirent.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"

/* Each input is a block of its own, so that a sanitizer sees reads beyond it. */
static void one(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    FUZZ_CHECK(copy);
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

int main(int argc, char **argv)
{
    static uint8_t data[1 << 16];
    long inputs = 0;
    DIR *dir = argc == 2 ? opendir(argv[1]) : NULL;
    struct dirent *entry;
    if (!dir) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
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
        for (size_t length = 0; length <= size; length++, inputs++)
            one(data, length);
        for (size_t bit = 0; bit < 8 * size; bit++, inputs++) {
            data[bit / 8] ^= (uint8_t)(1 << bit % 8);
            one(data, size);
            data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
    }
    closedir(dir);
    printf("%ld inputs\n", inputs);
    return inputs ? 0 : 1;
}
