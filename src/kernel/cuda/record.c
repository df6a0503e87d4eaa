/* record.c - descriptors of the operations, the record itself, and when two records are equal. */
#include "kernel/cuda/record.h"

#include "base/mem.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#define JOBS_PER_OP 2

/* Before the fields of every operation in the byte string. */
struct op_header {
    uint32_t kind, size;
};

/* ---- descriptors ---- */

/* clang-format off */

/* Equality compares bytes, so every byte of a struct must belong to a field; and the hash reads
 * words of 8 bytes. */
#define PART(name) _Static_assert(sizeof(struct op_##name) % 8 == 0 && sizeof(struct op_##name) == 0
#define OP(NAME, name) PART(name)
#define FIELD(name, role, type, field) + sizeof(((struct op_##name *)0)->field)
#define END(name) , "struct op_" #name " has hidden padding: add a PAD field");
#include "kernel/cuda/ops.inc"

/* The field that a role refers to; 0: none. */
#define AUX_READ(name) 0
#define AUX_WRITTEN(name) 0
#define AUX_WRITTEN_DENSE(name) offsetof(struct op_##name, dense)
#define AUX_ADDED(name) offsetof(struct op_##name, add)
#define AUX_UPDATED(name) 0
#define AUX_READ_BYTES(name) offsetof(struct op_##name, bytes)
#define AUX_WRITTEN_BYTES(name) offsetof(struct op_##name, bytes)
#define AUX_JOBS(name) offsetof(struct op_##name, n_jobs)
#define AUX_ADDRESS(name) 0
#define AUX_VALUE(name) 0
#define AUX_FUSED(name) 0
#define AUX_PAD(name) 0

#define OP(NAME, name) static const struct op_field fields_##name[] = {
#define PART(name) OP(, name)
#define FIELD(name, role, type, field)                                       \
    { #field, ROLE_##role, offsetof(struct op_##name, field),                \
      sizeof(((struct op_##name *)0)->field), AUX_##role(name) },
#define END(name) };
#include "kernel/cuda/ops.inc"

#define DESC(name)                                                           \
    { #name, fields_##name, (int)(sizeof fields_##name / sizeof *fields_##name), \
      sizeof(struct op_##name) }

const struct op_desc op_descs[OP_KINDS] = {
#define OP(NAME, name) [OP_##NAME] = DESC(name),
#include "kernel/cuda/ops.inc"
};

#define PART(name) const struct op_desc op_desc_##name = DESC(name);
#include "kernel/cuda/ops.inc"
/* clang-format on */

/* ---- the record ---- */

/* Bytes of the largest operation's struct. */
static size_t largest_op(void)
{
    size_t most = 0;

    for (int i = 0; i < OP_KINDS; i++)
        if (op_descs[i].size > most) most = op_descs[i].size;
    return most;
}

/* The byte string holds `cap` operations of the largest kind, and a ROPE_KV that record_fuse makes
 * for each. Most of it is never touched. */
int record_init(struct record *r, int cap, struct err *e)
{
    size_t each = largest_op() + sizeof(struct op_rope_kv) + 2 * sizeof(struct op_header);

    *r = (struct record){
        .cap = cap, .cap_jobs = cap * JOBS_PER_OP, .cap_views = cap, .cap_bytes = (size_t)cap * each
    };
    r->ops = mem_array((size_t)r->cap, sizeof *r->ops);
    r->bytes = mem_array((size_t)r->cap, each);
    r->jobs = mem_array((size_t)r->cap_jobs, sizeof *r->jobs);
    r->views = mem_array((size_t)r->cap_views, sizeof *r->views);
    if (r->ops && r->bytes && r->jobs && r->views) return OK;
    record_release(r);
    return err_nomem(e, "the record of a step's operations");
}

void record_release(struct record *r)
{
    mem_free(r->ops);
    mem_free(r->bytes);
    mem_free(r->jobs);
    mem_free(r->views);
    *r = (struct record){ 0 };
}

void record_clear(struct record *r)
{
    r->n = r->n_jobs = r->n_views = r->n_tokens = 0;
    r->n_bytes = 0;
    r->fused = false;
}

/* The byte string needs no test: it has room for `cap` operations of any kind. */
bool record_has_room(const struct record *r, int n_jobs)
{
    return r->n < r->cap && r->n_views < r->cap_views && r->n_jobs + n_jobs <= r->cap_jobs;
}

/* The fields' address is stable: the byte string never moves. */
void *record_append(struct record *r, enum op_kind kind, int n_rows)
{
    struct op *o = &r->ops[r->n++];

    o->kind = kind;
    o->absorbed = false;
    o->u.any = record_new_fields(r, kind);
    if (n_rows > r->n_tokens) r->n_tokens = n_rows;
    return o->u.any;
}

void *record_new_fields(struct record *r, enum op_kind kind)
{
    struct op_header *h = (struct op_header *)(r->bytes + r->n_bytes);

    *h = (struct op_header){ (uint32_t)kind, (uint32_t)op_descs[kind].size };
    r->n_bytes += sizeof *h + op_descs[kind].size;
    assert(r->n_bytes <= r->cap_bytes);
    return h + 1;
}

/* ---- equality ---- */

/* The three byte strings that make up a record. */
struct strings {
    struct {
        const void *p;
        size_t n;
    } part[3];
};

static struct strings strings_of(const struct record *r)
{
    return (struct strings){ { { r->bytes, r->n_bytes },
                               { r->jobs, (size_t)r->n_jobs * sizeof *r->jobs },
                               { r->views, (size_t)r->n_views * sizeof *r->views } } };
}

static inline uint64_t word_at(const char *p)
{
    uint64_t w;

    memcpy(&w, p, sizeof w);
    return w;
}

/* Two words into a sum: both halves of their 128-bit product, as wyhash does. */
static inline uint64_t mix_words(uint64_t sum, uint64_t a, uint64_t b)
{
    unsigned __int128 m = (unsigned __int128)(a ^ sum) * (b ^ 0xe7037ed1a0b428dbu);

    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

/* Mixes pairs of words into four sums in rotation, so that their multiplications do not wait for
 * each other. The sums are locals: the compiler cannot know that p does not point to them. n is a
 * multiple of 8. */
static void hash_words(uint64_t sum[4], const void *p, size_t n)
{
    uint64_t s0 = sum[0], s1 = sum[1], s2 = sum[2], s3 = sum[3];
    const char *at = p;

    for (; n >= 64; n -= 64, at += 64) {
        s0 = mix_words(s0, word_at(at), word_at(at + 8));
        s1 = mix_words(s1, word_at(at + 16), word_at(at + 24));
        s2 = mix_words(s2, word_at(at + 32), word_at(at + 40));
        s3 = mix_words(s3, word_at(at + 48), word_at(at + 56));
    }
    for (; n > 0; n -= 8, at += 8) s0 = mix_words(s0, word_at(at), n);
    sum[0] = s0, sum[1] = s1, sum[2] = s2, sum[3] = s3;
}

uint64_t record_hash(const struct record *r)
{
    uint64_t sum[4] = { 0x243f6a8885a308d3u, 0x13198a2e03707344u, 0xa4093822299f31d0u,
                        0x082efa98ec4e6c89u };
    struct strings s = strings_of(r);
    uint64_t h = 0;

    for (int i = 0; i < 3; i++) {
        hash_words(sum, s.part[i].p, s.part[i].n);
        sum[i] = mix_words(sum[i], s.part[i].n, 1);
    }
    for (int i = 0; i < 4; i++) h = mix_words(h, sum[i], 0x8ebc6af09c88c6e3u + (uint64_t)i);
    return h;
}

/* A saved record is the three strings, each with its length (8 bytes) before it. */
size_t record_saved_bytes(const struct record *r)
{
    struct strings s = strings_of(r);
    size_t n = 0;

    for (int i = 0; i < 3; i++) n += sizeof(uint64_t) + s.part[i].n;
    return n;
}

/* Each string with its length before it. */
void record_save(const struct record *r, void *to)
{
    struct strings s = strings_of(r);
    char *at = to;

    for (int i = 0; i < 3; i++) {
        uint64_t n = s.part[i].n;
        memcpy(at, &n, sizeof n);
        memcpy(at + sizeof n, s.part[i].p, s.part[i].n);
        at += sizeof n + s.part[i].n;
    }
}

/* Lengths are compared before bytes, so a saved record is never read past its end. */
bool record_equals(const struct record *r, const void *saved, size_t n)
{
    struct strings s = strings_of(r);
    const char *at = saved;

    if (n != record_saved_bytes(r)) return false;
    for (int i = 0; i < 3; i++) {
        uint64_t len = s.part[i].n;
        if (memcmp(at, &len, sizeof len) != 0 ||
            memcmp(at + sizeof len, s.part[i].p, s.part[i].n) != 0)
            return false;
        at += sizeof len + s.part[i].n;
    }
    return true;
}
