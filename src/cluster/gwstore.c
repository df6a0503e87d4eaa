/* gwstore.c - opening and closing, the search for batches that nobody runs, and what has expired. */
#include "cluster/gwstore.h"

#include "base/clock.h"
#include "base/jsonw.h"
#include "base/log.h"
#include "base/mem.h"
#include "cluster/gateway_impl.h"
#include "cluster/gwstore_impl.h"
#include "ledger/jobrecord.h"
#include "net/loop.h"
#include "server/settings.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    TICK_MS = 100, /* while there are batches */
    IDLE_MS = 500,
    SCAN_MS = 1000,
    SWEEP_S = 600,
    WRITING_S = 86400 /* an upload, or results, that nobody completed in this time */
};

#define MS UINT64_C(1000000)

/* ---- batches ---- */

struct gwbatch *gwstore_find_batch(struct gwstore *s, const char *id)
{
    for (struct gwbatch *b = s->batches; b; b = b->next)
        if (strcmp(b->id, id) == 0) return b;
    return NULL;
}

static struct gwbatch *make_batch(struct gwstore *s, struct batchrec *rec, uint64_t seq)
{
    struct gwbatch *b = mem_new(struct gwbatch);

    if (!b) return NULL;
    b->s = s;
    b->rec = *rec;
    memcpy(b->id, rec->id, sizeof b->id);
    memcpy(b->tenant, rec->tenant, sizeof b->tenant);
    memcpy(b->endpoint, rec->endpoint, sizeof b->endpoint);
    b->seq = seq;
    b->status = rec->status;
    b->put_ns = clock_ns();
    *rec = (struct batchrec){ 0 };
    return b;
}

static void link_batch(struct gwstore *s, struct gwbatch *b)
{
    b->next = s->batches;
    s->batches = b;
    s->n_batches++;
}

bool gwstore_add_batch(struct gwstore *s, struct batchrec *rec, uint64_t seq)
{
    struct gwbatch *b = make_batch(s, rec, seq);

    if (b) link_batch(s, b);
    return b != NULL;
}

bool gwstore_note_ended(struct gwstore *s, const char *id)
{
    const char *name;

    if (map_get(&s->ended, str_c(id), NULL)) return true;
    name = arena_cstr(&s->names, str_c(id));
    return name && map_put(&s->ended, str_c(name), 1) != E_NOMEM;
}

/* ---- the scan: on the ledger's thread ---- */

static void add_found(void *arg, const char *subject)
{
    struct gwstore *s = arg;

    if (s->found_failed || strlen(subject) >= LEDGER_SUBJECT) return;
    if (!mem_ensure(s->found, s->cap_found, s->n_found + 1)) s->found_failed = true;
    else snprintf(s->found[s->n_found++], LEDGER_SUBJECT, "%s", subject);
}

static int list_all(struct gwstore *s, struct storelink *k, const char *pattern, struct err *e)
{
    int rc;

    s->n_found = s->at_found = 0;
    s->found_failed = false;
    rc = storelink_fail(
        k, k->api->list(k->link, LEDGER_RECORDS, pattern, add_found, s, k->why, sizeof k->why), e);
    return rc == OK && s->found_failed ? err_nomem(e, "a list") : rc;
}

static struct gwwatch *find_watch(struct gwstore *s, const char *subject)
{
    for (int i = 0; i < s->n_watch; i++)
        if (strcmp(s->watch[i].subject, subject) == 0) return &s->watch[i];
    if (!mem_ensure(s->watch, s->cap_watch, s->n_watch + 1)) return NULL;
    s->watch[s->n_watch] = (struct gwwatch){ 0 };
    snprintf(s->watch[s->n_watch].subject, LEDGER_SUBJECT, "%s", subject);
    return &s->watch[s->n_watch++];
}

/* A batch of this gateway that was silent because NATS was away is not taken over by itself. */
static bool is_held(const struct gwstore *s, const char *id)
{
    for (int i = 0; i < s->n_held; i++)
        if (strcmp(s->held[i], id) == 0) return true;
    return false;
}

/* Nobody has changed the record for STORE_SILENCE_MS: its holder is this gateway from now on. */
static int claim(struct gwstore *s, struct storelink *k, struct batchrec *r, uint64_t seq,
                 struct err *e)
{
    struct gwbatch *b;
    int rc;

    snprintf(r->holder, sizeof r->holder, "%s", s->me);
    rc = storelink_put_batch(k, r, &seq, e);
    if (rc != OK) return rc == E_CONCURRENCY ? OK : rc; /* another gateway was faster */
    if (!(b = make_batch(s, r, seq))) return OK;        /* after another silence */
    log_info("batch %s: its gateway is silent, this one goes on with it", b->rec.id);
    counter_add(&s->n.taken_over, 1);
    b->next = s->claimed;
    s->claimed = b;
    return OK;
}

static int look_at_batch(struct gwstore *s, struct storelink *k, const char *subject, struct err *e)
{
    const char *id = storerec_id_of(subject, STOREREC_BATCH);
    struct buf text = { 0 };
    struct batchrec r = { 0 };
    struct gwwatch *w;
    uint64_t seq = 0, now = clock_ns();
    char own[LEDGER_SUBJECT];
    int rc;

    if (!*id || map_get(&s->ended, str_c(id), NULL)) return OK;
    rc = storelink_get(k, LEDGER_RECORDS, subject, &text, &seq, e);
    if (rc == OK && batchrec_read(&r, buf_str(&text), NULL) == OK) {
        storerec_subject(own, "batch", r.tenant, r.id);
        if (batchrec_has_ended(&r)) {
            gwstore_note_ended(s, r.id);
        } else if (strcmp(own, subject) == 0 && (w = find_watch(s, subject))) {
            if (w->seq != seq || is_held(s, r.id)) w->since_ns = now;
            w->seq = seq;
            w->seen = true;
            snprintf(w->input, sizeof w->input, "%s", r.input);
            if ((!r.holder[0] && !is_held(s, r.id)) || now - w->since_ns > STORE_SILENCE_MS * MS)
                rc = claim(s, k, &r, seq, e);
        }
    }
    batchrec_release(&r);
    buf_release(&text);
    return rc == E_NOTFOUND ? OK : rc;
}

static void end_watches(struct gwstore *s)
{
    int n = 0;

    for (int i = 0; i < s->n_watch; i++)
        if (s->watch[i].seen) s->watch[n++] = s->watch[i];
    s->n_watch = n;
    for (int i = 0; i < n; i++) s->watch[i].seen = false;
}

static bool is_input(const struct gwstore *s, const char *id)
{
    for (int i = 0; i < s->n_watch; i++)
        if (strcmp(s->watch[i].input, id) == 0) return true;
    return false;
}

static int sweep_file(struct gwstore *s, struct storelink *k, struct str text, uint64_t seq,
                      int64_t now, struct err *e)
{
    struct filerec r;
    bool over;
    int rc;

    if (filerec_read(&r, text, NULL) != OK) return OK;
    over = r.state == FILEREC_GONE ||
           (r.state == FILEREC_WRITING && r.file.created + WRITING_S < now) ||
           (r.state == FILEREC_READY && r.file.expires && r.file.expires < now &&
            !is_input(s, r.file.id));
    if (!over) return OK;
    if (r.state != FILEREC_GONE) {
        r.state = FILEREC_GONE;
        rc = storelink_put_file(k, &r, &seq, e);
        if (rc != OK) return rc == E_CONCURRENCY ? OK : rc;
    }
    return storelink_drop_file(k, r.file.tenant, r.file.id, e);
}

static int sweep_batch(struct gwstore *s, struct storelink *k, const char *subject, struct str text,
                       int64_t now, struct err *e)
{
    struct batchrec r;
    int rc = OK;

    if (batchrec_read(&r, text, NULL) != OK) return OK;
    if (batchrec_has_ended(&r) && s->lim.retention_s > 0 && r.ended + s->lim.retention_s < now)
        rc = storelink_erase(k, LEDGER_RECORDS, subject, e);
    batchrec_release(&r);
    return rc;
}

static int sweep(struct gwstore *s, struct storelink *k, const char *subject, struct err *e)
{
    struct buf text = { 0 };
    int64_t now = jobstore_now();
    uint64_t seq = 0;
    int rc = storelink_get(k, LEDGER_RECORDS, subject, &text, &seq, e);

    if (rc == OK)
        rc = str_starts(str_c(subject), STR("tern.records.file."))
                 ? sweep_file(s, k, buf_str(&text), seq, now, e)
                 : sweep_batch(s, k, subject, buf_str(&text), now, e);
    buf_release(&text);
    return rc == E_NOTFOUND ? OK : rc;
}

static int begin_scan(struct gwstore *s, struct storelink *k, bool *idle, struct err *e)
{
    uint64_t last = 0;
    int rc =
        storelink_fail(k, k->api->last(k->link, LEDGER_RECORDS, &last, k->why, sizeof k->why), e);

    *idle = rc == OK && last == s->last_seq && s->n_watch == 0;
    if (rc != OK || *idle) return rc;
    rc = list_all(s, k, "tern.records.batch.*.*", e);
    if (rc == OK) s->last_seq = last;
    return rc;
}

/* ledger_op.run: a part of the scan. */
static int run_scan(const struct ledger_api *api, struct ledger_link *link, struct ledger_op *op)
{
    struct gwstore *s = (struct gwstore *)((char *)op - offsetof(struct gwstore, scan));
    struct storelink k = { .api = api, .link = link };
    bool idle = false;
    int rc = OK;

    if (s->scan_state == SCAN_BEGIN) {
        rc = begin_scan(s, &k, &idle, &op->err);
        if (rc == OK && !idle) s->scan_state = SCAN_BATCHES;
    }
    for (int i = 0; rc == OK && i < STORE_STEP && s->at_found < s->n_found; i++, s->at_found++)
        rc = s->scan_state == SCAN_BATCHES ? look_at_batch(s, &k, s->found[s->at_found], &op->err)
                                           : sweep(s, &k, s->found[s->at_found], &op->err);
    if (rc == OK && s->at_found < s->n_found) return op->more = true, OK;
    if (rc == OK && s->scan_state == SCAN_BATCHES) end_watches(s);
    if (rc == OK && s->scan_state != SCAN_SWEEP && jobstore_now() >= s->sweep_at) {
        s->sweep_at = jobstore_now() + SWEEP_S;
        rc = list_all(s, &k, "tern.records.*.*.*", &op->err);
        s->scan_state = SCAN_SWEEP;
        op->more = rc == OK;
        if (rc == OK) return OK;
    }
    s->scan_state = SCAN_BEGIN;
    s->n_found = s->at_found = 0;
    return rc;
}

/* ---- turns ---- */

static void on_scanned(struct ledger_op *op)
{
    struct gwstore *s = (struct gwstore *)((char *)op - offsetof(struct gwstore, scan));

    s->scan_busy = false;
    s->scan_ns = clock_ns();
    while (s->claimed) {
        struct gwbatch *b = s->claimed;
        s->claimed = b->next;
        link_batch(s, b);
    }
}

static void take_turn(struct gwstore *s)
{
    batchrun_turn(s);
    if (s->scan_busy || s->draining || s->closing || clock_ns() - s->scan_ns < SCAN_MS * MS) return;
    s->scan.kind = LEDGER_OP_CALL;
    s->scan.run = run_scan;
    s->scan.done = on_scanned;
    s->scan_busy = true;
    ledger_add_op(s->ledger, &s->scan);
}

static void on_tick(void *arg)
{
    struct gwstore *s = arg;

    loop_timer_set(s->timer, s->batches ? TICK_MS : IDLE_MS); /* first: it cannot fail then */
    take_turn(s);
}

void gwstore_process(struct gwstore *s)
{
    if (!s) return;
    ledger_process(s->ledger);
    take_turn(s);
}

/* ---- opening ---- */

static void on_ledger(void *arg) { loop_wake(((struct gwstore *)arg)->g->loop); }

static void choose_spool(struct gwstore *s)
{
    const char *tmp = getenv("TMPDIR");

    if (*s->g->s->data_dir) tmp = s->g->s->data_dir;
    snprintf(s->spool, sizeof s->spool, "%s", tmp && *tmp ? tmp : "/var/tmp");
}

int gwstore_open(struct gwstore **out, struct gateway *g, struct err *e)
{
    struct gwstore *s = mem_new(struct gwstore);
    const struct settings *set = g->s;
    struct ledger_opt o = {
        .nats_url = set->nats, .what = "files and batches", .wake = on_ledger, .arg = s
    };
    int rc = OK;

    if (!s) return err_nomem(e, o.what);
    s->g = g;
    s->lim = (struct jobstore_limits){ .max_lines = set->max_batch_lines,
                                       .tenant_bytes = set->tenant_files,
                                       .tenant_batches = set->tenant_batches,
                                       .retention_s = set->retention_ms / 1000 };
    jobrecord_new_id(s->me, "gateway-");
    choose_spool(s);
    if (*set->data_dir) rc = jobstore_make_folders(set->data_dir, e);
    s->timer = loop_timer(g->loop, on_tick, s);
    if (rc == OK && (!s->timer || !loop_timer_set(s->timer, 1))) rc = err_nomem(e, "a timer");
    if (rc == OK) rc = ledger_open(&s->ledger, &o, e);
    if (rc != OK) {
        loop_timer_close(s->timer);
        mem_free(s);
        return rc;
    }
    *out = s;
    return OK;
}

void gwstore_drain(struct gwstore *s)
{
    if (!s) return;
    s->draining = true;
    take_turn(s);
}

void gwstore_close(struct gwstore *s)
{
    if (!s) return;
    s->draining = s->closing = true;
    ledger_close(s->ledger); /* calls done of all */
    s->ledger = NULL;
    while (s->batches) {
        struct gwbatch *b = s->batches;
        s->batches = b->next;
        batchrun_free(b);
    }
    loop_timer_close(s->timer);
    arena_release(&s->names);
    map_release(&s->sizes);
    map_release(&s->ended);
    mem_free(s->watch);
    mem_free(s->found);
    mem_free(s->held);
    mem_free(s);
}

/* ---- seeing it ---- */

int gwstore_n_asked(const struct gwstore *s) { return s ? s->n_asked : 0; }
int gwstore_n_running(const struct gwstore *s) { return s ? s->n_running : 0; }

void gwstore_write_status(struct gwstore *s, struct jsonw *w)
{
    jsonw_obj(w);
    jsonw_key(w, "connected"), jsonw_bool(w, ledger_is_connected(s->ledger));
    jsonw_key(w, "gateway"), jsonw_str(w, str_c(s->me));
    jsonw_key(w, "batches"), jsonw_int(w, s->n_batches);
    jsonw_key(w, "running"), jsonw_int(w, s->n_running);
    jsonw_key(w, "files_accepted"), jsonw_int(w, (int64_t)counter_get(&s->n.files));
    jsonw_key(w, "batches_accepted"), jsonw_int(w, (int64_t)counter_get(&s->n.batches));
    jsonw_key(w, "batches_taken_over"), jsonw_int(w, (int64_t)counter_get(&s->n.taken_over));
    jsonw_key(w, "lines_completed"), jsonw_int(w, (int64_t)counter_get(&s->n.lines));
    jsonw_key(w, "lines_failed"), jsonw_int(w, (int64_t)counter_get(&s->n.failed));
    jsonw_key(w, "lines_repeated"), jsonw_int(w, (int64_t)counter_get(&s->n.retried));
    jsonw_end(w);
}

void gwstore_write_metrics(struct gwstore *s, struct buf *out)
{
    const struct {
        const char *name, *label, *help;
        const struct counter *c;
    } rows[] = {
        { "tern_gateway_files_total", "", "Files accepted by this gateway", &s->n.files },
        { "tern_gateway_batches_total", "event=\"accepted\"",
          "Batches by what happened to them at this gateway", &s->n.batches },
        { "tern_gateway_batches_total", "event=\"taken_over\"", NULL, &s->n.taken_over },
        { "tern_gateway_lines_total", "event=\"completed\"",
          "Lines of batches by what happened to them at this gateway", &s->n.lines },
        { "tern_gateway_lines_total", "event=\"failed\"", NULL, &s->n.failed },
        { "tern_gateway_lines_total", "event=\"repeated\"", NULL, &s->n.retried },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        stat_counter(out, rows[i].name, rows[i].label, rows[i].help, counter_get(rows[i].c));
    stat_gauge(out, "tern_gateway_batches", "", "Batches that this gateway runs", s->n_batches);
    stat_gauge(out, "tern_gateway_lines_running", "", "Lines of batches that run over this gateway",
               s->n_running);
}
