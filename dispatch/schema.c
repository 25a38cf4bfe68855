/** @file schema.c  Parser of schema strings. */
// SPDX-License-Identifier: MIT
#include "dispatch/op.h"

#include <string.h>

/* isalnum() depends on the program's locale */
static const char in_names[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.";

/** Length of the name at the start of text; 0 if there is none. */
static size_t name_length(const char *text)
{
    return *text >= '0' && *text <= '9' ? 0 : strspn(text, in_names);
}

typedef struct cursor {
    const char *text, *p;
} cursor;

static ts_status malformed(const cursor *c, const char *expected)
{
    return ts_error_set(TS_ERR_FORMAT, "argument 'schema': expected %s at column %d, got '%s'",
                        expected, (int)(c->p - c->text) + 1, c->text);
}
static void skip_blanks(cursor *c)
{
    while (*c->p == ' ')
        c->p++;
}
/** Skips blanks and then `word`; false if something else comes there. A word of letters must be a
 *  whole name. */
static bool take(cursor *c, const char *word)
{
    skip_blanks(c);
    size_t n = strlen(word);
    if (strncmp(c->p, word, n) != 0)
        return false;
    if (name_length(word) && strspn(c->p + n, in_names))
        return false;
    c->p += n;
    return true;
}
bool ts_is_op_name(const char *text)
{
    size_t n = name_length(text);
    return n && !text[n] && n < sizeof((ts_schema *)NULL)->name;
}
static bool identifier(cursor *c, char *out, size_t size)
{
    skip_blanks(c);
    size_t n = name_length(c->p);
    if (n == 0 || n >= size)
        return false;
    memcpy(out, c->p, n);
    out[n] = 0;
    c->p += n;
    return true;
}

static const struct {
    const char *word;
    uint16_t kinds;
} types[] = {
    {"Tensor", 1 << TS_TAG_TENSOR},
    {"Scalar", 1 << TS_TAG_BOOL | 1 << TS_TAG_INT | 1 << TS_TAG_FLOAT},
    {"int", 1 << TS_TAG_INT},
    {"float", 1 << TS_TAG_FLOAT},
    {"bool", 1 << TS_TAG_BOOL},
    {"dtype", 1 << TS_TAG_DTYPE},
    {"device", 1 << TS_TAG_DEVICE},
    {"str", 1 << TS_TAG_STRING},
};

/** type := alternative ('|' alternative)* ['[]'] ['?'] ['(' letter '!' ')'] */
static ts_status type(cursor *c, ts_param *param)
{
    param->kinds = 0;
    do {
        int i = 0;
        while (i < TS_COUNTOF(types) && !take(c, types[i].word))
            i++;
        if (i == TS_COUNTOF(types))
            return malformed(c, "a type (Tensor, Scalar, int, float, bool, dtype, device, str)");
        param->kinds |= types[i].kinds;
    } while (take(c, "|"));
    if (take(c, "[]")) {
        if (param->kinds == 1 << TS_TAG_TENSOR)
            param->kinds = 1 << TS_TAG_TENSORS;
        else if (param->kinds == 1 << TS_TAG_INT)
            param->kinds = 1 << TS_TAG_INTS;
        else
            return malformed(c, "Tensor or int before []");
    }
    param->optional = take(c, "?");
    if (*c->p == '(') {
        if (!(c->p[1] >= 'a' && c->p[1] <= 'z' && c->p[2] == '!' && c->p[3] == ')'))
            return malformed(c, "a write mark such as (a!)");
        c->p += 4;
        param->written = true;
    }
    return TS_OK;
}

ts_status ts_schema_parse(const char *text, ts_schema *s)
{
    cursor c = {text, text};
    memset(s, 0, sizeof *s);
    if (!identifier(&c, s->name, sizeof s->name))
        return malformed(&c, "a name of at most 47 characters");
    if (!take(&c, "("))
        return malformed(&c, "'('");
    if (!take(&c, ")")) {
        do {
            if (s->nargs == TS_MAX_ARGS)
                return malformed(&c, "at most 16 arguments");
            ts_param *param = &s->args[s->nargs];
            TS_TRY(type(&c, param));
            if (!identifier(&c, param->name, sizeof param->name))
                return malformed(&c, "an argument name of at most 23 characters");
            for (int i = 0; i < s->nargs; i++)
                if (strcmp(s->args[i].name, param->name) == 0)
                    return malformed(&c, "argument names that differ");
            s->nargs++;
        } while (take(&c, ","));
        if (!take(&c, ")"))
            return malformed(&c, "',' or ')'");
    }
    if (!take(&c, "->"))
        return malformed(&c, "'->'");
    if (take(&c, "Tensor")) {
        s->nrets = 1;
    } else if (take(&c, "(")) {
        if (!take(&c, ")")) {
            do {
                char name[24]; /* a name is documentation; calls pass arguments by position */
                if (!take(&c, "Tensor"))
                    return malformed(&c, "Tensor");
                take(&c, "?"); /* an optional result; the first result is never optional */
                identifier(&c, name, sizeof name);
                if (s->nrets == TS_MAX_RETS)
                    return malformed(&c, "at most 4 results");
                s->nrets++;
            } while (take(&c, ","));
            if (!take(&c, ")"))
                return malformed(&c, "',' or ')'");
        }
    } else {
        return malformed(&c, "Tensor or (...)");
    }
    skip_blanks(&c);
    return *c.p ? malformed(&c, "the end") : TS_OK;
}
