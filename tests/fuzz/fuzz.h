/** @file fuzz.h  Common functions of the fuzzing harnesses: an input as a file, and checks that
 *  abort the process. */
// SPDX-License-Identifier: MIT
#ifndef TS_TESTS_FUZZ_FUZZ_H
#define TS_TESTS_FUZZ_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Aborts if `condition` is false. libFuzzer and AFL keep inputs that make the process abort. */
#define FUZZ_CHECK(condition)                                             \
    do {                                                                  \
        if (!(condition)) {                                               \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                      \
        }                                                                 \
    } while (0)

/* Returns a descriptor of an anonymous file with these contents. */
static inline int fuzz_file(const uint8_t *data, size_t size)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    FUZZ_CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    return fd;
}

#endif
