#include "format/gguf_impl.h"

#include "base/mem.h"

#include <stdio.h>

#define MAX_PARTS 10000
#define TAIL_LEN 20 /* "-00001-of-00002.gguf" */

static bool key_u64(const struct gguf *g, const char *key, uint64_t *out)
{
    struct value v;
    return gguf_key(g, str_c(key), &v) && value_u64(&v, out);
}

/* The name of part no (from 0), given that of any other; NULL if it is not named like one. */
static char *part_path(const char *path, uint64_t no, uint64_t count)
{
    size_t n = strlen(path);
    unsigned a, b;
    int end = 0;
    char *out;

    if (n < TAIL_LEN || sscanf(path + n - TAIL_LEN, "-%5u-of-%5u.gguf%n", &a, &b, &end) != 2 ||
        end != TAIL_LEN)
        return NULL;
    out = mem_alloc(n + 1);
    snprintf(out, n + 1, "%.*s-%05u-of-%05u.gguf", (int)(n - TAIL_LEN), path, (unsigned)no + 1,
             (unsigned)count);
    return out;
}

static int add_part(struct gguf *g, const char *path, uint64_t no, uint64_t count, struct err *e)
{
    struct gguf *p = NULL;
    uint64_t its_no, its_count;
    char *name = part_path(path, no, count);
    int rc = gguf_open_one(&p, name, e);

    if (rc == E_NOTFOUND)
        err_set(e, rc, "%s: part %llu of %llu is missing", name, (unsigned long long)no + 1,
                (unsigned long long)count);
    if (rc != OK) goto out;
    g->parts[g->n_parts++] = p;
    if (!key_u64(p, "split.no", &its_no) || !key_u64(p, "split.count", &its_count) ||
        its_no != no || its_count != count) {
        rc = err_set(e, E_FORMAT, "%s: expected split.no %llu and split.count %llu in it", name,
                     (unsigned long long)no, (unsigned long long)count);
        goto out;
    }
    g->tensors = mem_grow(g->tensors, (g->n_tensors + p->n_tensors + 1) * sizeof *g->tensors);
    for (size_t i = 0; i < p->n_tensors && rc == OK; i++) {
        g->tensors[g->n_tensors] = p->tensors[i];
        if (!map_put(&g->tensor_map, p->tensors[i].name, g->n_tensors++))
            rc = err_set(e, E_FORMAT, "%s: tensor '%.*s' is in an earlier part too", name,
                         STR_ARG(str_take(p->tensors[i].name, 100)));
    }
out:
    mem_free(name);
    return rc;
}

static int add_parts(struct gguf *g, const char *path, uint64_t count, struct err *e)
{
    uint64_t want;
    int rc = OK;

    g->parts = mem_array((size_t)count, sizeof *g->parts);
    for (uint64_t no = 1; no < count && rc == OK; no++) rc = add_part(g, path, no, count, e);
    if (rc == OK && key_u64(g, "split.tensors.count", &want) && want != g->n_tensors)
        rc = err_set(e, E_FORMAT,
                     "%s: the %llu parts hold %zu tensors, expected split.tensors.count = %llu",
                     path, (unsigned long long)count, g->n_tensors, (unsigned long long)want);
    return rc;
}

int gguf_open(struct gguf **out, const char *path, struct err *e)
{
    struct gguf *g = NULL;
    uint64_t count = 0, no = 0;
    char *first = NULL;
    int rc = gguf_open_one(&g, path, e);

    if (rc != OK || !key_u64(g, "split.count", &count) || count < 2) goto out;
    first = part_path(path, 0, count);
    if (count > MAX_PARTS || !first) {
        rc = err_set(
            e, E_FORMAT,
            "%s: split.count is %llu, expected at most %d and a name like NAME-00001-of-0000N.gguf",
            path, (unsigned long long)count, MAX_PARTS);
        goto out;
    }
    if (!key_u64(g, "split.no", &no) || no != 0) { /* the first part has the keys */
        gguf_close(g);
        g = NULL;
        rc = gguf_open_one(&g, first, e);
        if (rc == E_NOTFOUND)
            err_set(e, rc, "%s: part 1 of %llu is missing", first, (unsigned long long)count);
        if (rc == OK && (!key_u64(g, "split.no", &no) || no != 0 ||
                         !key_u64(g, "split.count", &no) || no != count))
            rc = err_set(e, E_FORMAT, "%s: expected split.no 0 and split.count %llu in it", first,
                         (unsigned long long)count);
    }
    if (rc == OK) rc = add_parts(g, first, count, e);
out:
    mem_free(first);
    if (rc == OK) *out = g;
    else gguf_close(g);
    return rc;
}
