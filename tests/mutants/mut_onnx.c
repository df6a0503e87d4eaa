/* mut_onnx.c - mutants of ONNX files: the protobuf message as a tree, one field changed.
 *
 * Lengths are written anew, so that a change deep in the tree leaves the messages around it
 * readable. */
#include "mutants.h"

#include "base/file.h"
#include "base/mem.h"
#include "onnx/pb.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum message {
    LEAF,
    MODEL,
    GRAPH,
    NODE,
    ATTR,
    TENSOR,
    VALUE,
    TYPE,
    TENSOR_TYPE,
    SHAPE,
    DIM,
    ENTRY
};

struct field {
    uint32_t number;
    enum pb_wire wire;
    uint64_t v;
    struct str bytes;
    enum message in, is; /* the message it belongs to; LEAF: not a message itself */
    struct field *kids, *next;
    bool gone;
    int times; /* written so often; 0 and 1: once */
};

/* Fields that are messages. */
static enum message message_of(enum message in, uint32_t number)
{
    static const struct {
        enum message in;
        uint32_t number;
        enum message is;
    } table[] = { { MODEL, 7, GRAPH },  { GRAPH, 1, NODE },       { GRAPH, 5, TENSOR },
                  { GRAPH, 11, VALUE }, { GRAPH, 12, VALUE },     { GRAPH, 13, VALUE },
                  { NODE, 5, ATTR },    { ATTR, 5, TENSOR },      { ATTR, 6, GRAPH },
                  { VALUE, 2, TYPE },   { TYPE, 1, TENSOR_TYPE }, { TENSOR_TYPE, 2, SHAPE },
                  { SHAPE, 1, DIM },    { TENSOR, 13, ENTRY } };

    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].in == in && table[i].number == number) return table[i].is;
    return LEAF;
}

/* All fields, in one list for choosing. */
struct tree {
    struct field **all;
    int n, cap;
};

static struct field *parse(struct mutation *m, struct tree *t, struct str bytes, enum message in)
{
    struct field *first = NULL, **end = &first;

    for (struct pb p = pb_of(bytes); pb_next(&p);) {
        struct field *f = arena_new(m->arena, struct field);
        if (!f) abort();
        *f = (struct field){
            .number = p.field, .wire = p.wire, .v = p.v, .bytes = p.bytes, .in = in
        };
        if (t->n == t->cap) {
            t->cap = t->cap ? 2 * t->cap : 1024;
            if (!(t->all = realloc(t->all, (size_t)t->cap * sizeof *t->all))) abort();
        }
        t->all[t->n++] = f;
        if (p.wire == PB_BYTES && (f->is = message_of(in, p.field)) != LEAF)
            f->kids = parse(m, t, p.bytes, f->is);
        *end = f;
        end = &f->next;
    }
    return first;
}

static void put_varint(struct buf *b, uint64_t v)
{
    for (; v >= 128; v >>= 7) buf_putc(b, (char)(v | 128));
    buf_putc(b, (char)v);
}

static void put_fields(struct buf *b, const struct field *f)
{
    for (; f; f = f->next)
        for (int i = 0; !f->gone && i < (f->times ? f->times : 1); i++) {
            put_varint(b, (uint64_t)f->number << 3 | f->wire);
            if (f->wire == PB_VARINT) put_varint(b, f->v);
            else if (f->wire == PB_I64) buf_add(b, &f->v, 8);
            else if (f->wire == PB_I32) buf_add(b, &f->v, 4);
            else {
                struct buf inner = { 0 };
                if (f->is != LEAF) put_fields(&inner, f->kids);
                else buf_put_str(&inner, f->bytes);
                put_varint(b, inner.n);
                buf_put_str(b, buf_str(&inner));
                buf_release(&inner);
            }
        }
}

/* Another field of the same meaning. */
static const struct field *find_like(struct mutation *m, const struct tree *t,
                                     const struct field *f)
{
    for (int tries = 0; tries < 200; tries++) {
        const struct field *g = t->all[pick(m, (uint64_t)t->n)];
        if (g != f && g->in == f->in && g->number == f->number) return g;
    }
    return f;
}

/* Packed integers stay packed integers: one of them is odd. */
static void mutate_packed(struct mutation *m, struct field *f)
{
    struct buf out = { 0 };
    char *p;
    size_t n = 0, at;

    for (struct cursor c = pb_cursor(f->bytes); cursor_left(&c) && !c.bad; n++) pb_varint(&c);
    at = pick(m, n);
    n = 0;
    for (struct cursor c = pb_cursor(f->bytes); cursor_left(&c) && !c.bad; n++) {
        uint64_t v = pb_varint(&c);
        put_varint(&out, n == at ? (uint64_t)odd_int(m, (int64_t)v) : v);
    }
    if (!(p = arena_alloc(m->arena, out.n + 1))) abort();
    if (out.n) memcpy(p, out.p, out.n);
    f->bytes = str_of(p, out.n);
    buf_release(&out);
}

static void mutate_bytes(struct mutation *m, const struct tree *t, struct field *f)
{
    bool packed = (f->in == TENSOR && (f->number == 1 || f->number == 7)) ||
                  (f->in == ATTR && f->number == 8);

    if (packed && chance(m, 70)) mutate_packed(m, f);
    else if (chance(m, 60)) f->bytes = find_like(m, t, f)->bytes;
    else if (chance(m, 50)) f->bytes = str_take(f->bytes, pick(m, f->bytes.n + 1));
    else f->bytes = odd_string(m);
}

static void mutate_field(struct mutation *m, const struct tree *t)
{
    struct field *f = t->all[pick(m, (uint64_t)t->n)];
    const struct field *g;
    float x = (float)odd_float(m, 1);

    note(m, "field %u of message %d", f->number, f->in);
    if (chance(m, 6)) f->gone = true;
    else if (chance(m, 5)) f->times = 2 + (int)pick(m, 3);
    else if (chance(m, 3)) f->number = 1 + (uint32_t)pick(m, 16);
    else if (f->is != LEAF) { /* the content of another one */ g = find_like(m, t, f);
        if (chance(m, 50)) f->kids = g->kids; /* a tree may occur in two places: it is only read */
        else if (f->kids) f->kids = f->kids->next;
    } else if (f->wire == PB_BYTES) {
        mutate_bytes(m, t, f);
    } else if (f->wire == PB_I32) {
        memcpy(&f->v, &x, sizeof x);
    } else {
        f->v = chance(m, 20) ? find_like(m, t, f)->v : (uint64_t)odd_int(m, (int64_t)f->v);
    }
}

static void mutate_file(struct mutation *m, const char *path)
{
    struct buf in = { 0 }, out = { 0 };
    struct tree t = { 0 };
    struct field *top;

    if (file_read(&in, path, 64 << 20, NULL) != OK) abort();
    top = parse(m, &t, buf_str(&in), MODEL);
    for (int i = 1 + (int)pick(m, 3); i--;) mutate_field(m, &t);
    put_fields(&out, top);
    if (chance(m, 2)) out.n = pick(m, out.n), note(m, "cut at %zu", out.n);
    write_bytes(path, buf_str(&out));
    free(t.all);
    buf_release(&in);
    buf_release(&out);
}

const char *mutate_onnx(struct mutation *m, const struct base *b, const char *dir)
{
    static const char *const others[] = { "config.json", "tokenizer.json", "tokenizer_config.json",
                                          "modules.json", "1_Pooling/config.json" };
    const char *path = arena_printf(m->arena, "%s/onnx", dir);
    char file[900];

    copy_folder(b->path, path);
    snprintf(file, sizeof file, "%s/model.onnx", path);
    if (!file_exists(file)) snprintf(file, sizeof file, "%s/onnx/model.onnx", path);
    if (chance(m, 75)) mutate_file(m, file);
    if (chance(m, 35) || !m->what.n)
        mutate_json(m, path, others[pick(m, sizeof others / sizeof *others)]);
    return path;
}
