/* Fuzz target: arbitrary bytes as a message of JetStream. A message that is accepted is written as one that
 * reads the same, and shown to clients as valid JSON. */
#include "base/jsonr.h"
#include "base/jsonw.h"
#include "ledger/jobrecord.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct jobrecord r, again;
    struct buf out = { 0 }, json = { 0 };
    struct jsonw w = { .out = &json };
    struct err e = { 0 };
    json_t *root;
    int rc = jobrecord_read(&r, str_of((const char *)p, n), &e);

    if (rc == OK) {
        jobrecord_write(&r, &out);
        if (jobrecord_read(&again, buf_str(&out), &e) != OK) abort();
        if (strcmp(r.id, again.id) || strcmp(r.tenant, again.tenant) || r.status != again.status ||
            r.created != again.created || r.is_answer != again.is_answer ||
            strcmp(r.error, again.error) || !str_eq(r.body, again.body))
            abort();
        jobrecord_write_json(&r, &w, true);
        if (!(root = jsonr_load(buf_str(&json), JSON_ALLOW_NUL, NULL)) || !json_is_object(root))
            abort();
        json_decref(root);
    } else if (!e.msg[0] || (rc != E_FORMAT && rc != E_UNSUPPORTED)) {
        abort();
    }
    buf_release(&out);
    buf_release(&json);
    return 0;
}
