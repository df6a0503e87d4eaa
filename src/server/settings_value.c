/* settings_value.c - the value of one knob: parsed, checked, stored, printed.
 *
 * A knob knows the offset and the type of its field in struct settings; the functions here are the
 * only ones that use them. Texts are owned by the settings and replaced as a whole. */
#include "base/mem.h"
#include "server/settings_impl.h"

#include <math.h>
#include <stdlib.h>
#include <strings.h>

/* A parsed value; which member counts follows from the kind of its knob. */
struct knob_value {
    int64_t i;
    double f;
    bool b;
    char *text;
};

/* The field of k in s. Its type follows from k->kind. */
static void *field_of(const struct settings *s, const struct knob *k) { return (char *)s + k->at; }

/* The name says that a number without a unit is milliseconds. */
static bool is_in_ms(const struct knob *k) { return str_ends(str_c(k->name), STR("-ms")); }

/* Units and switches are case-insensitive. */
static bool is_word(struct str s, const char *word)
{
    return s.n == strlen(word) && strncasecmp(s.p, word, s.n) == 0;
}

/* Splits "1.5GiB" into 1.5 and "GiB". */
static bool split_number(struct str s, double *v, struct str *unit)
{
    size_t n = 0;

    while (n < s.n &&
           ((s.p[n] >= '0' && s.p[n] <= '9') || s.p[n] == '.' || (n == 0 && s.p[n] == '-')))
        n++;
    *unit = str_trim(str_skip(s, n));
    return n > 0 && str_to_f64(str_take(s, n), v);
}

/* K, M, G and T are powers of 1024, with or without "iB" or "B". */
bool knob_parse_size(struct str s, double *out)
{
    static const char letters[] = "KMGT";
    struct str unit;
    const char *at;

    if (!split_number(s, out, &unit)) return false;
    if (unit.n == 0 || is_word(unit, "B")) return *out == trunc(*out);
    at = strchr(letters, unit.p[0] & ~0x20);
    if (!at) return false;
    unit = str_skip(unit, 1);
    if (unit.n && !is_word(unit, "iB") && !is_word(unit, "B") && !is_word(unit, "i")) return false;
    *out = floor(ldexp(*out, 10 * (int)(at - letters + 1)));
    return true;
}

/* Into milliseconds. */
static bool parse_time(const struct knob *k, struct str s, double *ms)
{
    static const struct {
        const char *unit;
        double ms;
    } units[] = {
        { "ms", 1 }, { "s", 1e3 }, { "m", 60e3 }, { "min", 60e3 }, { "h", 3600e3 },
    };
    struct str unit;

    if (!split_number(s, ms, &unit)) return false;
    if (unit.n == 0) {
        if (!is_in_ms(k)) *ms *= 1e3;
        return true;
    }
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (is_word(unit, units[i].unit)) {
            *ms *= units[i].ms;
            return true;
        }
    return false;
}

static bool parse_bool(struct str s, bool *out)
{
    static const char *const yes[] = { "true", "yes", "on", "1" };
    static const char *const no[] = { "false", "no", "off", "0" };

    for (size_t i = 0; i < 4; i++) {
        if (is_word(s, yes[i])) return *out = true, true;
        if (is_word(s, no[i])) return *out = false, true;
    }
    return false;
}

/* choices: "a|b|c" */
static bool is_choice(const char *choices, struct str word)
{
    struct str rest = str_c(choices);

    while (rest.n) {
        ptrdiff_t bar = str_find(rest, STR("|"));
        struct str one = bar < 0 ? rest : str_take(rest, (size_t)bar);
        if (str_eq(one, word)) return true;
        rest = str_skip(rest, one.n + 1);
    }
    return false;
}

/* list: words separated by commas; an empty list is allowed. */
static bool is_subset(const char *choices, struct str list)
{
    while (list.n) {
        ptrdiff_t comma = str_find(list, STR(","));
        struct str one = comma < 0 ? list : str_take(list, (size_t)comma);
        if (!is_choice(choices, str_trim(one))) return false;
        list = str_skip(list, one.n + 1);
    }
    return true;
}

/* A limit in the unit a user would write. */
static void write_limit(struct buf *out, const struct knob *k, double v)
{
    if (k->kind == KNOB_TIME)
        buf_printf(out, "%.10g%s", is_in_ms(k) ? v : v / 1e3, is_in_ms(k) ? " ms" : " s");
    else if (k->kind == KNOB_SIZE && v >= 1024 && fmod(v, 1024) == 0) {
        int i = -1;
        while (v >= 1024 && fmod(v, 1024) == 0 && i < 3) v /= 1024, i++;
        buf_printf(out, "%.10g%c", v, "KMGT"[i]);
    } else buf_printf(out, "%.10g", v);
}

/* For the message of a refused value. */
void knob_allowed(const struct knob *k, struct buf *out)
{
    static const char *const words[] = {
        [KNOB_INT] = "an integer",
        [KNOB_SIZE] = "a size such as 65536, 64K, 16M, 1.5GiB",
        [KNOB_FLOAT] = "a number",
        [KNOB_TIME] = "a time such as 500ms, 30s, 2m",
    };

    switch (k->kind) {
    case KNOB_BOOL: buf_puts(out, "true or false"); return;
    case KNOB_CHOICE:
    case KNOB_SET: {
        buf_puts(out, k->kind == KNOB_SET ? "any of " : "one of ");
        for (const char *c = k->choices; *c; c++) {
            if (*c == '|') buf_puts(out, ", ");
            else buf_putc(out, *c);
        }
        return;
    }
    case KNOB_TEXT: buf_puts(out, "a text without NUL bytes"); return;
    case KNOB_LIST:
        buf_printf(out, "a text that is not empty, given at most %d times", SETTINGS_MODELS);
        return;
    default: break;
    }
    buf_printf(out, "%s from ", words[k->kind]);
    write_limit(out, k, k->least);
    buf_puts(out, " to ");
    write_limit(out, k, k->most);
    if (k->words) {
        buf_puts(out, ", ");
        for (const char *c = k->words; *c; c++)
            buf_puts(out, *c == '|' ? " or " : (char[]){ *c, 0 });
    }
    if (k->kind == KNOB_TIME)
        buf_printf(out, " (without a unit: %s)", is_in_ms(k) ? "milliseconds" : "seconds");
}

/* The value of a secret is not shown. */
static int refuse_value(const struct knob *k, struct str value, struct knob_source src,
                        struct err *e)
{
    struct buf b = { 0 };
    int rc;

    knob_allowed(k, &b);
    if (k->secret) value = STR("(hidden)");
    rc = buf_check(&b, e);
    if (rc == OK)
        rc = err_set(e, E_INVALID, "%s is '%.*s': it must be %s", src.name,
                     (int)(value.n < 80 ? value.n : 80), value.p, buf_cstr(&b));
    buf_release(&b);
    return rc;
}

/* true: the knob has a value from a better source. Otherwise src is recorded as its source. */
static bool keeps_better(struct settings *s, const struct knob *k, struct knob_source src)
{
    unsigned char *from = &s->from[knob_index(k)];

    if (*from > src.from) return true;
    *from = (unsigned char)src.from;
    return false;
}

static char *copy_text(struct str v)
{
    char *p = mem_alloc(v.n + 1);

    if (p && v.n) memcpy(p, v.p, v.n);
    return p;
}

/* The first of k->words is 0, the second -1. */
static bool parse_word(const struct knob *k, struct str v, double *out)
{
    ptrdiff_t bar = k->words ? str_find(str_c(k->words), STR("|")) : -1;

    if (bar < 0) return false;
    *out = str_eq(v, str_c(k->words + bar + 1)) ? -1 : 0;
    return *out < 0 || str_eq(v, str_of(k->words, (size_t)bar));
}

/* All numbers are compared as doubles; integers up to 2^53 are exact. */
static int parse_number(const struct knob *k, struct str v, struct knob_source src,
                        struct knob_value *out, struct err *e)
{
    double f = 0;
    int64_t i = 0;
    bool good = false, is_word = false;

    if (k->kind == KNOB_INT) {
        good = str_to_i64(v, &i);
        f = (double)i;
    } else if (k->kind == KNOB_SIZE) {
        good = knob_parse_size(v, &f) || (is_word = parse_word(k, v, &f));
    } else if (k->kind == KNOB_TIME) {
        good = parse_time(k, v, &f) || (is_word = parse_word(k, v, &f));
        if (k->words && f < 0) f = -1, is_word = true; /* as other servers write "forever" */
        f = ceil(f); /* a fraction of a ms must not become 0, which often means "never" */
    } else {
        good = str_to_f64(v, &f);
    }
    if (!good || (!is_word && !(f >= k->least && f <= k->most))) return refuse_value(k, v, src, e);
    *out = (struct knob_value){ .f = f, .i = k->kind == KNOB_FLOAT ? 0 : (int64_t)f };
    return OK;
}

static int *count_of_list(struct settings *s, const struct knob *k)
{
    return field_of(s, k) == (void *)s->models ? &s->n_models : &s->n_aliases;
}

/* Values of a weaker source are replaced as a whole. */
static void clear_list(struct settings *s, const struct knob *k)
{
    const char **list = field_of(s, k);
    int *n = count_of_list(s, k);

    while (*n > 0) {
        mem_free((char *)list[--*n]);
        list[*n] = NULL;
        if (list == s->models) settings_model_release(&s->more[*n]);
    }
}

/* Refused at SETTINGS_MODELS values. */
static int add_to_list(struct settings *s, const struct knob *k, struct str v,
                       struct knob_source src, struct err *e)
{
    const char **list = field_of(s, k);
    int *n = count_of_list(s, k);

    if (v.n == 0 || memchr(v.p, 0, v.n)) return refuse_value(k, v, src, e);
    if (s->from[knob_index(k)] < src.from) clear_list(s, k);
    if (keeps_better(s, k, src)) return OK;
    if (*n == SETTINGS_MODELS) return refuse_value(k, v, src, e);
    if (!(list[*n] = copy_text(v))) return err_nomem(e, "the settings");
    (*n)++;
    return OK;
}

static bool is_allowed_text(const struct knob *k, struct str v)
{
    if (k->kind == KNOB_CHOICE && !is_choice(k->choices, v)) return false;
    if (k->kind == KNOB_SET && !is_subset(k->choices, v)) return false;
    return v.n == 0 || !memchr(v.p, 0, v.n);
}

/* Checks and parses a value of a knob that is not a list. A text is a copy, which the caller frees
 * or hands on. */
static int parse_value(const struct knob *k, struct str v, struct knob_source src,
                       struct knob_value *out, struct err *e)
{
    *out = (struct knob_value){ 0 };
    switch (k->kind) {
    case KNOB_BOOL: return parse_bool(v, &out->b) ? OK : refuse_value(k, v, src, e);
    case KNOB_CHOICE:
    case KNOB_SET:
    case KNOB_TEXT:
        if (!is_allowed_text(k, v)) return refuse_value(k, v, src, e);
        return (out->text = copy_text(v)) ? OK : err_nomem(e, "the settings");
    default: return parse_number(k, v, src, out, e);
    }
}

/* base: the struct that k->at is an offset in. Takes the text over. */
static void store_value(void *base, const struct knob *k, struct knob_value v)
{
    char *p = (char *)base + k->at;

    switch (k->kind) {
    case KNOB_BOOL: *(bool *)p = v.b; break;
    case KNOB_FLOAT: *(double *)p = v.f; break;
    case KNOB_CHOICE:
    case KNOB_SET:
    case KNOB_TEXT:
        mem_free(*(char **)p);
        *(char **)p = v.text;
        break;
    default: *(int64_t *)p = v.i;
    }
}

int knob_set(struct settings *s, const struct knob *k, struct str v, struct knob_source src,
             struct err *e)
{
    struct knob_value value;
    int rc;

    if (k->kind == KNOB_LIST) return add_to_list(s, k, v, src, e);
    if (field_of(s, k) == &s->memory_limit && str_find(v, STR("=")) >= 0)
        return settings_set_limits(s, v, src, e);
    if ((rc = parse_value(k, v, src, &value, e)) != OK) return rc;
    if (keeps_better(s, k, src)) mem_free(value.text);
    else store_value(s, k, value);
    return OK;
}

int knob_set_model(struct model_opt *o, const struct knob *k, struct str v, const char *where,
                   struct err *e)
{
    struct knob_value value;
    int rc = parse_value(k, v, (struct knob_source){ FROM_FILE, where }, &value, e);

    if (rc != OK) return rc;
    store_value(o, k, value);
    o->given |= 1u << (k - model_knobs);
    return OK;
}

void knob_write_list(struct jsonw *w, const struct settings *s, const struct knob *k)
{
    const char *const *list = field_of(s, k);
    int n = *count_of_list((struct settings *)s, k);

    jsonw_arr(w);
    for (int i = 0; i < n; i++) {
        if (list == s->models) settings_model_json(s, i, w);
        else jsonw_str(w, str_c(list[i]));
    }
    jsonw_end(w);
}

/* Times are printed in the unit of a number without unit. */
void knob_write(struct jsonw *w, const void *base, const struct knob *k)
{
    const void *p = (const char *)base + k->at;

    switch (k->kind) {
    case KNOB_INT: jsonw_int(w, *(const int64_t *)p); break;
    case KNOB_SIZE:
        if (*(const int64_t *)p < 0) jsonw_str(w, str_c(strchr(k->words, '|') + 1));
        else jsonw_int(w, *(const int64_t *)p);
        break;
    case KNOB_TIME:
        if (*(const int64_t *)p < 0) jsonw_str(w, str_c(strchr(k->words, '|') + 1));
        else jsonw_num(w, (double)*(const int64_t *)p / (is_in_ms(k) ? 1 : 1e3));
        break;
    case KNOB_FLOAT: jsonw_num(w, *(const double *)p); break;
    case KNOB_BOOL: jsonw_bool(w, *(const bool *)p); break;
    default: {
        struct str v = str_c(*(char *const *)p);
        jsonw_str(w, k->secret && v.n ? STR("(set)") : v);
    }
    }
}

static bool is_equal_list(const struct settings *a, const struct settings *b, const struct knob *k)
{
    const char *const *x = field_of(a, k), *const *y = field_of(b, k);
    int n = *count_of_list((struct settings *)a, k);

    if (n != *count_of_list((struct settings *)b, k)) return false;
    for (int i = 0; i < n; i++) {
        if (strcmp(x[i], y[i]) != 0) return false;
        if (x == a->models && !settings_model_is_equal(&a->more[i], &b->more[i])) return false;
    }
    return true;
}

bool knob_is_equal(const struct settings *a, const struct settings *b, const struct knob *k)
{
    const void *x = field_of(a, k), *y = field_of(b, k);

    switch (k->kind) {
    case KNOB_LIST: return is_equal_list(a, b, k);
    case KNOB_INT:
    case KNOB_SIZE:
    case KNOB_TIME: return *(const int64_t *)x == *(const int64_t *)y;
    case KNOB_FLOAT: return memcmp(x, y, sizeof(double)) == 0;
    case KNOB_BOOL: return *(const bool *)x == *(const bool *)y;
    default: return str_eq(str_c(*(char *const *)x), str_c(*(char *const *)y));
    }
}

void knob_move(struct settings *to, struct settings *from, const struct knob *k)
{
    char **x = field_of(to, k), **y = field_of(from, k), *text;

    to->from[knob_index(k)] = from->from[knob_index(k)];
    switch (k->kind) {
    case KNOB_INT:
    case KNOB_SIZE:
    case KNOB_TIME: *(int64_t *)field_of(to, k) = *(int64_t *)field_of(from, k); break;
    case KNOB_FLOAT: *(double *)field_of(to, k) = *(double *)field_of(from, k); break;
    case KNOB_BOOL: *(bool *)field_of(to, k) = *(bool *)field_of(from, k); break;
    case KNOB_LIST: break;
    default: text = *x, *x = *y, *y = text; /* `from` frees the old text */
    }
}

void knob_free(struct settings *s, const struct knob *k)
{
    char **text = field_of(s, k);

    if (k->kind == KNOB_LIST) clear_list(s, k);
    else if (k->kind == KNOB_TEXT || k->kind == KNOB_CHOICE || k->kind == KNOB_SET) {
        mem_free(*text);
        *text = NULL;
    }
}
