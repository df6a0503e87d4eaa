/* Fuzz target: arbitrary bytes as multipart/form-data, with the boundary "xyz" or one of the input. The
 * result does not depend on where the bytes are cut, and no part is begun twice or left open. */
#include "jobs/multipart.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct outcome {
    uint64_t sum;
    size_t n_data;
    int n_begun, n_ended, rc;
};

static int on_begin(void *arg, const struct multipart_part *p, struct err *e)
{
    struct outcome *o = arg;

    (void)e;
    if (o->n_begun != o->n_ended || !p->name[0]) abort();
    if (!memchr(p->name, 0, sizeof p->name) || !memchr(p->filename, 0, sizeof p->filename)) abort();
    o->n_begun++;
    for (const char *s = p->name; *s; s++) o->sum = o->sum * 31 + (unsigned char)*s;
    return OK;
}

static int on_data(void *arg, const char *p, size_t n, struct err *e)
{
    struct outcome *o = arg;

    (void)e;
    if (o->n_begun != o->n_ended + 1 || n == 0) abort();
    for (size_t i = 0; i < n; i++) o->sum = o->sum * 31 + (unsigned char)p[i];
    o->n_data += n;
    return OK;
}

static int on_end(void *arg, struct err *e)
{
    struct outcome *o = arg;

    (void)e;
    if (o->n_begun != ++o->n_ended) abort();
    return OK;
}

static struct outcome parse(struct str type, const uint8_t *p, size_t n, size_t piece)
{
    struct outcome o = { 0 };
    const struct multipart_out out = { on_begin, on_data, on_end, &o };
    struct multipart m;
    struct err e = { 0 };

    o.rc = multipart_init(&m, type, &out, &e);
    for (size_t at = 0; at < n && o.rc == OK; at += piece) {
        size_t k = n - at < piece ? n - at : piece;
        char *copy = malloc(k); /* an exact copy: the sanitizer finds reads past it */
        memcpy(copy, p + at, k);
        o.rc = multipart_feed(&m, copy, k, &e);
        free(copy);
    }
    if (o.rc == OK) o.rc = multipart_end(&m, &e);
    if (o.rc == OK && (o.n_begun == 0 || o.n_begun != o.n_ended)) abort();
    if (o.rc != OK && !e.msg[0]) abort();
    return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    static const char plain[] = "multipart/form-data; boundary=xyz";
    size_t n_type = n && p[0] == '=' ? (n - 1 < 60 ? n - 1 : 60) : 0;
    struct str type = n_type ? str_of((const char *)p + 1, n_type) : str_c(plain);
    struct outcome a, b;

    if (n_type) p += n_type + 1, n -= n_type + 1;
    a = parse(type, p, n, n + 1);
    b = parse(type, p, n, 1 + n % 7);
    if (a.rc != b.rc) abort();
    if (a.rc == OK && (a.sum != b.sum || a.n_data != b.n_data || a.n_begun != b.n_begun)) abort();
    return 0;
}
