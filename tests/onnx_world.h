/* onnx_world.h - writes small ONNX files for tests; tensors and attributes are given as text.
 *
 * A tensor is "f 2x3: 1 2 3 4 5 6": type, dimensions, elements. Types: f float, h half, i int64,
 * n int32, b bool, u uint8, c int8. Attributes are separated by spaces: axis=1 an integer,
 * perm=[0,2,1] integers, alpha=f0.5 a float, scales=F[1,2] floats, mode='x' a string,
 * value={f 1: 3} a tensor. */
#ifndef TERN_TESTS_ONNX_WORLD_H
#define TERN_TESTS_ONNX_WORLD_H

#include "base/buf.h"
#include "kernel/quant.h"
#include "onnx/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- writing protobuf ---- */

__attribute__((unused)) static void pbw_varint(struct buf *b, uint64_t v)
{
    for (; v >= 0x80; v >>= 7) buf_putc(b, (char)(v | 0x80));
    buf_putc(b, (char)v);
}

__attribute__((unused)) static void pbw_int(struct buf *b, int field, int64_t v)
{
    pbw_varint(b, (uint64_t)field << 3);
    pbw_varint(b, (uint64_t)v);
}

__attribute__((unused)) static void pbw_bytes(struct buf *b, int field, struct str s)
{
    pbw_varint(b, (uint64_t)field << 3 | 2);
    pbw_varint(b, s.n);
    buf_put_str(b, s);
}

__attribute__((unused)) static void pbw_buf(struct buf *b, int field, struct buf *part)
{
    pbw_bytes(b, field, buf_str(part));
    buf_release(part);
}

/* ---- tensors ---- */

struct text_tensor { /* a tensor parsed from text, with its elements */
    int file_type;   /* TensorProto.DataType */
    struct onnx_tensor t;
    union {
        int64_t i[256];
        float f[256];
        uint8_t u[256];
    } room;
};

__attribute__((unused)) static void put_element(struct text_tensor *x, size_t i, double v)
{
    switch (x->t.type) {
    case ONNX_F32: x->room.f[i] = (float)v; break;
    default: x->room.u[i] = (uint8_t)(int)v;
    }
}

__attribute__((unused)) static double element_at(const struct onnx_tensor *t, size_t i)
{
    switch (t->type) {
    case ONNX_F32: return (double)((const float *)t->data)[i];
    case ONNX_I64: return (double)((const int64_t *)t->data)[i];
    case ONNX_I8: return ((const int8_t *)t->data)[i];
    default: return ((const uint8_t *)t->data)[i];
    }
}

__attribute__((unused)) static void parse_tensor(struct text_tensor *x, const char *s)
{
    static const struct {
        char c;
        int file;
        enum onnx_type type;
    } kinds[] = { { 'f', 1, ONNX_F32 },  { 'h', 10, ONNX_F32 },
                  { 'i', 7, ONNX_I64 },  { 'n', 6, ONNX_I64 },
                  { 'b', 9, ONNX_BOOL }, { 'u', 2, ONNX_U8 },
                  { 'c', 3, ONNX_I8 },   { 0, 0, 0 } };
    int k = 0;
    char *end;

    memset(x, 0, sizeof *x);
    while (kinds[k].c && kinds[k].c != *s) k++;
    x->file_type = kinds[k].file;
    x->t = (struct onnx_tensor){ .type = kinds[k].type, .n = 1, .data = &x->room, .block = -1 };
    for (s += 1 + (s[1] == ' '); *s && *s != ':'; s = *end == 'x' || *end == ' ' ? end + 1 : end) {
        x->t.dims[x->t.n_dims] = strtol(s, &end, 10);
        x->t.n *= (size_t)x->t.dims[x->t.n_dims++];
    }
    if (*s == ':') s++;
    for (size_t i = 0; i < x->t.n; i++) {
        if (x->t.type == ONNX_I64) x->room.i[i] = strtoll(s, &end, 10);
        else put_element(x, i, strtod(s, &end));
        s = end;
    }
}

/* Appends a TensorProto. */
__attribute__((unused)) static void tensor_bytes(struct buf *out, const char *name,
                                                 const struct text_tensor *x)
{
    struct buf raw = { 0 };

    for (int d = 0; d < x->t.n_dims; d++) pbw_int(out, 1, x->t.dims[d]);
    pbw_int(out, 2, x->file_type);
    pbw_bytes(out, 8, str_c(name));
    for (size_t i = 0; i < x->t.n; i++) {
        int32_t narrow = (int32_t)x->room.i[i];
        uint16_t half = x->t.type == ONNX_F32 ? f32_to_f16(x->room.f[i]) : 0;
        if (x->file_type == 6) buf_add(&raw, &narrow, sizeof narrow);
        else if (x->file_type == 10) buf_add(&raw, &half, sizeof half);
        else buf_add(&raw, (const char *)&x->room + i * onnx_size(x->t.type), onnx_size(x->t.type));
    }
    pbw_buf(out, 9, &raw);
}

/* ---- nodes ---- */

__attribute__((unused)) static const char *attr_bytes(struct buf *node, const char *s)
{
    struct buf a = { 0 };
    const char *eq = strchr(s, '=');
    char *end = (char *)eq + 1;
    struct text_tensor x;

    pbw_bytes(&a, 1, str_of(s, (size_t)(eq - s)));
    switch (eq[1]) {
    case '[':
        do pbw_int(&a, 8, strtoll(end + 1, &end, 10));
        while (*end == ',');
        pbw_int(&a, 20, 7);
        end++;
        break;
    case 'F': /* floats */
        for (end++; *end != ']';) {
            float f = strtof(end + 1, &end);
            pbw_varint(&a, 7 << 3 | 5);
            buf_add(&a, &f, sizeof f);
        }
        pbw_int(&a, 20, 6);
        end++;
        break;
    case '\'':
        end = strchr(eq + 2, '\'');
        pbw_bytes(&a, 4, str_of(eq + 2, (size_t)(end++ - eq - 2)));
        pbw_int(&a, 20, 3);
        break;
    case 'f': {
        float f = strtof(eq + 2, &end);
        pbw_varint(&a, 2 << 3 | 5);
        buf_add(&a, &f, sizeof f);
        pbw_int(&a, 20, 1);
        break;
    }
    case '{': {
        struct buf t = { 0 };
        parse_tensor(&x, eq + 2);
        tensor_bytes(&t, "", &x);
        pbw_buf(&a, 5, &t);
        pbw_int(&a, 20, 4);
        end = strchr(eq, '}') + 1;
        break;
    }
    default: pbw_int(&a, 3, strtoll(eq + 1, &end, 10)); pbw_int(&a, 20, 2);
    }
    pbw_buf(node, 5, &a);
    return *end == ' ' ? end + 1 : end;
}

/* Names separated by spaces, as inputs (field 1) or outputs (2); "-" is an absent one. */
__attribute__((unused)) static void name_list(struct buf *node, int field, const char *names)
{
    while (names && *names) {
        size_t n = strcspn(names, " ");
        pbw_bytes(node, field, n == 1 && *names == '-' ? STR("") : str_of(names, n));
        names += n + (names[n] == ' ');
    }
}

__attribute__((unused)) static void add_node(struct buf *graph, const char *op, const char *in,
                                             const char *out, const char *attrs)
{
    struct buf n = { 0 };

    name_list(&n, 1, in);
    name_list(&n, 2, out);
    pbw_bytes(&n, 3, STR("the_node"));
    pbw_bytes(&n, 4, str_c(op));
    while (attrs && *attrs) attrs = attr_bytes(&n, attrs);
    pbw_buf(graph, 1, &n);
}

/* field: 11 an input, 12 an output. dims like "2x-1", -1: any size; NULL: no shape. */
__attribute__((unused)) static void add_io(struct buf *graph, int field, const char *name, int type,
                                           const char *dims)
{
    struct buf v = { 0 }, t = { 0 }, tt = { 0 }, s = { 0 };

    pbw_int(&tt, 1, type);
    for (char *end = (char *)dims; end && *end;) {
        struct buf d = { 0 };
        int64_t size = strtoll(end, &end, 10);
        if (size >= 0) pbw_int(&d, 1, size);
        else pbw_bytes(&d, 2, STR("n"));
        pbw_buf(&s, 1, &d);
        if (*end == 'x') end++;
    }
    if (dims) pbw_buf(&tt, 2, &s);
    pbw_buf(&t, 1, &tt);
    pbw_bytes(&v, 1, str_c(name));
    pbw_buf(&v, 2, &t);
    pbw_buf(graph, field, &v);
}

__attribute__((unused)) static void add_const(struct buf *graph, const char *name,
                                              const char *tensor)
{
    struct buf t = { 0 };
    struct text_tensor x;

    parse_tensor(&x, tensor);
    tensor_bytes(&t, name, &x);
    pbw_buf(graph, 5, &t);
}

__attribute__((unused)) static void model_bytes(struct buf *out, struct buf *graph, int opset)
{
    struct buf o = { 0 };

    pbw_int(out, 1, 8);
    pbw_bytes(out, 2, STR("tests"));
    pbw_buf(out, 7, graph);
    pbw_bytes(&o, 1, STR(""));
    pbw_int(&o, 2, opset);
    pbw_buf(out, 8, &o);
}
#endif
