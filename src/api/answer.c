/* answer.c - see answer.h. */
#include "api/answer.h"

#include "base/mem.h"

enum { KEEP_BYTES = 1 << 16, KEEP_PARTS = 8 }; /* larger buffers, and further parts, are freed */

static bool grow_parts(struct answer *a)
{
    int cap = a->cap ? 2 * a->cap : 2;
    struct part *more = mem_array((size_t)cap, sizeof *more);

    if (!more) return false;
    if (a->cap) memcpy(more, a->parts, (size_t)a->cap * sizeof *more);
    mem_free(a->parts);
    a->parts = more;
    a->cap = cap;
    return true;
}

struct part *answer_open_part(struct answer *a, enum part_kind kind, struct str id, struct str name)
{
    struct part *p;

    if (a->n == a->cap && !grow_parts(a)) {
        a->failed = true;
        return NULL;
    }
    p = &a->parts[a->n++];
    p->kind = kind;
    buf_clear(&p->text);
    buf_clear(&p->id);
    buf_clear(&p->name);
    buf_put_str(&p->id, id);
    buf_put_str(&p->name, name);
    return p;
}

struct part *answer_last(struct answer *a) { return a->n ? &a->parts[a->n - 1] : NULL; }

bool answer_failed(const struct answer *a)
{
    bool failed = a->failed;

    for (int i = 0; i < a->n; i++)
        failed |= a->parts[i].text.failed || a->parts[i].id.failed || a->parts[i].name.failed;
    return failed;
}

int answer_count(const struct answer *a, enum part_kind kind)
{
    int n = 0;

    for (int i = 0; i < a->n; i++) n += a->parts[i].kind == kind;
    return n;
}

struct str answer_join(const struct answer *a, enum part_kind kind, struct buf *joined)
{
    bool several = answer_count(a, kind) > 1;

    for (int i = 0; i < a->n; i++) {
        if (a->parts[i].kind != kind) continue;
        if (!several) return buf_str(&a->parts[i].text);
        buf_put_str(joined, buf_str(&a->parts[i].text));
    }
    return buf_str(joined);
}

static void shrink_buf(struct buf *b)
{
    if (b->cap > KEEP_BYTES) buf_release(b);
    else buf_clear(b);
}

static void release_part(struct part *p)
{
    buf_release(&p->text);
    buf_release(&p->id);
    buf_release(&p->name);
}

void answer_clear(struct answer *a)
{
    if (a->cap > KEEP_PARTS) {
        answer_release(a);
        return;
    }
    for (int i = 0; i < a->cap; i++) {
        shrink_buf(&a->parts[i].text);
        shrink_buf(&a->parts[i].id);
        shrink_buf(&a->parts[i].name);
    }
    a->n = 0;
    a->failed = false;
}

void answer_release(struct answer *a)
{
    for (int i = 0; i < a->cap; i++) release_part(&a->parts[i]);
    mem_free(a->parts);
    *a = (struct answer){ 0 };
}
