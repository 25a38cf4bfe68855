/**
 * @file nvtx.c  NVTX ranges. NVTX consists of headers only: without a tool such as Nsight Systems,
 * its functions test a null pointer and return. The ranges have their own domain, "tessera", and
 * each name is registered once.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/runtime/nvtx.h"

#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <string.h>

enum { NAMES = 1024 };

static struct {
    pthread_mutex_t lock;
    nvtxDomainHandle_t domain;
    struct {
        char text[64];
        nvtxStringHandle_t handle;
    } names[NAMES];
} ranges = {.lock = PTHREAD_MUTEX_INITIALIZER};

/** The handle of a name, registered at its first use; NULL for a name that is empty or longer than
 * 63 characters, and if the table is full. */
static nvtxStringHandle_t handle_of(const char *name)
{
    size_t hash = 5381;
    for (const char *c = name; *c; c++)
        hash = hash * 33 + (unsigned char)*c;
    nvtxStringHandle_t found = NULL;
    bool fits = *name && strlen(name) < sizeof ranges.names[0].text;
    pthread_mutex_lock(&ranges.lock);
    if (!ranges.domain)
        __atomic_store_n(&ranges.domain, nvtxDomainCreateA("tessera"), __ATOMIC_RELEASE);
    for (size_t i = 0; i < 8 && fits && !found; i++) {
        size_t at = (hash + i) % NAMES;
        if (!ranges.names[at].text[0]) {
            strcpy(ranges.names[at].text, name);
            ranges.names[at].handle = nvtxDomainRegisterStringA(ranges.domain, name);
        }
        if (strcmp(ranges.names[at].text, name) == 0)
            found = ranges.names[at].handle;
    }
    pthread_mutex_unlock(&ranges.lock);
    return found;
}

void ts_cuda_range(void *state, const char *name)
{
    (void)state;
    if (!name) {
        nvtxDomainHandle_t domain = __atomic_load_n(&ranges.domain, __ATOMIC_ACQUIRE);
        if (domain)
            nvtxDomainRangePop(domain);
        return;
    }
    nvtxStringHandle_t handle = handle_of(name);
    nvtxEventAttributes_t range = {
        .version = NVTX_VERSION,
        .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
        .messageType = handle ? NVTX_MESSAGE_TYPE_REGISTERED : NVTX_MESSAGE_TYPE_ASCII,
    };
    if (handle)
        range.message.registered = handle;
    else
        range.message.ascii = name;
    nvtxDomainRangePushEx(ranges.domain, &range);
}
