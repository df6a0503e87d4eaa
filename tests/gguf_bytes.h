/* gguf_bytes.h - writes GGUF files byte by byte, valid or invalid, for tests of the reader. */
#ifndef TERN_TESTS_GGUF_BYTES_H
#define TERN_TESTS_GGUF_BYTES_H

#include "base/buf.h"
#include "format/gguf.h"

static inline void put_u8(struct buf *b, uint8_t v) { buf_add(b, &v, 1); }
static inline void put_u32(struct buf *b, uint32_t v) { buf_add(b, &v, 4); }
static inline void put_u64(struct buf *b, uint64_t v) { buf_add(b, &v, 8); }

static inline void put_str(struct buf *b, const char *s)
{
    put_u64(b, strlen(s));
    buf_puts(b, s);
}

static inline void put_head(struct buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_keys)
{
    buf_puts(b, "GGUF");
    put_u32(b, version);
    put_u64(b, n_tensors);
    put_u64(b, n_keys);
}

static inline void put_key(struct buf *b, const char *key, enum gguf_type type)
{
    put_str(b, key);
    put_u32(b, type);
}

static inline void put_key_u32(struct buf *b, const char *key, uint32_t v)
{
    put_key(b, key, GGUF_U32);
    put_u32(b, v);
}

static inline void put_list(struct buf *b, enum gguf_type elem, uint64_t n)
{
    put_u32(b, elem);
    put_u64(b, n);
}

/* The directory entry of a tensor with two dimensions; the file stores the fastest dimension
 * first. */
static inline void put_tensor(struct buf *b, const char *name, uint64_t rows, uint64_t cols,
                              uint32_t type, uint64_t offset)
{
    put_str(b, name);
    put_u32(b, 2);
    put_u64(b, cols);
    put_u64(b, rows);
    put_u32(b, type);
    put_u64(b, offset);
}

static inline void put_zeros(struct buf *b, size_t n)
{
    while (n--) put_u8(b, 0);
}

static inline void put_padding(struct buf *b, size_t align)
{
    while (b->n % align) put_u8(b, 0);
}

/* A valid file with every type of value, nested lists and three tensors, aligned to 32 bytes. */
static inline void put_sample(struct buf *b)
{
    float f = 1.5f;
    double d = -2.25;

    put_head(b, 3, 3, 16);
    put_key(b, "general.architecture", GGUF_STR), put_str(b, "llama");
    put_key_u32(b, "general.alignment", 32);
    put_key(b, "t.u8", GGUF_U8), put_u8(b, 200);
    put_key(b, "t.i8", GGUF_I8), put_u8(b, 0xfe);
    put_key(b, "t.u16", GGUF_U16), put_u8(b, 0x34), put_u8(b, 0xf2);
    put_key(b, "t.i16", GGUF_I16), put_u8(b, 0x00), put_u8(b, 0x80);
    put_key(b, "t.i32", GGUF_I32), put_u32(b, (uint32_t)-7);
    put_key(b, "t.f32", GGUF_F32), buf_add(b, &f, 4);
    put_key(b, "t.bool", GGUF_BOOL), put_u8(b, 1);
    put_key(b, "t.u64", GGUF_U64), put_u64(b, UINT64_MAX);
    put_key(b, "t.i64", GGUF_I64), put_u64(b, (uint64_t)INT64_MIN);
    put_key(b, "t.f64", GGUF_F64), buf_add(b, &d, 8);
    put_key(b, "t.strs", GGUF_LIST), put_list(b, GGUF_STR, 3), put_str(b, "a"), put_str(b, ""),
        put_str(b, "ccc");
    put_key(b, "t.i16s", GGUF_LIST), put_list(b, GGUF_I16, 2), put_u32(b, 0xffff0005);
    put_key(b, "t.bools", GGUF_LIST), put_list(b, GGUF_BOOL, 3), put_u8(b, 1), put_u8(b, 0),
        put_u8(b, 1);
    put_key(b, "t.nested", GGUF_LIST), put_list(b, GGUF_LIST, 2);
    put_list(b, GGUF_U8, 2), put_u8(b, 7), put_u8(b, 9);
    put_list(b, GGUF_STR, 1), put_str(b, "deep");
    put_tensor(b, "x", 2, 3, DT_F32, 0);
    put_tensor(b, "q", 2, 32, DT_Q8_0, 32);
    put_tensor(b, "y", 1, 4, DT_F16, 128);
    put_padding(b, 32);
    for (int i = 0; i < 136; i++) put_u8(b, (uint8_t)i);
}
#endif
