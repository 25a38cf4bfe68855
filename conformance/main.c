/** @file main.c  ts-conformance: command line, progress, output. */
// SPDX-License-Identifier: MIT
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "conformance/judge.h"

enum { EXIT_GOOD, EXIT_WRONG, EXIT_USAGE, CANDIDATES_MOST = 16 };

static const char usage[] =
    "usage: ts-conformance [--backend NAME | --plugin PATH]... [options]\n"
    "\n"
    "Tests every operator's samples on a backend. Compares results with independent references,\n"
    "gradients with those of the CPU in f64, and errors of invalid calls with the CPU's.\n"
    "\n"
    "backend\n"
    "  --backend NAME    a device: cpu, meta, cuda:0, ...\n"
    "  --plugin PATH     the backend in a shared library\n"
    "samples (each option may be repeated, or list names separated by commas)\n"
    "  --op NAME         operators\n"
    "  --family NAME     families of operators\n"
    "  --dtype NAME      f64 f32 bf16 f16 i64 i32 u8 bool\n"
    "  --part NAME       values, gradients, errors\n"
    "  --brief           test values in one size and two layouts, and the large cases; for slow\n"
    "                    memory checkers\n"
    "  --list            print the selected samples and exit\n"
    "processes\n"
    "  --isolate         run each operator in its own process, so a crash ends only that one;\n"
    "                    the default except for CUDA\n"
    "  --no-isolate      run all operators in this process, for debuggers\n"
    "  --jobs N          processes at a time (1); isolated only\n"
    "  --timeout S       seconds that an operator may take (300); isolated only\n"
    "  --strict          count the verdicts unsupported and fallback as failed\n"
    "output\n"
    "  --card            print the verdict of every operator and dtype before the totals\n"
    "  --json FILE       all counts and failures\n"
    "  --tsv FILE        one line per backend, operator and dtype\n"
    "  --matrix FILE     a page of Markdown: operators, dtypes, backends\n"
    "  --quiet           print no failures and no tables\n"
    "  --version, --help\n"
    "\n"
    "Status: 0 nothing failed, 1 something failed, "
    "2 wrong usage or a backend that cannot be opened.\n";

typedef struct settings {
    ts_candidate candidates[CANDIDATES_MOST];
    int ncandidates;
    ts_judge_opts judge;
    int isolate; /* 1 yes, -1 no, 0 the default: yes except for CUDA */
    bool strict, list, card, quiet;
    const char *json, *tsv, *matrix;
} settings;

/* ----------------------------------------------------------------------------- options ---- */

static bool wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));
static bool wrong(const char *format, ...)
{
    va_list args;
    char text[512], shown[sizeof text];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "ts-conformance: %s; see --help\n",
            ts_escape_text(shown, sizeof shown, text));
    return false;
}

static bool is_family(const char *name)
{
    for (int k = 0; k < ts_sample_family_count; k++)
        if (strcmp(ts_sample_families[k]->name, name) == 0)
            return true;
    return false;
}

static bool is_op(const char *name)
{
    for (int k = 0; k < ts_sample_family_count; k++)
        for (int i = 0; i < ts_sample_families[k]->count; i++)
            if (strcmp(ts_sample_families[k]->samples[i].op, name) == 0)
                return true;
    return false;
}

/** Index i below count with at(i) equal to name; -1 if there is none. */
static int find(const char *name, const char *(*at)(int i), int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(at(i), name) == 0)
            return i;
    return -1;
}

static const char *dtype_at(int i) { return ts_dtype_name((ts_dtype)i); }
static const char *part_at(int i) { return part_name((ts_part)i); }

/** Parses the comma-separated value of --op, --family, --dtype or --part into s. Splits names in
 * place and keeps pointers into it. False after a message. */
static bool take(settings *s, const char *option, char *names)
{
    char *rest = NULL;
    for (char *name = strtok_r(names, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
        bool op = strcmp(option, "op") == 0, family = strcmp(option, "family") == 0;
        if (op || family) {
            ts_choice *choice = op ? &s->judge.ops : &s->judge.families;
            if (!(op ? is_op(name) : is_family(name)))
                return wrong("the samples have no %s '%s', see --list",
                             op ? "operator" : "family", name);
            if (choice->count == CHOICES_MOST)
                return wrong("--%s takes at most %d names", option, CHOICES_MOST);
            choice->names[choice->count++] = name;
            continue;
        }
        bool dtype = strcmp(option, "dtype") == 0;
        int i = dtype ? find(name, dtype_at, TS_DTYPE_COUNT) : find(name, part_at, PART_COUNT);
        if (i < 0)
            return wrong("--%s: unknown name '%s'", option, name);
        if (dtype)
            s->judge.dtypes |= TS_DT(i);
        else
            s->judge.parts |= (uint8_t)(1 << i);
    }
    return true;
}

static bool number(const char *option, const char *text, int *value)
{
    int64_t n;
    if (ts_parse_int(option, text, 1, 1000000, &n) != TS_OK)
        return wrong("--%s", ts_error_message());
    *value = (int)n;
    return true;
}

static const struct option options[] = {
    {"backend", required_argument, NULL, 0}, {"plugin", required_argument, NULL, 0},
    {"op", required_argument, NULL, 0},      {"family", required_argument, NULL, 0},
    {"dtype", required_argument, NULL, 0},   {"part", required_argument, NULL, 0},
    {"list", no_argument, NULL, 0},          {"isolate", no_argument, NULL, 0},
    {"no-isolate", no_argument, NULL, 0},    {"jobs", required_argument, NULL, 0},
    {"timeout", required_argument, NULL, 0}, {"strict", no_argument, NULL, 0},
    {"card", no_argument, NULL, 0},          {"json", required_argument, NULL, 0},
    {"tsv", required_argument, NULL, 0},     {"matrix", required_argument, NULL, 0},
    {"quiet", no_argument, NULL, 0},         {"version", no_argument, NULL, 0},
    {"help", no_argument, NULL, 0},          {"brief", no_argument, NULL, 0},
    {0}};

/** Parses the command line. False if the program must end with *status. */
static bool parse(int argc, char **argv, settings *s, int *status)
{
    int index, c;
    *status = EXIT_USAGE;
    while ((c = getopt_long(argc, argv, "", options, &index)) != -1) {
        if (c == '?')
            return false; /* getopt printed the reason */
        const char *name = options[index].name;
        bool good = true;
        if (strcmp(name, "help") == 0 || strcmp(name, "version") == 0) {
            printf("%s%s", name[0] == 'h' ? usage : ts_version_string(),
                   name[0] == 'h' ? "" : "\n");
            *status = ts_program_end(EXIT_GOOD);
            return false;
        } else if (strcmp(name, "backend") == 0 || strcmp(name, "plugin") == 0) {
            if (s->ncandidates == CANDIDATES_MOST)
                return wrong("at most %d backends at a time", CANDIDATES_MOST);
            s->candidates[s->ncandidates++] =
                name[0] == 'b' ? (ts_candidate){.name = optarg} : (ts_candidate){.plugin = optarg};
        } else if (strcmp(name, "op") == 0 || strcmp(name, "family") == 0 ||
                   strcmp(name, "dtype") == 0 || strcmp(name, "part") == 0) {
            good = take(s, name, optarg);
        } else if (strcmp(name, "jobs") == 0 || strcmp(name, "timeout") == 0) {
            good = number(name, optarg, name[0] == 'j' ? &s->judge.jobs : &s->judge.timeout);
        } else if (strcmp(name, "isolate") == 0 || strcmp(name, "no-isolate") == 0) {
            s->isolate = name[0] == 'i' ? 1 : -1;
        } else if (strcmp(name, "brief") == 0) {
            s->judge.brief = true;
        } else if (strcmp(name, "json") == 0) {
            s->json = optarg;
        } else if (strcmp(name, "tsv") == 0) {
            s->tsv = optarg;
        } else if (strcmp(name, "matrix") == 0) {
            s->matrix = optarg;
        } else {
            *(strcmp(name, "list") == 0 ? &s->list : strcmp(name, "strict") == 0 ? &s->strict
              : strcmp(name, "card") == 0 ? &s->card : &s->quiet) = true;
        }
        if (!good)
            return false;
    }
    if (optind < argc)
        return wrong("unexpected argument '%s'", argv[optind]);
    if (!s->ncandidates && !s->list)
        return wrong("name a backend with --backend, or its library with --plugin");
    return true;
}

/* -------------------------------------------------------------------------------- list ---- */

static int list(const settings *s)
{
    int n = units_choose(&s->judge, NULL, 0);
    ts_unit *units = calloc((size_t)n + 1, sizeof *units);
    if (!units)
        return EXIT_USAGE;
    units_choose(&s->judge, units, n);
    for (int u = 0; u < n; u++)
        for (int i = 0; i < units[u].count; i++) {
            const ts_sample *sample = &units[u].family->samples[units[u].first + i];
            uint16_t dtypes = sample->dtypes ? sample->dtypes : DT_FLOATS_;
            if (s->judge.dtypes && !(dtypes &= s->judge.dtypes))
                continue;
            printf("%s\t%s\t%s\t", units[u].family->name, sample->op, sample->name);
            for (int d = 0, any = 0; d < TS_DTYPE_COUNT; d++)
                if (dtypes >> d & 1)
                    printf("%s%s", any++ ? " " : "", ts_dtype_name((ts_dtype)d));
            printf("\n");
        }
    free(units);
    return EXIT_GOOD;
}

/* ----------------------------------------------------------------------------- judging ---- */

/** State of print_progress(), which prints new failures above the progress line. printed: number of
 *  failures printed so far. */
typedef struct printing {
    ts_card *card;
    ts_progress *progress;
    int printed;
    bool quiet;
} printing;

static void print_progress(void *ctx, int done, int all)
{
    printing *t = ctx;
    (void)done;
    (void)all;
    for (; t->printed < t->card->nfailures && t->printed < FAILURES_MOST; t->printed++) {
        if (t->quiet)
            continue;
        if (t->progress && isatty(STDERR_FILENO))
            fprintf(stderr, "\r\033[K");
        printf("FAIL %s\n", t->card->failures[t->printed].text);
        fflush(stdout);
    }
    if (t->progress)
        ts_progress_step(t->progress, TS_NONE);
}

/** True if ops run in their own processes. Not the default for CUDA, whose context does not survive
 * a fork and is slow to create in each child. */
static bool isolates(const settings *s, const ts_candidate *c)
{
    return s->isolate ? s->isolate > 0 : !(c->name && strncasecmp(c->name, "cuda", 4) == 0);
}

static int judge_one(const settings *s, const ts_candidate *c, ts_card *card)
{
    ts_judge_opts opts = s->judge;
    printing t = {.card = card, .quiet = s->quiet};
    const char *who = c->name ? c->name : c->plugin;
    if (!s->quiet && isatty(STDERR_FILENO)) {
        ts_progress_opts look = {.size = sizeof look, .label = who, .item_unit = "operators"};
        t.progress = ts_progress_new(units_choose(&opts, NULL, 0), &look);
    }
    opts.isolate = isolates(s, c);
    opts.progress = print_progress;
    opts.ctx = &t;
    bool good = judge(card, c, &opts);
    if (t.progress)
        ts_progress_end(t.progress);
    ts_progress_free(t.progress);
    if (!good) {
        char shown[400];
        fprintf(stderr, "ts-conformance: %s cannot be tested: %s\n",
                ts_escape_text(shown, sizeof shown, who), card->error);
        return EXIT_USAGE;
    }
    if (s->card && !s->quiet)
        card_print_ops(card, stdout);
    if (!s->quiet) {
        card_print_totals(card, stdout);
        printf("%s: %s\n\n", card->device,
               card_is_good(card, s->strict) ? "conforms" : "does not conform");
        fflush(stdout);
    }
    return card_is_good(card, s->strict) ? EXIT_GOOD : EXIT_WRONG;
}

/** Arguments of write_cards(): the cards of a run, and the function that writes them. */
typedef struct writing {
    ts_card *const *cards;
    int count;
    ts_status (*write)(ts_card *const *cards, int count, FILE *out);
} writing;

static ts_status write_cards(FILE *out, void *ctx)
{
    const writing *w = ctx;
    return w->write(w->cards, w->count, out);
}

static bool write_file(const char *path, ts_card *const *cards, int count,
                       ts_status (*write)(ts_card *const *cards, int count, FILE *out))
{
    writing w = {cards, count, write};
    if (!path || ts_replace_file("ts-conformance", path, write_cards, &w) == TS_OK)
        return true;
    fprintf(stderr, "%s\n", ts_error_message());
    return false;
}

int main(int argc, char **argv)
{
    settings s = {.judge = {.jobs = 1, .timeout = 300}};
    ts_card *cards[CANDIDATES_MOST] = {0};
    int status, worst = EXIT_GOOD, judged = 0;
    if (!parse(argc, argv, &s, &status))
        return status;
    if (s.list)
        return ts_program_end(list(&s));
    for (int i = 0; i < s.ncandidates; i++) {
        ts_card *card = card_new();
        if (!card) {
            fprintf(stderr, "ts-conformance: out of memory\n");
            return EXIT_USAGE;
        }
        status = judge_one(&s, &s.candidates[i], card);
        worst = status > worst ? status : worst;
        if (status == EXIT_USAGE)
            card_free(card);
        else
            cards[judged++] = card;
    }
    if (!write_file(s.json, cards, judged, cards_write_json) ||
        !write_file(s.tsv, cards, judged, cards_write_tsv) ||
        !write_file(s.matrix, cards, judged, cards_write_matrix))
        worst = EXIT_USAGE;
    for (int i = 0; i < judged; i++)
        card_free(cards[i]);
    return ts_program_end(worst);
}
