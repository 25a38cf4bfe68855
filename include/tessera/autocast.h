/**
 * @file autocast.h
 * Mixed precision. A region is the code that runs between ts_autocast_enter() and
 * ts_autocast_exit(), or the rest of a block after TS_AUTOCAST. Inside a region, the AUTOCAST layer
 * casts the arguments of ops: matrix products run in bf16 or f16, and ops that are sensitive to
 * rounding run in f32. The program needs no casts.
 *
 *     {
 *         TS_AUTOCAST(TS_DEVICE_CPU, TS_BF16);
 *         logits = ts_keep(gpt_forward(model, x));     // linear, attention in bf16, softmax in f32
 *     }                                                 // end of the region
 *     TS_TRY(ts_backward(ts_cross_entropy(logits, y))); // in the dtypes of the forward calls
 *
 * A region applies to one thread and one backend's devices. Regions nest, and an inner region may
 * switch casts off. Parameters stay f32: autograd records their casts as ordinary ops, so their
 * gradients are f32. The cast of an f32 leaf that requires grad is cached until the outermost
 * region ends or the leaf is written. In-place and out= forms run in their arguments' dtypes.
 *
 * docs/mixed-precision.md lists the policy of each op.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_AUTOCAST_H
#define TESSERA_AUTOCAST_H

#include "dispatch.h"

TS_BEGIN_DECLS

/** A thread's autocast state for all backends, encoded in one number; 0: no casts. */
typedef uint32_t ts_autocast_state;

/** A region that is open; lives on the caller's stack. The fields are private. */
typedef struct ts_autocast_region {
    struct ts_autocast_region *outer;
    ts_keyset include, exclude;
    ts_autocast_state state;
    bool no_cache;
} ts_autocast_region;

/** Options of ts_autocast_enter_ex(); zero is default. */
typedef struct ts_autocast_opts {
    size_t size;    /**< sizeof(ts_autocast_opts) */
    bool no_cache;  /**< cast parameters again at each use */
} ts_autocast_opts;

/**
 * Opens a region in the calling thread.
 * @param region  must live until ts_autocast_exit()
 * @param device  the kind of device whose tensors are cast; the index does not matter
 * @param dtype   TS_BF16 or TS_F16; TS_DTYPE_NONE switches casts off inside an outer region
 *
 * Errors, after which no region is open: TS_ERR_DTYPE, TS_ERR_DEVICE for an unknown kind of device,
 * TS_ERR_NULL, TS_ERR_VALUE (opts).
 */
TS_API ts_status ts_autocast_enter(ts_autocast_region *region, ts_device device, ts_dtype dtype);
/** Like ts_autocast_enter(), with options. */
TS_API ts_status ts_autocast_enter_ex(ts_autocast_region *region, ts_device device, ts_dtype dtype,
                                      const ts_autocast_opts *opts);
/**
 * Closes the innermost region and restores the state before it. Errors, after which nothing has
 * changed: TS_ERR_STATE if `region` is not the calling thread's innermost region, TS_ERR_NULL.
 */
TS_API ts_status ts_autocast_exit(ts_autocast_region *region);

/** Opens a region for TS_AUTOCAST. If dtype or device is invalid, returns the error of
 *  ts_autocast_enter() but opens the region. In this region each op that has a policy fails with
 *  TS_ERR_STATE on tensors of this kind of device, or of all devices if device.backend is above 15.
 *  In-place and out= forms still run. */
TS_API ts_status ts_autocast_open(ts_autocast_region *region, ts_device device, ts_dtype dtype);
/** The rest of the block is a region. TS_AUTOCAST is a declaration, like TS_SCOPE, and cannot
 *  return an error: if dtype or device is invalid, ops fail as in ts_autocast_open(). */
#define TS_AUTOCAST(device, dtype)                                                                 \
    ts_autocast_region TS_CAT(ts_autocast_, __LINE__) __attribute__((cleanup(ts_autocast_exit)));  \
    ts_status TS_CAT(ts_autocast_opened_, __LINE__) __attribute__((unused)) =                      \
        ts_autocast_open(&TS_CAT(ts_autocast_, __LINE__), device, dtype)
/** The rest of the block runs without casts on this kind of device. */
#define TS_AUTOCAST_OFF(device) TS_AUTOCAST(device, TS_DTYPE_NONE)

/** dtype of the casts on a kind of device in the calling thread; TS_DTYPE_NONE without casts. */
TS_API ts_dtype ts_autocast_dtype(ts_device device);

/** The calling thread's state, for ts_autocast_enter_state() in another thread or when a forward
 *  pass is computed again. */
TS_API ts_autocast_state ts_autocast_get_state(void);
/** Opens a region with a state from ts_autocast_get_state(). TS_ERR_VALUE for a state from inside a
 *  TS_AUTOCAST region with an invalid dtype or device; TS_ERR_NULL. */
TS_API ts_status ts_autocast_enter_state(ts_autocast_region *region, ts_autocast_state state);

/* ------------------------------------------------------------------------------ the cache -- */

/** Counters of a thread's casts and of its cache of casts. */
typedef struct ts_autocast_stats {
    uint64_t casts; /**< casts computed so far */
    uint64_t hits;  /**< casts taken from the cache so far */
    int64_t cached; /**< casts in the cache now */
} ts_autocast_stats;
/** Returns the calling thread's counters. */
TS_API ts_autocast_stats ts_autocast_get_stats(void);
/** Empties the calling thread's cache of casts. */
TS_API void ts_autocast_clear_cache(void);

/* ---------------------------------------------------------------------------- extensions -- */

/** The cast that AUTOCAST applies to an op's floating arguments. It never casts f64. */
typedef enum ts_autocast_policy {
    TS_AUTOCAST_LOWER,  /**< cast to the region's dtype */
    TS_AUTOCAST_F32,    /**< cast to f32, unless the caller gives a dtype */
    TS_AUTOCAST_WIDEST, /**< cast to the promoted dtype of these arguments, f64 excluded */
    TS_AUTOCAST_KEEP    /**< not cast; the ops that a composite calls are not cast either */
} ts_autocast_policy;
/**
 * Sets the policy of an op and replaces its earlier policy. The op may be one of the library or of
 * a program, which may register it later.
 * @param out  receives a handle for ts_unregister(), which restores the old policy; may be NULL
 * Errors: TS_ERR_VALUE for a number that is not a policy, TS_ERR_REGISTRY (invalid op name),
 * TS_ERR_NULL, TS_ERR_MEMORY.
 */
TS_API ts_status ts_autocast_register(const char *op, ts_autocast_policy policy,
                                      ts_registration **out);

/**
 * True while AUTOCAST calls the op `to` to cast an argument. Lower layers receive this call like
 * any other; the call site in its frame is that of the op whose argument is cast.
 */
TS_API bool ts_autocast_is_casting(void);

TS_END_DECLS
#endif
