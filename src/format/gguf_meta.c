/* gguf_meta.c - the keys of a GGUF file.
 *
 * Keys are checked and indexed while the file is opened; values are decoded when they are asked
 * for. A vocabulary has a hundred thousand strings, so a list of strings is a table of 32-bit
 * positions, not of pointers. */
#include "format/gguf_impl.h"

#include "base/utf8.h"

#define MAX_ITEMS (1u << 24) /* table entries for strings and nested lists, of all keys together */
#define MAX_NAME 65535       /* bytes of the name of a key or tensor */
#define MAX_DEPTH 4          /* of lists in lists */

/* Bytes of a scalar in the file; 0: string or list. */
static const unsigned char type_bytes[GGUF_N_TYPES] = {
    [GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
    [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
};

int gguf_fail_truncated(const struct gguf *g, const struct cursor *c, const char *where,
                        struct str name, struct err *e)
{
    return err_set(e, E_FORMAT,
                   "%s: truncated: %s%s%.*s%s at byte %zu needs more than the %zu bytes left",
                   g->name, where, name.n ? " '" : "", (int)(name.n > 100 ? 100 : name.n),
                   name.n ? name.p : "", name.n ? "'" : "", cursor_at(c), cursor_left(c));
}

/* The name must be valid UTF-8 without control characters: it is shown in messages and looked up as
 * a C string. */
int gguf_read_name(const struct gguf *g, struct cursor *c, const char *what, struct str *out,
                   struct err *e)
{
    size_t at = cursor_at(c);
    uint64_t n = cursor_u64(c);
    const char *p;

    if (c->bad) return gguf_fail_truncated(g, c, what, STR(""), e);
    if (n == 0 || n > MAX_NAME)
        return err_set(e, E_FORMAT, "%s: byte %zu: %s of %llu bytes, expected 1 to %d", g->name, at,
                       what, (unsigned long long)n, MAX_NAME);
    p = cursor_take(c, n);
    if (!p) return gguf_fail_truncated(g, c, what, STR(""), e);
    *out = str_of(p, (size_t)n);
    if (utf8_bad(*out) >= 0)
        return err_set(e, E_FORMAT, "%s: byte %zu: %s is not UTF-8", g->name,
                       at + 8 + (size_t)utf8_bad(*out), what);
    for (size_t i = 0; i < out->n; i++)
        if ((unsigned char)p[i] < 0x20 || p[i] == 0x7f)
            return err_set(e, E_FORMAT, "%s: byte %zu: %s holds the control character 0x%02x",
                           g->name, at + 8 + i, what, (unsigned char)p[i]);
    return OK;
}

/* Decodes a scalar or string at p. */
static bool fill_scalar(enum gguf_type type, const unsigned char *p, struct value *out)
{
    uint64_t u = 0;
    float f;

    *out = (struct value){ 0 };
    memcpy(&u, p, type_bytes[type]);
    switch (type) {
    case GGUF_BOOL: out->kind = VALUE_BOOL, out->b = u != 0; break;
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
    case GGUF_U64: out->kind = VALUE_UINT, out->u = u; break;
    case GGUF_I8: out->kind = VALUE_INT, out->i = (int8_t)u; break;
    case GGUF_I16: out->kind = VALUE_INT, out->i = (int16_t)u; break;
    case GGUF_I32: out->kind = VALUE_INT, out->i = (int32_t)u; break;
    case GGUF_I64: out->kind = VALUE_INT, out->i = (int64_t)u; break;
    case GGUF_F32: memcpy(&f, p, 4), out->kind = VALUE_FLOAT, out->f = f; break;
    case GGUF_F64: out->kind = VALUE_FLOAT, memcpy(&out->f, p, 8); break;
    case GGUF_STR:
        memcpy(&u, p, 8);
        out->kind = VALUE_STR, out->s = str_of((const char *)p + 8, (size_t)u);
        break;
    default: return false;
    }
    return true;
}

static bool find_list_item(const struct value *v, size_t i, struct value *out);

static bool fill_list(const struct gguf_list *l, struct value *out)
{
    *out = (struct value){
        .kind = VALUE_LIST, .n = l->n, .elem = (int)l->elem, .impl = l, .at = find_list_item
    };
    return true;
}

static bool find_list_item(const struct value *v, size_t i, struct value *out)
{
    const struct gguf_list *l = v->impl;

    if (i >= l->n) return false;
    if (l->elem == GGUF_LIST) return fill_list(&l->lists[i], out);
    if (l->elem == GGUF_STR) return fill_scalar(GGUF_STR, l->p + l->at[i], out);
    return fill_scalar(l->elem, l->p + i * type_bytes[l->elem], out);
}

static int fail_type(const struct gguf *g, const struct cursor *c, uint32_t type, struct str key,
                     struct err *e)
{
    return err_set(e, E_FORMAT, "%s: byte %zu: key '%.*s' has value type %u, expected 0 to %d",
                   g->name, cursor_at(c) - 4, STR_ARG(str_take(key, 100)), type, GGUF_N_TYPES - 1);
}

/* A truth value is one byte, which GGUF demands to be 0 or 1. */
static int check_bools(const struct gguf *g, const struct cursor *c, const unsigned char *p,
                       size_t n, struct str key, struct err *e)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] > 1)
            return err_set(e, E_FORMAT,
                           "%s: byte %zu: key '%.*s' has the truth value %d, expected 0 or 1",
                           g->name, (size_t)(p + i - c->start), STR_ARG(str_take(key, 100)), p[i]);
    return OK;
}

/* Counts the table entries that a list of n items needs, before they are allocated. A list cannot
 * have more items than the rest of the file has room for, so memory stays in proportion to the
 * file, and below MAX_ITEMS. */
static int charge_items(struct gguf *g, const struct cursor *c, uint64_t n, bool lists,
                        struct str key, struct err *e)
{
    unsigned cost = lists ? 8 : 1; /* table entries of one item */

    if (n > cursor_left(c) / (lists ? 12 : 8))
        return gguf_fail_truncated(g, c, "the list of key", key, e);
    if (n > (MAX_ITEMS - g->n_items) / cost)
        return err_set(e, E_UNSUPPORTED, "%s: key '%.*s' brings the items in lists above %u",
                       g->name, STR_ARG(str_take(key, 100)), MAX_ITEMS);
    g->n_items += (size_t)n * cost;
    return OK;
}

/* Walks over the strings once to note where each starts. */
static int read_strings(struct gguf *g, struct cursor *c, struct str key, struct gguf_list *l,
                        struct err *e)
{
    uint32_t *at;
    int rc = charge_items(g, c, l->n, false, key, e);

    if (rc != OK) return rc;
    l->at = at = arena_array(&g->arena, l->n, sizeof *at);
    if (!at) return err_nomem(e, "the keys of a GGUF file");
    for (size_t i = 0; i < l->n; i++) {
        size_t from = (size_t)(c->p - l->p);
        uint64_t n = cursor_u64(c);
        if (!cursor_take(c, n)) return gguf_fail_truncated(g, c, "a string of key", key, e);
        if (from > UINT32_MAX)
            return err_set(e, E_UNSUPPORTED, "%s: key '%.*s' holds more than 4 GiB of strings",
                           g->name, STR_ARG(str_take(key, 100)));
        at[i] = (uint32_t)from;
    }
    return OK;
}

static int read_list(struct gguf *g, struct cursor *c, struct str key, struct gguf_list *l,
                     int depth, struct err *e);

static int read_lists(struct gguf *g, struct cursor *c, struct str key, struct gguf_list *l,
                      int depth, struct err *e)
{
    struct gguf_list *lists;
    int rc = charge_items(g, c, l->n, true, key, e);

    if (rc != OK) return rc;
    if (depth >= MAX_DEPTH)
        return err_set(e, E_UNSUPPORTED, "%s: byte %zu: key '%.*s' nests lists more than %d deep",
                       g->name, cursor_at(c), STR_ARG(str_take(key, 100)), MAX_DEPTH);
    l->lists = lists = arena_array(&g->arena, l->n, sizeof *lists);
    if (!lists) return err_nomem(e, "the keys of a GGUF file");
    for (size_t i = 0; i < l->n && rc == OK; i++)
        rc = read_list(g, c, key, &lists[i], depth + 1, e);
    return rc;
}

/* Element type, count, elements. Numbers need no table: their position follows from the index. */
static int read_list(struct gguf *g, struct cursor *c, struct str key, struct gguf_list *l,
                     int depth, struct err *e)
{
    uint32_t elem = cursor_u32(c);
    uint64_t n;

    if (!c->bad && elem >= GGUF_N_TYPES) return fail_type(g, c, elem, key, e);
    n = cursor_u64(c);
    if (c->bad) return gguf_fail_truncated(g, c, "the list of key", key, e);
    *l = (struct gguf_list){ .elem = (enum gguf_type)elem, .n = (size_t)n, .p = c->p };
    if (elem == GGUF_STR) return read_strings(g, c, key, l, e);
    if (elem == GGUF_LIST) return read_lists(g, c, key, l, depth, e);
    if (n > cursor_left(c) / type_bytes[elem])
        return gguf_fail_truncated(g, c, "the list of key", key, e);
    cursor_take(c, n * type_bytes[elem]);
    return elem == GGUF_BOOL ? check_bools(g, c, l->p, l->n, key, e) : OK;
}

static int index_key(struct gguf *g, const struct gguf_key *k, size_t n_name, struct err *e)
{
    int rc = map_put(&g->key_map, str_of(k->name, n_name), (uint64_t)(k - g->keys));

    if (rc == MAP_REPLACED)
        return err_set(e, E_FORMAT, "%s: key '%s' appears twice", g->name, k->name);
    return rc == MAP_ADDED ? OK : err_nomem(e, "the keys of a GGUF file");
}

int gguf_read_key(struct gguf *g, struct cursor *c, struct gguf_key *k, struct err *e)
{
    struct str name;
    uint32_t type;
    int rc = gguf_read_name(g, c, "the name of a key", &name, e);

    if (rc != OK) return rc;
    if (!(k->name = arena_cstr(&g->arena, name))) return err_nomem(e, "the keys of a GGUF file");
    k->raw.p = (const char *)c->p;
    type = cursor_u32(c);
    if (c->bad) return gguf_fail_truncated(g, c, "key", name, e);
    if (type >= GGUF_N_TYPES) return fail_type(g, c, type, name, e);
    k->type = (enum gguf_type)type;
    k->p = c->p;
    if (type == GGUF_LIST) {
        rc = read_list(g, c, name, &k->list, 1, e);
    } else {
        uint64_t n = type == GGUF_STR ? cursor_u64(c) : type_bytes[type];
        if (!cursor_take(c, n)) return gguf_fail_truncated(g, c, "the value of key", name, e);
        if (type == GGUF_BOOL) rc = check_bools(g, c, k->p, 1, name, e);
    }
    if (rc != OK) return rc;
    k->raw.n = (size_t)((const char *)c->p - k->raw.p);
    return index_key(g, k, name.n, e);
}

/* Values are decoded from the file at every call; nothing is cached. */
bool gguf_key(const struct gguf *g, struct str key, struct value *out)
{
    uint64_t i;

    if (!map_get(&g->key_map, key, &i)) return false;
    const struct gguf_key *k = &g->keys[i];
    return k->type == GGUF_LIST ? fill_list(&k->list, out) : fill_scalar(k->type, k->p, out);
}
