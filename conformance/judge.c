/**
 * @file judge.c  Runs the samples on one backend. In isolated mode each op runs in its own process,
 * which opens the backend itself, because a backend's threads do not exist in a forked child. A
 * crash ends one op only.
 */
// SPDX-License-Identifier: MIT
#include "conformance/judge.h"
#include "include/tessera/backend.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* -------------------------------------------------------------------------------- units ---- */

static bool chosen(const ts_choice *choice, const char *name)
{
    for (int i = 0; i < choice->count; i++)
        if (strcmp(choice->names[i], name) == 0)
            return true;
    return choice->count == 0;
}

int units_choose(const ts_judge_opts *opts, ts_unit *units, int capacity)
{
    int n = 0;
    for (int k = 0; k < ts_sample_family_count; k++) {
        const ts_sample_family *f = ts_sample_families[k];
        for (int first = 0, end; first < f->count; first = end) {
            const char *op = f->samples[first].op;
            for (end = first; end < f->count && strcmp(f->samples[end].op, op) == 0;)
                end++;
            if (!chosen(&opts->families, f->name) || !chosen(&opts->ops, op))
                continue;
            if (n < capacity)
                units[n] = (ts_unit){f, first, end - first};
            n++;
        }
    }
    return n;
}

/** Marks the selected ops and dtypes as listed in the card. */
static void units_list(ts_card *card, const ts_unit *units, int n, const ts_judge_opts *opts)
{
    for (int u = 0; u < n; u++)
        for (int i = 0; i < units[u].count; i++) {
            const ts_sample *s = &units[u].family->samples[units[u].first + i];
            int op = ts_op_by_name(s->op);
            if (op < 0)
                continue;
            uint16_t dtypes = s->dtypes ? s->dtypes : DT_FLOATS_;
            card->ops[op].family = units[u].family->name;
            card->ops[op].listed |= opts->dtypes ? dtypes & opts->dtypes : dtypes;
        }
}

/* ------------------------------------------------------------------------------- worker ---- */

/** State of one process in memory shared with its parent. */
typedef struct ts_post {
    bool begun, finished;
    ts_part part;
    ts_case at; /* pointers in it are valid in the parent, because a fork has the same addresses */
} ts_post;

/** State of this process, for the callbacks. */
static struct {
    ts_card *card;
    ts_post *post;
    ts_key key;
    uint64_t round_trips;
} mine;

static uint64_t round_trips(void)
{
    ts_backend_stats stats;
    if (mine.key == TS_KEY_CPU || mine.key == TS_KEY_META ||
        ts_backend_get_stats(mine.key, &stats) != TS_OK)
        return 0;
    return stats.round_trips;
}

static ts_cell *cell_of(const ts_case *c) { return &mine.card->ops[c->op].cells[c->dtype]; }

static void begins(void *ctx, const ts_case *c)
{
    (void)ctx;
    mine.post->at = *c;
    mine.post->begun = true;
}

static void calls(void *ctx, const ts_case *c, bool after)
{
    (void)ctx;
    uint64_t now = round_trips();
    /* only tests of values count, not the invalid calls of tests of errors */
    if (after && now != mine.round_trips && mine.post->part == PART_VALUES)
        atomic_fetch_add(&cell_of(c)->round_trips, 1);
    mine.round_trips = now;
}

static void passed(void *ctx, const ts_case *c)
{
    (void)ctx;
    atomic_fetch_add(&cell_of(c)->parts[mine.post->part].passed, 1);
}

static void failed(void *ctx, const ts_case *c, const char *text)
{
    (void)ctx;
    if (c->op < 0)
        return;
    atomic_fetch_add(&cell_of(c)->parts[mine.post->part].failed, 1);
    card_note(mine.card, c->op, c->dtype, mine.post->part, text);
}

static void unsupported(void *ctx, const ts_case *c, const char *text)
{
    (void)ctx;
    (void)text;
    atomic_fetch_add(&cell_of(c)->parts[mine.post->part].unsupported, 1);
}

/** Copies three numbers to the device and back and compares them. META has no values to compare. */
static ts_status round_trip(ts_device device)
{
    TS_SCOPE;
    static const float there[] = {1, -2, 3.5f};
    float back[3] = {0};
    ts_tensor *t = ts_to_device(ts_from_array(there, TS_F32, (int64_t[]){3}, 1), device);
    TS_TRY(t);
    if (on_meta(device))
        return TS_OK;
    TS_TRY(ts_copy_to(ts_to_device(t, TS_DEVICE_CPU), back, sizeof back));
    if (memcmp(there, back, sizeof back) != 0)
        return ts_error_set(TS_ERR_INTERNAL, "(1, -2, 3.5) came back from %s as (%g, %g, %g)",
                            ts_device_name(device), back[0], back[1], back[2]);
    return TS_OK;
}

static ts_status candidate_open(const ts_candidate *candidate, ts_card *card, ts_device *device)
{
    if (candidate->plugin) {
        ts_key key;
        TS_TRY(ts_backend_load(candidate->plugin, &key));
        *device = (ts_device){key, 0};
        snprintf(card->plugin, sizeof card->plugin, "%s", candidate->plugin);
    } else {
        TS_TRY(ts_device_open(candidate->name, device, NULL, 0));
    }
    TS_TRY(round_trip(*device));
    snprintf(card->backend, sizeof card->backend, "%s", ts_key_name(device->backend));
    snprintf(card->device, sizeof card->device, "%s", ts_device_name(*device));
    for (int op = 0; op < card->nops; op++)
        card->ops[op].rule = (uint8_t)ts_op_slot(op, device->backend);
    return TS_OK;
}

/** Opens the backend; the card receives the reason of a failure. */
static bool opened(const ts_candidate *candidate, ts_card *card, ts_device *device)
{
    ts_error_clear();
    if (candidate_open(candidate, card, device) == TS_OK)
        return true;
    snprintf(card->error, sizeof card->error, "%s%s%s", ts_error_message(),
             ts_error_hint()[0] ? "; " : "", ts_error_hint());
    return false;
}

static void work(ts_card *card, ts_post *post, const ts_unit *unit, ts_device device,
                 const ts_judge_opts *opts)
{
    static void (*const drive[])(const ts_sample_family *) = {
        ts_samples_values, ts_samples_gradients, ts_samples_bad_input};
    const ts_sample_family slice = {unit->family->name, unit->family->samples + unit->first,
                                    unit->count};
    mine.card = card;
    mine.post = post;
    mine.key = device.backend;
    sample_run = (ts_sample_run){.device = device, .dtypes = opts->dtypes, .brief = opts->brief,
                                 .begins = begins, .calls = calls,
                                 .passed = passed, .failed = failed, .unsupported = unsupported};
    for (int p = 0; p < PART_COUNT; p++) {
        post->part = (ts_part)p;
        if (!opts->parts || opts->parts >> p & 1)
            drive[p](&slice);
    }
}

/* -------------------------------------------------------------------------- processes ---- */

static bool judge_here(ts_card *card, const ts_candidate *candidate, const ts_judge_opts *opts,
                       const ts_unit *units, int n)
{
    ts_post post = {0};
    ts_device device;
    if (!opened(candidate, card, &device))
        return false;
    for (int u = 0; u < n; u++) {
        work(card, &post, &units[u], device, opts);
        if (opts->progress)
            opts->progress(opts->ctx, u + 1, n);
    }
    return true;
}

/** Describes how a child process ended, as text; "" if it finished its work. */
static void ending(int status, const ts_post *post, int timeout, char *text, size_t size)
{
    text[0] = 0;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        snprintf(text, size, "did not end within %d s", timeout);
    else if (WIFSIGNALED(status))
        snprintf(text, size, "crashed: %s", strsignal(WTERMSIG(status)));
    else if (!post->finished)
        snprintf(text, size, "ended the process with status %d", WEXITSTATUS(status));
}

/** Records the crash of a child process as a failure of the case that it ran. */
static void record_crash(ts_card *card, const ts_post *post, const ts_unit *unit, const char *how)
{
    const ts_sample *s = &unit->family->samples[unit->first];
    char text[FAILURE_TEXT];
    ts_case c;
    if (!sample_case(post->begun ? post->at.s : s, &c))
        return;
    const ts_op_description *info = c.info;
    if (post->begun)
        c = post->at;
    else
        c.dtype = (ts_dtype)__builtin_ctz(sample_dtypes(s) ? sample_dtypes(s) : 1);
    c.info = info;
    sample_text(text, sizeof text, &c, how);
    atomic_fetch_add(&card->ops[c.op].cells[c.dtype].parts[post->part].failed, 1);
    card_note(card, c.op, c.dtype, post->part, text);
}

/** Runs a unit in the child process (NULL: only opens the backend) and ends it with _exit(), so the
 * parent's exit handlers do not run. */
static _Noreturn void child(ts_card *card, ts_post *post, const ts_candidate *candidate,
                            const ts_unit *unit, const ts_judge_opts *opts)
{
    ts_device device;
    alarm((unsigned)opts->timeout);
    if (!opened(candidate, card, &device))
        _exit(3);
    if (unit)
        work(card, post, unit, device, opts);
    post->finished = true;
    _exit(0);
}

/** Opens the backend in a separate process to learn its name and whether it exists. */
static bool probe(ts_card *card, ts_post *post, const ts_candidate *candidate,
                  const ts_judge_opts *opts)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0)
        child(card, post, candidate, NULL, opts);
    if (pid < 0 || waitpid(pid, &status, 0) < 0) {
        snprintf(card->error, sizeof card->error, "no process could be started: %s",
                 strerror(errno));
        return false;
    }
    char how[128];
    ending(status, post, opts->timeout, how, sizeof how);
    if (how[0] && !card->error[0])
        snprintf(card->error, sizeof card->error, "while it was opened, the backend %s", how);
    return !how[0];
}

static bool judge_apart(ts_card *card, ts_post *posts, const ts_candidate *candidate,
                        const ts_judge_opts *opts, const ts_unit *units, int n)
{
    enum { JOBS_MOST = 256 };
    pid_t pids[JOBS_MOST] = {0};
    int owns[JOBS_MOST], running = 0, next = 0, done = 0;
    int jobs = opts->jobs < 1 ? 1 : opts->jobs > JOBS_MOST ? JOBS_MOST : opts->jobs;
    if (!probe(card, posts, candidate, opts))
        return false;
    sample_run = (ts_sample_run){.dtypes = opts->dtypes};
    fflush(NULL);
    while (done < n) {
        while (running < jobs && next < n) {
            int slot = 0;
            while (pids[slot])
                slot++;
            posts[slot] = (ts_post){0};
            pid_t pid = fork();
            if (pid == 0)
                child(card, &posts[slot], candidate, &units[next], opts);
            if (pid < 0) {
                if (running)
                    break; /* fork() may succeed once another child has ended */
                snprintf(card->error, sizeof card->error, "no process could be started: %s",
                         strerror(errno));
                return false;
            }
            pids[slot] = pid;
            owns[slot] = next++;
            running++;
        }
        int status;
        pid_t pid = waitpid(-1, &status, 0);
        if (pid < 0 && errno == EINTR)
            continue;
        int slot = 0;
        while (slot < jobs && pids[slot] != pid)
            slot++;
        if (pid < 0 || slot == jobs)
            continue;
        char how[128];
        ending(status, &posts[slot], opts->timeout, how, sizeof how);
        if (how[0])
            record_crash(card, &posts[slot], &units[owns[slot]], how);
        pids[slot] = 0;
        running--;
        done++;
        if (opts->progress)
            opts->progress(opts->ctx, done, n);
    }
    return true;
}

bool judge(ts_card *card, const ts_candidate *candidate, const ts_judge_opts *opts)
{
    int n = units_choose(opts, NULL, 0);
    ts_unit *units = calloc((size_t)n + 1, sizeof *units);
    size_t bytes = 256 * sizeof(ts_post);
    ts_post *posts = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    bool good = units && posts != MAP_FAILED;
    if (!good) {
        snprintf(card->error, sizeof card->error, "out of memory");
    } else {
        units_choose(opts, units, n);
        units_list(card, units, n, opts);
        good = opts->isolate ? judge_apart(card, posts, candidate, opts, units, n)
                             : judge_here(card, candidate, opts, units, n);
    }
    if (posts != MAP_FAILED)
        munmap(posts, bytes);
    free(units);
    return good;
}
