/* Fuzz target: arbitrary bytes as a record of a file, of a batch, or of a line's answer in JetStream. One
 * that is accepted is written as one that reads the same, and shown to clients as valid JSON. */
#include "base/jsonr.h"
#include "base/jsonw.h"
#include "cluster/storerec.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void check_error(int rc, const struct err *e)
{
    if (!e->msg[0] || (rc != E_FORMAT && rc != E_UNSUPPORTED)) abort();
}

static void try_file(struct str s)
{
    struct filerec r, again;
    struct buf out = { 0 };
    struct err e = { 0 };
    int rc = filerec_read(&r, s, &e);

    if (rc != OK) {
        check_error(rc, &e);
        return;
    }
    filerec_write(&r, &out);
    if (filerec_read(&again, buf_str(&out), &e) != OK) abort();
    if (strcmp(r.file.id, again.file.id) || r.file.bytes != again.file.bytes ||
        r.state != again.state || filerec_n_pieces(&r) < 0)
        abort();
    buf_release(&out);
}

static void try_batch(struct str s)
{
    struct batchrec r, again;
    struct buf out = { 0 }, json = { 0 };
    struct jsonw w = { .out = &json };
    struct err e = { 0 };
    json_t *root;
    int rc = batchrec_read(&r, s, &e);

    if (rc != OK) {
        check_error(rc, &e);
        return;
    }
    batchrec_write(&r, &out);
    if (batchrec_read(&again, buf_str(&out), &e) != OK) abort();
    if (strcmp(r.id, again.id) || r.status != again.status || r.total != again.total) abort();
    batchrec_show(&r, &w);
    if (!(root = jsonr_load(buf_str(&json), JSON_ALLOW_NUL, NULL)) || !json_is_object(root))
        abort();
    json_decref(root);
    batchrec_release(&r);
    batchrec_release(&again);
    buf_release(&out);
    buf_release(&json);
}

static void try_line(struct str s)
{
    struct linerec r, again;
    struct buf out = { 0 };
    struct err e = { 0 };
    int rc = linerec_read(&r, s, &e);

    if (rc != OK) {
        check_error(rc, &e);
        return;
    }
    linerec_write(&r, &out);
    if (linerec_read(&again, buf_str(&out), &e) != OK) abort();
    if (r.status != again.status || !str_eq(r.body, again.body)) abort();
    buf_release(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct str s = str_of((const char *)p, n);

    try_file(s);
    try_batch(s);
    try_line(s);
    return 0;
}
