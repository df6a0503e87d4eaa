/* batchobject.c - names of a batch's states, and its JSON. */
#include "jobs/batchobject.h"

#include "base/jsonw.h"

const char *batch_status_name(int status)
{
    static const char *const names[] = {
        "validating", "in_progress", "finalizing", "cancelling",
        "completed",  "failed",      "expired",    "cancelled",
    };

    return status >= 0 && status < BATCH_STATUSES ? names[status] : "failed";
}

static void write_time(struct jsonw *w, const char *key, int64_t at, bool is_set)
{
    jsonw_key(w, key);
    if (is_set && at) jsonw_int(w, at);
    else jsonw_null(w);
}

static void write_text(struct jsonw *w, const char *key, struct str s)
{
    jsonw_key(w, key);
    if (s.p) jsonw_str(w, s);
    else jsonw_null(w);
}

void batch_object_write(const struct batch_object *o, struct jsonw *w)
{
    jsonw_obj(w);
    write_text(w, "id", o->id);
    write_text(w, "object", STR("batch"));
    write_text(w, "endpoint", o->endpoint);
    jsonw_key(w, "errors");
    if (o->errors.n) {
        jsonw_obj(w);
        jsonw_key(w, "object"), jsonw_str(w, STR("list"));
        jsonw_key(w, "data"), jsonw_raw(w, o->errors);
        jsonw_end(w);
    } else {
        jsonw_null(w);
    }
    write_text(w, "input_file_id", o->input);
    write_text(w, "completion_window", o->window);
    write_text(w, "status", str_c(batch_status_name(o->status)));
    write_text(w, "output_file_id", o->output);
    write_text(w, "error_file_id", o->error);
    write_time(w, "created_at", o->created, true);
    write_time(w, "in_progress_at", o->in_progress, true);
    write_time(w, "expires_at", o->expires, true);
    write_time(w, "finalizing_at", o->finalizing, true);
    write_time(w, "completed_at", o->ended, o->status == BATCH_COMPLETED);
    write_time(w, "failed_at", o->ended, o->status == BATCH_FAILED);
    write_time(w, "expired_at", o->ended, o->status == BATCH_EXPIRED);
    write_time(w, "cancelling_at", o->cancelling, true);
    write_time(w, "cancelled_at", o->ended, o->status == BATCH_CANCELLED);
    jsonw_key(w, "request_counts"), jsonw_obj(w);
    jsonw_key(w, "total"), jsonw_int(w, o->total);
    jsonw_key(w, "completed"), jsonw_int(w, o->completed);
    jsonw_key(w, "failed"), jsonw_int(w, o->failed);
    jsonw_end(w);
    jsonw_key(w, "metadata");
    if (o->metadata.n) jsonw_raw(w, o->metadata);
    else jsonw_null(w);
    jsonw_end(w);
}
