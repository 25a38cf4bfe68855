/** @file program.c  Helpers of programs: C locale, strict parsing of integers and words,
 *  environment variables, command lines. */
// SPDX-License-Identifier: MIT
#include "include/tessera/program.h"

#include <errno.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/error.h"
#include "include/tessera/check.h"

/* newlocale() of "C" returns a static object of the C library: it neither allocates nor fails. */
void *ts_c_locale_enter(void) { return uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0)); }

void ts_c_locale_leave(void **previous)
{
    if (previous)
        uselocale((locale_t)*previous);
}

bool ts_read_int(const char *text, int64_t least, int64_t most, int64_t *value)
{
    bool minus = *text == '-';
    int64_t n = 0;
    const char *at = text + minus;
    for (; *at >= '0' && *at <= '9'; at++) /* n is negative, since -INT64_MIN does not fit */
        if (__builtin_mul_overflow(n, 10, &n) || __builtin_sub_overflow(n, *at - '0', &n))
            return false;
    if (*at || at == text + minus || (!minus && n == INT64_MIN))
        return false;
    n = minus ? n : -n;
    if (n < least || n > most)
        return false;
    *value = n;
    return true;
}

int ts_word_index(const char *list, char separator, const char *word)
{
    const char separators[] = {separator, 0};
    size_t length = strlen(word);
    int index = 0;
    for (const char *p = list; *p; p += strcspn(p, separators), p += *p != 0, index++)
        if (strcspn(p, separators) == length && strncmp(p, word, length) == 0)
            return index;
    return -1;
}

ts_status ts_parse_int(const char *name, const char *text, int64_t least, int64_t most,
                       int64_t *value)
{
    char range[64];
    TS_TRY(TS_CHECK_POINTERS(name, text, value));
    if (ts_read_int(text, least, most, value))
        return TS_OK;
    snprintf(range, sizeof range, most == INT64_MAX ? "of at least %lld" : "from %lld to %lld",
             (long long)least, (long long)most);
    return ts_fail_op(TS_ERR_VALUE, name, NULL, NULL, "expected a whole number %s, got '%.200s'",
                      range, text);
}

/* ---------------------------------------------------------------------- command lines ---- */

static bool is_option(const ts_argument *a) { return strncmp(a->name, "--", 2) == 0; }

static const char *base_name(const char *path)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    return slash ? slash + 1 : path && *path ? path : "program";
}

/** A user's text with control characters escaped. */
#define SHOWN(text) ts_escape_text((char[400]){0}, 400, text)

/** Prints an argument as the usage line shows it: "--steps N", "--resume" or "FILE". */
static void print_form(FILE *out, const ts_argument *a)
{
    fputs(a->name, out);
    if (is_option(a) && !a->flag)
        fprintf(out, " %s", a->value    ? a->value
                            : a->number ? "N"
                            : a->one_of ? a->one_of
                                        : "TEXT");
}

static void print_usage(FILE *out, const char *program, const ts_argument *arguments, int n)
{
    fprintf(out, "usage: %s", SHOWN(program));
    for (int i = 0; i < n; i++) {
        fputs(arguments[i].required ? " " : " [", out);
        print_form(out, &arguments[i]);
        fputs(arguments[i].required ? "" : "]", out);
    }
    fputs(" [--help]\n", out);
}

static void print_help(const char *program, const char *about, const ts_argument *arguments, int n)
{
    print_usage(stdout, program, arguments, n);
    printf("\n%s\n", about);
    for (int i = 0; i < n; i++) {
        const ts_argument *a = &arguments[i];
        fputs("  ", stdout);
        print_form(stdout, a);
        printf("\n        %s", a->help);
        if (!is_option(a) && a->one_of)
            printf(": %s", a->one_of);
        if (a->number && a->most == INT64_MAX)
            printf("; at least %lld", (long long)a->least);
        else if (a->number)
            printf("; %lld to %lld", (long long)a->least, (long long)a->most);
        if (a->number && !a->required)
            printf(", default %lld", (long long)*a->number);
        else if (a->text && *a->text)
            printf("; default %s", SHOWN(*a->text));
        fputs("\n", stdout);
    }
    fputs("  --help\n        print this help\n", stdout);
}

int ts_variable_choice(const char *name, const char *one_of)
{
    const char *value = name ? getenv(name) : NULL;
    if (!value || !*value || !one_of)
        return -1;
    int index = ts_word_index(one_of, '|', value);
    if (index < 0)
        ts_log_write("warning", "%s: expected %s, got '%.200s'; the variable is ignored", name,
                     one_of, value);
    return index;
}

/** Checks value and stores it at a->number or a->text. TS_ERR_VALUE. */
static ts_status set(const ts_argument *a, const char *value)
{
    if (a->number)
        return ts_parse_int(a->name, value, a->least, a->most, a->number);
    if (!*value || (a->one_of && ts_word_index(a->one_of, '|', value) < 0))
        return ts_fail_op(TS_ERR_VALUE, a->name, NULL, NULL, "expected %s, got '%.200s'",
                          a->one_of ? a->one_of : "a text", value);
    *a->text = value;
    return TS_OK;
}

/** The row of the option in `word`, or NULL. *value: the text after "=", or NULL. */
static const ts_argument *find(const char *word, const ts_argument *arguments, int n,
                               const char **value)
{
    size_t length = strcspn(word, "=");
    *value = word[length] ? word + length + 1 : NULL;
    for (int i = 0; i < n; i++)
        if (is_option(&arguments[i]) && strlen(arguments[i].name) == length &&
            strncmp(word, arguments[i].name, length) == 0)
            return &arguments[i];
    return NULL;
}

/** The next positional argument at or after row *at, or NULL; advances *at past it. */
static const ts_argument *next_word(const ts_argument *arguments, int n, int *at)
{
    while (*at < n && is_option(&arguments[*at]))
        ++*at;
    return *at < n ? &arguments[(*at)++] : NULL;
}

/** Parses argv and stores the values where the rows of `arguments` say. Sets bit i of *seen if row
 *  i was given. TS_ERR_VALUE; the message names the argument. */
static ts_status parse(int argc, char **argv, const ts_argument *arguments, int n, uint64_t *seen)
{
    int words = 0;
    bool options = true;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i], *value = word;
        const ts_argument *a;
        if (options && strcmp(word, "--") == 0) {
            options = false;
            continue;
        }
        if (options && word[0] == '-' && word[1]) {
            a = find(word, arguments, n, &value);
            if (!a)
                return ts_error_set(TS_ERR_VALUE, "unknown option '%.200s'", word);
            if (a->flag && value)
                return ts_fail_op(TS_ERR_VALUE, a->name, NULL, NULL,
                                  "expected no value, got '%.200s'", value);
            if (!a->flag && !value) {
                value = i + 1 < argc ? argv[++i] : "--";
                if (strncmp(value, "--", 2) == 0)
                    return ts_fail_op(TS_ERR_VALUE, a->name, NULL, NULL,
                                      "expected a value, got %.200s",
                                      value[2] ? value : "none");
            }
        } else if (!(a = next_word(arguments, n, &words))) {
            return ts_error_set(TS_ERR_VALUE, "unexpected argument '%.200s'", word);
        }
        *seen |= (uint64_t)1 << (a - arguments);
        if (a->flag)
            *a->flag = true;
        else
            TS_TRY(set(a, value));
    }
    for (int i = 0; i < n; i++)
        if (arguments[i].required && !(*seen >> i & 1))
            return ts_fail_op(TS_ERR_VALUE, arguments[i].name, NULL, NULL,
                              "expected a value, got none");
    return TS_OK;
}

bool ts_program_begin(int argc, char **argv, const char *about, const ts_argument *arguments,
                      int n, int *status)
{
    uint64_t seen = 0;
    if (status)
        *status = 2;
    if (ts_check_strings(TS_CHECK_HERE, "argv", "argc", (const char *const *)argv, argc) != TS_OK ||
        TS_CHECK_POINTERS(argv, about, status) != TS_OK ||
        TS_CHECK_VALUE(n, n <= 64, "at most 64 arguments") != TS_OK ||
        TS_CHECK_LIST(arguments, n) != TS_OK)
        return false;
    for (int i = 0; i < n; i++) {
        const ts_argument *a = &arguments[i];
        int targets = (a->flag != NULL) + (a->number != NULL) + (a->text != NULL);
        if (TS_CHECK_POINTERS(a->name, a->help) != TS_OK)
            return false;
        if (targets != 1) {
            ts_check_refuse(TS_CHECK_HERE, "arguments",
                            "one of flag, number and text in each entry", ts_scalar_int(targets));
            return false;
        }
    }
    const char *program = base_name(argc ? argv[0] : NULL);
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0) {
            print_help(program, about, arguments, n);
            *status = ts_program_end(0);
            return false;
        }
    if (parse(argc, argv, arguments, n, &seen) == TS_OK)
        return true;
    fprintf(stderr, "%s: %s\n", SHOWN(program), ts_error_message());
    print_usage(stderr, program, arguments, n);
    return false;
}

int ts_program_end(int status)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    fprintf(stderr, "error: cannot write to standard output%s%s\n", errno ? ": " : "",
            errno ? strerror(errno) : "");
    return status ? status : 1;
}
