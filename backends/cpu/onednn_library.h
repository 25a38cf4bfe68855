/** @file onednn_library.h  The functions of oneDNN 2 and of its OpenMP that onednn.c uses, as
 * pointers that are looked up in the shared library at run time. */
// SPDX-License-Identifier: MIT
#ifndef TS_BACKENDS_CPU_ONEDNN_LIBRARY_H
#define TS_BACKENDS_CPU_ONEDNN_LIBRARY_H

#include "backends/cpu/isa.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Types and numbers of dnnl_types.h, version 2. The structs are opaque. A layout is a
 * dnnl_memory_desc_t and has its size; a convolution_desc is a dnnl_convolution_desc_t and has at
 * least its size. */
typedef struct layout {
    int64_t words[87];
} layout;
typedef struct convolution_desc {
    int64_t words[1024];
} convolution_desc;
typedef struct argument {
    int index;
    void *memory;
} argument;
typedef struct version {
    int major, minor, patch;
} version;
enum { SUCCESS = 0, OUT_OF_MEMORY = 1 };      /* dnnl_status_t */
enum { F32 = 3, TAG_ANY = 1, TAG_DENSE = 2 }; /* dnnl_data_type_t; dnnl_format_tag_t */
/* kind of an engine; flags of a stream; mode of scratch memory; algorithm of a convolution */
enum { CPU = 1, IN_ORDER = 1, USER_SCRATCHPAD = 1, DIRECT = 1 };
enum { FORWARD_TRAINING = 64, FORWARD_INFERENCE = 96 }; /* dnnl_prop_kind_t */
/* dnnl_cpu_isa_t; dnnl_format_tag_t of images whose channels are in blocks of 16 or 8 */
enum { MAX_AVX2 = 7, BLOCKS_16 = 69, BLOCKS_8 = 93 };
#define TAG_BLOCKS (ts_cpu_isa() == TS_ISA_AVX512 ? BLOCKS_16 : BLOCKS_8)
/* indices of the arguments of a primitive; below, dnnl_query_t */
enum { ARG_X = 1, ARG_Y = 17, ARG_WEIGHT = 33, ARG_BIAS = 41, ARG_SCRATCHPAD = 80,
       ARG_GRAD_Y = 145, ARG_GRAD_WEIGHT = 161 };
enum { QUERY_NAME = 8, QUERY_X = 129, QUERY_WEIGHT = 131, QUERY_GRAD_WEIGHT = 132, QUERY_Y = 133,
       QUERY_GRAD_Y = 134, QUERY_SCRATCHPAD = 136 };

typedef struct ts_dnnl_library {
    const version *(*get_version)(void);
    int (*set_max_isa)(int isa);
    int (*engine_create)(void **engine, int kind, size_t index);
    int (*stream_create)(void **stream, void *engine, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*attr_create)(void **attr);
    int (*attr_set_scratchpad)(void *attr, int mode);
    int (*by_strides)(layout *of, int ndims, const int64_t *dims, int type, const int64_t *strides);
    int (*by_tag)(layout *of, int ndims, const int64_t *dims, int type, int tag);
    int (*submemory)(layout *of, const layout *parent, const int64_t *dims, const int64_t *offsets);
    int (*equal)(const layout *a, const layout *b);
    size_t (*size)(const layout *of);
    int (*forward)(convolution_desc *desc, int propagation, int algorithm, const layout *x,
                   const layout *weight, const layout *bias, const layout *y,
                   const int64_t *strides, const int64_t *dilates, const int64_t *before,
                   const int64_t *after);
    int (*backward_weight)(convolution_desc *desc, int algorithm, const layout *x,
                           const layout *weight, const layout *bias, const layout *y,
                           const int64_t *strides, const int64_t *dilates, const int64_t *before,
                           const int64_t *after);
    int (*describe)(void **primitive_desc, const convolution_desc *desc, void *attr, void *engine,
                    void *hint);
    int (*describe_reorder)(void **primitive_desc, const layout *from, void *from_engine,
                            const layout *to, void *to_engine, void *attr);
    int (*desc_destroy)(void *primitive_desc);
    const layout *(*query_layout)(void *primitive_desc, int what, int index);
    int (*query)(void *primitive_desc, int what, int index, void *result);
    int (*create)(void **primitive, void *primitive_desc);
    int (*destroy)(void *primitive);
    int (*execute)(void *primitive, void *stream, int count, const argument *arguments);
    int (*memory_create)(void **memory, const layout *of, void *engine, void *data);
    int (*memory_destroy)(void *memory);
    int (*get_threads)(void);     /* number of OpenMP threads of the calling thread */
    void (*set_threads)(int count);
    void *engine, *attr; /* the CPU's engine; attributes: the caller provides scratch memory */
    char why[160]; /* why the library cannot be used; "" if it can */
} ts_dnnl_library;

/** Valid after ts_dnnl_is_available() has returned true; `why` also after false. onednn_library.c
 *  lists the names of the functions. Those of type int return 0 (SUCCESS) or an error, except
 *  equal (1 or 0) and get_threads. */
extern ts_dnnl_library ts_dnnl;

/** Opens the library in the first call: the file that the environment variable TS_ONEDNN names
 *  ("0": none), by default libdnnl.so.2, or none in builds with AddressSanitizer or
 *  ThreadSanitizer. False if it cannot be opened or initialized, is not version 2, or lacks a
 *  function. */
bool ts_dnnl_is_available(void);

#endif
