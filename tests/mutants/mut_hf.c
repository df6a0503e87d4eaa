/* mut_hf.c - mutants of Hugging Face folders: JSON files, and the header of safetensors files. */
#include "mutants.h"

#include "base/file.h"
#include "base/mem.h"

#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void write_bytes(const char *path, struct str data)
{
    FILE *f = fopen(path, "wb");

    if (!f || fwrite(data.p ? data.p : "", 1, data.n, f) != data.n || fclose(f) != 0) abort();
}

/* With its subfolders. Golden results are not needed. */
void copy_folder(const char *from, const char *to)
{
    DIR *d = opendir(from);

    mkdir(to, 0700);
    for (struct dirent *x; d && (x = readdir(d));) {
        char *a = path_join(from, x->d_name), *b = path_join(to, x->d_name);
        struct buf data = { 0 };
        if (x->d_name[0] == '.' || strcmp(x->d_name, "golden.safetensors") == 0) {
        } else if (file_is_dir(a)) {
            copy_folder(a, b);
        } else if (file_read(&data, a, 64 << 20, NULL) == OK) {
            write_bytes(b, buf_str(&data));
        }
        buf_release(&data);
        mem_free(a), mem_free(b);
    }
    if (d) closedir(d);
}

/* ---- JSON ---- */

/* A place in a tree: a member of an object, or an item of a list. */
struct place {
    json_t *in;
    const char *key;
    size_t index;
};

enum { MOST_PLACES = 4096 };

static int list_places(json_t *j, struct place *out, int n)
{
    const char *key;
    json_t *v;
    size_t i;

    if (json_is_object(j))
        json_object_foreach (j, key, v) {
            if (n < MOST_PLACES) out[n++] = (struct place){ j, key, 0 };
            n = list_places(v, out, n);
        }
    if (json_is_array(j))
        json_array_foreach (j, i, v) {
            if (n < MOST_PLACES) out[n++] = (struct place){ j, NULL, i };
            n = list_places(v, out, n);
        }
    return n;
}

static json_t *value_of(const struct place *p)
{
    return p->key ? json_object_get(p->in, p->key) : json_array_get(p->in, p->index);
}

static void set_value(const struct place *p, json_t *v)
{
    if (p->key) json_object_set_new(p->in, p->key, v);
    else json_array_set_new(p->in, p->index, v);
}

static json_t *odd_value(struct mutation *m, const json_t *was)
{
    struct str s;

    if (!chance(m, 15)) {
        if (json_is_integer(was)) return json_integer(odd_int(m, json_integer_value(was)));
        if (json_is_real(was)) return json_real(odd_float(m, json_real_value(was)));
        if (json_is_boolean(was)) return json_boolean(!json_is_true(was));
    }
    switch (pick(m, 8)) {
    case 0: return json_null();
    case 1: return json_boolean(chance(m, 50));
    case 2: return json_integer(odd_int(m, 1));
    case 3: return json_real(odd_float(m, 1));
    case 4: return json_array();
    case 5: return json_object();
    default: s = odd_string(m); return json_stringn_nocheck(s.p, s.n);
    }
}

/* A top-level member of another model's file of this name. */
static void borrow_member(struct mutation *m, json_t *j, const char *name)
{
    const struct base *other = &m->all[pick(m, (uint64_t)m->n_all)];
    char path[900];
    json_t *x;
    size_t at;
    void *it;

    snprintf(path, sizeof path, "%s/%s", other->path, name);
    x = other->kind == BASE_GGUF ? NULL : json_load_file(path, 0, NULL);
    if (!json_is_object(x) || !json_is_object(j) || !json_object_size(x)) {
        json_decref(x);
        return;
    }
    it = json_object_iter(x);
    for (at = pick(m, json_object_size(x)); at--;) it = json_object_iter_next(x, it);
    note(m, "%s: %s of another model", name, json_object_iter_key(it));
    json_object_set(j, json_object_iter_key(it), json_object_iter_value(it));
    json_decref(x);
}

static void change_place(struct mutation *m, json_t *j, const char *name)
{
    struct place *all = calloc(MOST_PLACES, sizeof *all);
    int n = all ? list_places(j, all, 0) : 0;
    struct place *p = &all[pick(m, (uint64_t)n)], *q = &all[pick(m, (uint64_t)n)];

    if (!all) abort();
    if (n) {
        note(m, "%s: %s", name, p->key ? p->key : "an item");
        if (chance(m, 15) && p->key) json_object_del(p->in, p->key);
        else if (chance(m, 8)) set_value(p, json_deep_copy(value_of(q)));
        else set_value(p, odd_value(m, value_of(p)));
    }
    free(all);
}

static void save_json(const json_t *j, const char *path)
{
    char *text = json_dumps(j, JSON_ENCODE_ANY | JSON_COMPACT);

    if (text) write_bytes(path, str_c(text)); /* NULL: a string that is not UTF-8 */
    free(text);
}

void mutate_json(struct mutation *m, const char *dir, const char *name)
{
    char path[900];
    json_t *j;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (!(j = json_load_file(path, 0, NULL))) return;
    if (chance(m, 20)) borrow_member(m, j, name);
    else change_place(m, j, name);
    save_json(j, path);
    json_decref(j);
}

void resize_json(struct mutation *m, const char *dir, const char *name, int64_t from, int64_t to)
{
    struct place *all = calloc(MOST_PLACES, sizeof *all);
    char path[900];
    json_t *j;
    int n;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    j = json_load_file(path, 0, NULL);
    n = j && all ? list_places(j, all, 0) : 0;
    (void)m;
    for (int i = 0; i < n; i++)
        if (json_is_integer(value_of(&all[i])) && json_integer_value(value_of(&all[i])) == from)
            set_value(&all[i], json_integer(to));
    if (j) save_json(j, path);
    json_decref(j);
    free(all);
}

/* ---- safetensors ---- */

static void put_tensors(struct buf *out, const struct mut_tensors *t)
{
    struct buf head = { 0 };
    size_t at = 0;
    uint64_t n;

    buf_putc(&head, '{');
    for (int i = 0, first = 1; i < t->n; i++) {
        const struct mut_tensor *x = &t->v[i];
        size_t from = x->moved ? (size_t)x->offset : at;
        if (x->gone) continue;
        buf_printf(&head, "%s\"%.*s\":{\"dtype\":\"%s\",\"shape\":[", first ? "" : ",",
                   STR_ARG(x->name), x->file_type >= 0 ? "F13" : dtype_name((int)x->type));
        for (int k = 0; k < x->n_dims; k++)
            buf_printf(&head, "%s%lld", k ? "," : "", (long long)x->dims[k]);
        buf_printf(&head, "],\"data_offsets\":[%zu,%zu]}", from, from + x->data.n);
        at += x->data.n, first = 0;
    }
    buf_putc(&head, '}');
    n = head.n;
    buf_add(out, &n, 8);
    buf_put_str(out, buf_str(&head));
    for (int i = 0; i < t->n; i++)
        if (!t->v[i].gone) buf_put_str(out, t->v[i].data);
    buf_release(&head);
}

static void resize(struct mutation *m, struct mut_tensors *t, const char *dir)
{
    int64_t from = tensors_some_dim(m, t), to = odd_int(m, from);

    if (to < 0 || to > 4096 || from < 2) return;
    tensors_resize(m, t, from, to);
    resize_json(m, dir, "config.json", from, to);
}

const char *mutate_hf(struct mutation *m, const struct base *b, const char *dir)
{
    const char *path = arena_printf(m->arena, "%s/hf", dir), *file;
    struct mut_tensors t = { 0 };
    struct source *s = NULL;
    struct buf out = { 0 };

    if (!path) abort();
    copy_folder(b->path, path);
    if (source_open(&s, b->path, NULL) != OK) abort();
    tensors_of(m, &t, s);
    for (int i = 1 + (int)pick(m, 3); i--;) {
        uint64_t what = pick(m, 10);
        if (what < 5) mutate_json(m, path, "config.json");
        else if (what < 9) tensors_mutate(m, &t, false);
        else resize(m, &t, path);
    }
    if (chance(m, 10)) mutate_json(m, path, "1_Pooling/config.json");
    put_tensors(&out, &t);
    if (chance(m, 3)) out.n = pick(m, out.n), note(m, "cut at %zu", out.n);
    file = arena_printf(m->arena, "%s/model.safetensors", path);
    write_bytes(file, buf_str(&out));
    buf_release(&out);
    source_close(s);
    return path;
}
