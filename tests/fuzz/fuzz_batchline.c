/* Fuzz target: arbitrary bytes as a line of a batch. What is accepted has a custom_id and a body that
 * is a JSON object again. */
#include "base/jsonr.h"
#include "jobs/batchline.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct batchline l, again;
    struct buf body = { 0 }, out = { 0 };
    struct err e = { 0 };
    json_t *root;
    int rc = batchline_read(&l, str_of((const char *)p, n), "", &body, &e);

    if (rc == OK) {
        struct batchline_result r = { .id = "batch_req_1",
                                      .custom_id = l.custom_id,
                                      .status = 200,
                                      .request_id = STR("r"),
                                      .body = buf_str(&body) };
        if (!l.custom_id[0] || !batchline_is_endpoint(str_c(l.url))) abort();
        if (!(root = jsonr_load(buf_str(&body), 0, NULL)) || !json_is_object(root)) abort();
        json_decref(root);
        batchline_write(&out, &r);
        if (!(root = jsonr_load(buf_str(&out), 0, NULL))) abort();
        json_decref(root);
        if (memchr(out.p, '\n', out.n - 1)) abort();
        if (batchline_read(&again, str_of((const char *)p, n), l.url, NULL, &e) != OK) abort();
    } else if (!e.msg[0] || (rc == E_INVALID && !l.code)) {
        abort();
    }
    buf_release(&body);
    buf_release(&out);
    return 0;
}
