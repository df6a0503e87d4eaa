/* gguf_split.c - a model in several GGUF files, NAME-00001-of-0000N.gguf and so on.
 *
 * The first part has the keys of the model; each part has a directory for its own tensors. The
 * struct gguf of the first part takes over the tensors of all parts and keeps the others open. */
#include "format/gguf_impl.h"

#include "base/mem.h"

#include <stdio.h>

#define MAX_PARTS 10000
#define TAIL_LEN 20 /* bytes of "-00001-of-00002.gguf" */

/* split.no and split.count are u16 in most files; any integer type is accepted. */
static bool read_key_u64(const struct gguf *g, const char *key, uint64_t *out)
{
    struct value v;
    return gguf_key(g, str_c(key), &v) && value_u64(&v, out);
}

/* The path of part no (from 0), from that of another part; freed with mem_free. *out is NULL: path
 * is not named like a part. false: no memory. */
static bool make_part_path(char **out, const char *path, uint64_t no, uint64_t count)
{
    size_t n = strlen(path);
    unsigned a, b;
    int end = 0;

    *out = NULL;
    if (n < TAIL_LEN || sscanf(path + n - TAIL_LEN, "-%5u-of-%5u.gguf%n", &a, &b, &end) != 2 ||
        end != TAIL_LEN)
        return true;
    if (!(*out = mem_alloc(n + 1))) return false;
    snprintf(*out, n + 1, "%.*s-%05u-of-%05u.gguf", (int)(n - TAIL_LEN), path, (unsigned)no + 1,
             (unsigned)count);
    return true;
}

/* Adds the tensors of an open part to those of g. */
static int merge_tensors(struct gguf *g, const struct gguf *part, struct err *e)
{
    size_t n = g->n_tensors + part->n_tensors;
    struct source_tensor *tensors = mem_grow(g->tensors, n * sizeof *tensors);
    int rc;

    if (!tensors) return err_nomem(e, "the tensors of a GGUF file");
    g->tensors = tensors;
    for (size_t i = 0; i < part->n_tensors; i++) {
        struct str name = part->tensors[i].name;
        g->tensors[g->n_tensors] = part->tensors[i];
        rc = map_put(&g->tensor_map, name, g->n_tensors++);
        if (rc == MAP_REPLACED)
            return err_set(e, E_FORMAT, "%s: tensor '%.*s' is in an earlier part too", part->name,
                           STR_ARG(str_take(name, 100)));
        if (rc != MAP_ADDED) return err_nomem(e, "the tensors of a GGUF file");
    }
    return OK;
}

static int add_part(struct gguf *g, const char *path, uint64_t no, uint64_t count, struct err *e)
{
    struct gguf *p = NULL;
    uint64_t its_no, its_count;
    char *name;
    int rc;

    if (!make_part_path(&name, path, no, count) || !name)
        return err_nomem(e, "the path of a GGUF file");
    rc = gguf_open_one(&p, name, e);
    if (rc == OK) g->parts[g->n_parts++] = p;
    if (rc == E_NOTFOUND)
        err_set(e, rc, "%s: part %llu of %llu is missing", name, (unsigned long long)no + 1,
                (unsigned long long)count);
    if (rc == OK &&
        (!read_key_u64(p, "split.no", &its_no) || !read_key_u64(p, "split.count", &its_count) ||
         its_no != no || its_count != count))
        rc = err_set(e, E_FORMAT, "%s: expected split.no %llu and split.count %llu in it", name,
                     (unsigned long long)no, (unsigned long long)count);
    if (rc == OK) rc = merge_tensors(g, p, e);
    mem_free(name);
    return rc;
}

/* Opens the second and later parts, and checks the total that the first one claims. */
static int add_parts(struct gguf *g, const char *path, uint64_t count, struct err *e)
{
    uint64_t want;
    int rc = OK;

    if (!(g->parts = mem_array((size_t)count, sizeof *g->parts)))
        return err_nomem(e, "the parts of a GGUF file");
    for (uint64_t no = 1; no < count && rc == OK; no++) rc = add_part(g, path, no, count, e);
    if (rc == OK && read_key_u64(g, "split.tensors.count", &want) && want != g->n_tensors)
        rc = err_set(e, E_FORMAT,
                     "%s: the %llu parts hold %zu tensors, expected split.tensors.count = %llu",
                     path, (unsigned long long)count, g->n_tensors, (unsigned long long)want);
    return rc;
}

/* Opens the first part, which has the keys, in place of another one. */
static int open_first(struct gguf **g, const char *path, uint64_t count, struct err *e)
{
    uint64_t no = 0;
    int rc;

    gguf_close(*g);
    *g = NULL;
    rc = gguf_open_one(g, path, e);
    if (rc == E_NOTFOUND)
        err_set(e, rc, "%s: part 1 of %llu is missing", path, (unsigned long long)count);
    if (rc == OK && (!read_key_u64(*g, "split.no", &no) || no != 0 ||
                     !read_key_u64(*g, "split.count", &no) || no != count))
        rc = err_set(e, E_FORMAT, "%s: expected split.no 0 and split.count %llu in it", path,
                     (unsigned long long)count);
    return rc;
}

static int open_parts(struct gguf **g, const char *path, uint64_t count, struct err *e)
{
    uint64_t no = 0;
    char *first;
    int rc = OK;

    if (!make_part_path(&first, path, 0, count)) return err_nomem(e, "the path of a GGUF file");
    if (count > MAX_PARTS || !first)
        rc = err_set(
            e, E_FORMAT,
            "%s: split.count is %llu, expected at most %d and a name like NAME-00001-of-0000N.gguf",
            path, (unsigned long long)count, MAX_PARTS);
    else if (!read_key_u64(*g, "split.no", &no) || no != 0) rc = open_first(g, first, count, e);
    if (rc == OK) rc = add_parts(*g, first, count, e);
    mem_free(first);
    return rc;
}

int gguf_open(struct gguf **out, const char *path, struct err *e)
{
    struct gguf *g = NULL;
    uint64_t count = 0;
    int rc = gguf_open_one(&g, path, e);

    if (rc == OK && read_key_u64(g, "split.count", &count) && count > 1)
        rc = open_parts(&g, path, count, e);
    if (rc == OK) *out = g;
    else gguf_close(g);
    return rc;
}
